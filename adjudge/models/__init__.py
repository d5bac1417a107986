"""Architectures, one file each: rename table, ignored tensors with reasons, forward pass."""
