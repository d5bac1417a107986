"""The first configuration that fits a device's shared memory, found once."""

from __future__ import annotations

import pytest
import torch

pytest.importorskip("triton")
from triton.runtime.errors import OutOfResources

from adjudge.ops.launch import first_that_fits
from adjudge.ops.refusal import Refused


def limited_to(most: int, seen: list[int], stages: int) -> None:
    seen.append(stages)
    if stages > most:
        raise OutOfResources(stages, most, "shared memory")


def test_what_does_not_fit_is_tried_once() -> None:
    x, seen = torch.zeros(1), list[int]()
    for _ in range(2):
        first_that_fits("once", x, (3, 2, 1), lambda stages: limited_to(2, seen, stages))
    first_that_fits("another kernel", x, (3, 1), lambda stages: limited_to(9, seen, stages))
    assert seen == [3, 2, 2, 3]


def test_what_fits_one_dtype_is_not_what_fits_another() -> None:
    seen = list[int]()
    for dtype, most in ((torch.float32, 1), (torch.bfloat16, 3)):
        x = torch.zeros(1, dtype=dtype)
        first_that_fits("of a size", x, (3, 1), lambda n, most=most: limited_to(most, seen, n))
    assert seen == [3, 1, 3]


def test_nothing_fits() -> None:
    with pytest.raises(Refused, match="shared memory"):
        first_that_fits("none", torch.zeros(1), (3, 2), lambda stages: limited_to(1, [], stages))
