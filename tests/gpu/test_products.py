"""The Triton products on a GPU, at released sizes: rows that stand alone, and the library's value.

Prints for each weight whether its bits are also cuBLASLt's (`pytest -s` shows it).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch
from torch import Tensor

from adjudge import graphs
from adjudge.checkpoint import open_checkpoint, random_checkpoint
from adjudge.config import EngineConfig
from adjudge.executor import Executor
from adjudge.ops.linear import LinearPlan, add_linear, add_lora, linear
from adjudge.self_check import self_check

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")

COUNTS = (1, 2, 3, 5, 17, 32, 33, 64, 100, 257, 1000)
ROWS = max(COUNTS)
RANKS = (4, 16, 64)


@pytest.fixture(scope="module", params=["2b", "9b"])
def executor(request: pytest.FixtureRequest) -> Iterator[Executor]:
    config = EngineConfig(random=request.param, device="cuda", graphs=False, self_check=False)
    made = Executor.load(random_checkpoint(request.param, num_layers=4), config)
    print(request.param, made.device.facts())  # noqa: T201
    yield made
    made.close()


def normal(*shape: int, seed: int, dtype: torch.dtype = torch.float32) -> Tensor:
    generator = torch.Generator("cuda").manual_seed(seed)
    return torch.randn(*shape, generator=generator, device="cuda").to(dtype)


def poison() -> None:
    """Fills the memory that the next product will be given with NaN."""
    torch.full((1 << 28,), float("nan"), device="cuda", dtype=torch.bfloat16)


def distance(found: Tensor, expected: Tensor) -> float:
    """Relative L2."""
    return float((found.double() - expected).norm() / expected.norm())


def weights_of(executor: Executor) -> list[Tensor]:
    return executor.model.products()


def assert_rows_stand_alone(run: Callable[[slice], Tensor], whole: Tensor, name: str) -> None:
    """run: the product of a slice of the rows; from the first row on, and to the last."""
    for count in COUNTS:
        poison()
        assert torch.equal(run(slice(count)), whole[:count]), (name, count)
        last = slice(ROWS - count, ROWS)
        assert torch.equal(run(last), whole[last]), (name, count, "at the end")


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32], ids=["bf16", "fp32"])
def test_products(executor: Executor, dtype: torch.dtype) -> None:
    own = LinearPlan(own=frozenset(tuple(w.shape) for w in weights_of(executor)))
    for found in weights_of(executor):
        weight, shape = found.to(dtype), list(found.shape)
        x = normal(ROWS, shape[1], seed=0, dtype=dtype)
        poison()
        whole, library = linear(x, weight, own), linear(x, weight)
        exact = x.double() @ weight.double().T
        assert distance(whole, exact) < 1.01 * distance(library, exact) + 5e-6
        assert_rows_stand_alone(
            lambda part, x=x, weight=weight: linear(x[part], weight, own), whole, f"{shape}"
        )
        same = float((whole == library).double().mean())
        bits = "cuBLASLt's bits" if same == 1.0 else f"{same:.2%} of values have cuBLASLt's bits"
        print(f"{shape} {dtype}: {bits}")  # noqa: T201


@pytest.mark.parametrize("own", [False, True], ids=["library", "own"])
def test_products_that_are_added(executor: Executor, own: bool) -> None:
    shapes = executor.model.added()
    used = LinearPlan(own=frozenset(shapes)) if own else LinearPlan()
    for weight in weights_of(executor):
        if tuple(weight.shape) not in shapes:
            continue
        x = normal(ROWS, weight.shape[1], seed=0, dtype=torch.bfloat16)
        y = normal(ROWS, weight.shape[0], seed=1, dtype=torch.bfloat16)

        def added(part: slice, x=x, y=y, weight=weight) -> Tensor:  # type: ignore[no-untyped-def]
            sums = y[part].clone()
            add_linear(sums, x[part], weight, used)
            return sums

        poison()
        whole, product = added(slice(ROWS)), x.double() @ weight.double().T
        exact = y.double() + product
        # The product rounded to BF16, the sum rounded, and FP32 sums of K terms.
        terms = x.double().abs() @ weight.double().abs().T
        most = 2**-8 * (product.abs() + exact.abs()) + x.shape[1] ** 0.5 * 2**-24 * terms
        assert bool(((whole.double() - exact).abs() <= most).all())
        assert_rows_stand_alone(added, whole, f"{list(weight.shape)}")


@pytest.mark.parametrize("rank", RANKS)
def test_deltas(executor: Executor, rank: int) -> None:
    for weight in weights_of(executor):
        N, K = weight.shape
        x = normal(ROWS, K, seed=0, dtype=torch.bfloat16)
        y = normal(ROWS, N + 96, seed=1, dtype=torch.bfloat16)
        a, b = normal(rank, K, seed=2) * K**-0.5, normal(N, rank, seed=3) * rank**-0.5

        def added(part: slice, y=y, x=x, a=a, b=b, N=N) -> Tensor:  # type: ignore[no-untyped-def]
            sums = y[part].clone()
            add_lora(sums[:, 32 : 32 + N], x[part], a, b, scale=0.7)
            return sums

        poison()
        whole = added(slice(ROWS))
        exact = y[:, 32 : 32 + N].double() + 0.7 * (x.double() @ a.double().T @ b.double().T)
        terms = y[:, 32 : 32 + N].double().abs() + 0.7 * (
            x.double().abs() @ a.double().abs().T @ b.double().abs().T
        )
        # One rounding to BF16, and FP32 sums of K and of rank terms (at worst K + rank units).
        most = 2**-8 * exact.abs() + (K + rank) ** 0.5 * 2**-24 * terms
        assert bool(((whole[:, 32 : 32 + N].double() - exact).abs() <= most).all())
        assert torch.equal(whole[:, :32], y[:, :32])
        assert torch.equal(whole[:, 32 + N :], y[:, 32 + N :])
        assert_rows_stand_alone(added, whole, f"[{N}, {K}], rank {rank}")


def test_a_model_whose_products_all_fell_back(executor: Executor) -> None:
    before = executor.model.linear_plan
    shapes = {tuple(weight.shape) for weight in weights_of(executor)}
    executor.use(LinearPlan(own=frozenset(shapes)))
    executor.graphs = graphs.capture(executor, executor.config)
    try:
        rows = list(self_check(executor, full=False))
        assert [row for row in rows if not row.passed] == []
        assert sum(row.name == "Triton product" for row in rows) == len(executor.model.products())
    finally:
        executor.graphs = None
        executor.use(before)


def test_a_model_with_unmerged_deltas(demo: Path) -> None:
    config = EngineConfig(device="cuda", self_check=False)
    executor = Executor.load(open_checkpoint(str(demo), adapter="unmerged"), config)
    rows = list(self_check(executor, full=False))
    assert [row for row in rows if not row.passed] == []
    assert any(row.name == "delta" for row in rows)
    executor.close()
