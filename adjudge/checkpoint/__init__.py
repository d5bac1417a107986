"""Checkpoints: a folder (or a geometry's name) turned into a card, a geometry and weights."""

from adjudge.checkpoint.contents import AdapterUse, Checkpoint, Head, Lora, WeightSource
from adjudge.checkpoint.export import write_export
from adjudge.checkpoint.opening import open_checkpoint
from adjudge.checkpoint.synthetic import random_checkpoint
from adjudge.checkpoint.text_config import GEOMETRIES, TextConfig

__all__ = [
    "GEOMETRIES",
    "AdapterUse",
    "Checkpoint",
    "Head",
    "Lora",
    "TextConfig",
    "WeightSource",
    "open_checkpoint",
    "random_checkpoint",
    "write_export",
]
