"""Tokenizers for unit tests, each built once: the models' real vocabulary, and bytes."""

from __future__ import annotations

import pytest

from adjudge.checkpoint.vocab import build_tokenizer
from adjudge.tokenizer import Tokenizer


@pytest.fixture(scope="session")
def qwen() -> Tokenizer:
    return Tokenizer(build_tokenizer("qwen"))


@pytest.fixture(scope="session")
def byte_level() -> Tokenizer:
    return Tokenizer(build_tokenizer("bytes"))
