"""Triton kernels run in their interpreter here; set before the first kernel is decorated."""

import os
from collections.abc import Iterator

import pytest

os.environ.setdefault("TRITON_INTERPRET", "1")


@pytest.fixture
def quiet_transformers() -> Iterator[None]:
    """transformers logs errors only, as long as the test runs."""
    from transformers.utils import logging

    before = logging.get_verbosity()
    logging.set_verbosity_error()
    yield
    logging.set_verbosity(before)
