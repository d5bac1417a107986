"""Checkpoints: a folder (or a geometry's name) turned into a card, a geometry and weights."""

from adjudge.checkpoint.contents import Checkpoint, Head, WeightSource
from adjudge.checkpoint.text_config import GEOMETRIES, TextConfig

__all__ = ["GEOMETRIES", "Checkpoint", "Head", "TextConfig", "WeightSource"]
