"""Triton kernels run in their interpreter here; set before the first kernel is decorated."""

import os

os.environ.setdefault("TRITON_INTERPRET", "1")
