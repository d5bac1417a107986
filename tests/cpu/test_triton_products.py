"""The products of ops.triton_products in Triton's interpreter: values, strides, lone rows.

The interpreter multiplies no BF16 values and rounds to BF16 towards zero, so the tile of BF16
takes FP32 values here, and FP16 stands for the storage dtype.
"""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from adjudge.ops import linear

triton = pytest.importorskip("triton")
if not triton.knobs.runtime.interpret:
    pytest.skip("set TRITON_INTERPRET=1", allow_module_level=True)

from adjudge.ops import triton_products  # noqa: E402

# The interpreter of Triton 3.6 makes loop bounds of one-element arrays.
pytestmark = pytest.mark.filterwarnings("ignore:Conversion of an array:DeprecationWarning")

ROWS = 150


@pytest.fixture(autouse=True, params=[torch.bfloat16, torch.float32], ids=["bf16", "fp32"])
def tile(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Both dtypes' tiles, on FP32 values."""
    monkeypatch.setitem(triton_products.TILES, torch.float32, triton_products.TILES[request.param])


def normal(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def inside(values: Tensor, left: int, right: int) -> Tensor:
    """The values as columns of wider rows that are NaN elsewhere."""
    wide = torch.full((values.shape[0], left + values.shape[1] + right), float("nan"))
    wide[:, left : left + values.shape[1]] = values
    return wide[:, left : left + values.shape[1]]


@pytest.mark.parametrize(("K", "N"), [(64, 128), (100, 33), (7, 5), (1, 1), (193, 130)])
def test_a_product(K: int, N: int) -> None:
    x, weight = normal(ROWS, K), normal(N, K, seed=1)
    whole = triton_products.linear(inside(x, 3, 2), inside(weight, 0, 5))
    exact = x.double() @ weight.double().T
    assert float((whole - exact).norm() / exact.norm()) < 1e-6
    for count in (0, 1, 2, 31, 33, 64, 65, 129):
        assert triton_products.linear(x[:count], weight).equal(whole[:count]), count
    # The interpreter's own product of a tile gives a row other bits at another place of it.
    tail = triton_products.linear(x[128:], weight)
    assert tail.equal(whole[128:])


@pytest.mark.parametrize(("K", "N", "L"), [(64, 130, 16), (100, 33, 4), (40, 16, 70)])
def test_a_delta_is_added_to_its_slice_and_rounded_once(K: int, N: int, L: int) -> None:
    x, y = normal(ROWS, K).half(), normal(ROWS, N + 30, seed=1).half()
    a, b = normal(L, K, seed=2) * 0.1, normal(N, L, seed=3) * 0.1
    whole = y.clone()
    triton_products.add_lora(whole[:, 20 : 20 + N], x, a, b, scale=1.5)
    delta = 1.5 * (x.double() @ a.double().T @ b.double().T)
    exact = (y[:, 20 : 20 + N].double() + delta).half()
    assert (whole[:, 20 : 20 + N] == exact).float().mean() > 0.999
    assert whole[:, :20].equal(y[:, :20])
    assert whole[:, 20 + N :].equal(y[:, 20 + N :])
    for count in (1, 2, 33, 64):
        part = y[:count].clone()
        triton_products.add_lora(part[:, 20 : 20 + N], x[:count], a, b, scale=1.5)
        assert part.equal(whole[:count]), count


def test_a_plan_says_which_shapes_run_here(monkeypatch: pytest.MonkeyPatch) -> None:
    x, weight = normal(32, 24), normal(8, 24, seed=1)
    expected = triton_products.linear(x, weight)
    monkeypatch.setattr(linear.functional, "linear", lambda x, weight: x @ weight.T * 0)
    own = frozenset({(8, 24)})
    assert linear.linear(x, weight, linear.LinearPlan(own=own)).equal(expected)
    assert not linear.linear(x, weight, linear.LinearPlan(own=frozenset({(24, 8)}))).any()


@pytest.mark.parametrize("part", ["own", "apart"])
def test_how_a_product_is_added_is_the_plan_s(part: str) -> None:
    x, weight, before = normal(32, 24), normal(8, 24, seed=1), normal(32, 8, seed=2)
    y, used = before.clone(), linear.LinearPlan(**{part: frozenset({(8, 24)})})
    linear.add_linear(y, x, weight, used)
    assert y.equal(before + linear.linear(x, weight, used))
