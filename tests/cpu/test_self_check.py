"""The self-check on a small checkpoint: what falls back, what is refused, what is kept.

A fixture lets the CPU pass for a GPU, where the Triton product may take a shape over; it runs in
Triton's interpreter.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal, cast

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.nn import functional

import adjudge
from adjudge import graphs, self_check
from adjudge.buckets import Bucket
from adjudge.checkpoint import open_checkpoint
from adjudge.config import EngineConfig
from adjudge.device import Device
from adjudge.errors import DeviceError
from adjudge.executor import Executor
from adjudge.forest import plan
from adjudge.models import projection, qwen3_5
from adjudge.ops import cpu_products, linear
from adjudge.ops.tables import Tables
from adjudge.self_check import CheckRow, kept, op_check, pass_check, product_check

pytest.importorskip("triton")
from adjudge.ops import triton_products

pytestmark = pytest.mark.filterwarnings("ignore:Conversion of an array:DeprecationWarning")

CONFIG = EngineConfig(device="cpu", self_check=False)


def load(folder: Path, adapter: Literal["merged", "unmerged"] = "merged") -> Executor:
    return Executor.load(open_checkpoint(str(folder), adapter=adapter), CONFIG)


@pytest.fixture
def executor(demo: Path, monkeypatch: pytest.MonkeyPatch) -> Executor:
    """With plain weights, as a GPU has them."""
    monkeypatch.setattr(projection, "packed", lambda weight_NK: weight_NK)
    return load(demo)


@pytest.fixture
def as_a_gpu(executor: Executor, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """The loaded executor's device passes for a GPU; the folder where results are kept."""
    monkeypatch.setattr(Device, "is_cuda", property(lambda self: True))
    monkeypatch.setattr(Device, "name", property(lambda self: "a CPU"))
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (0, 0))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    reference = op_check.gated_delta

    def known(x: Tensor, conv: Tensor, A: Tensor, dt: Tensor, on: Tables, **sizes: Any) -> Tensor:
        """A CPU is told how many runs a level has, where kernels read it from a table."""
        level_runs = tuple(on.level_start_L.diff().tolist())
        return reference(x, conv, A, dt, replace(on, level_runs=level_runs), **sizes)

    monkeypatch.setattr(op_check, "gated_delta", known)
    return tmp_path


@pytest.fixture
def fickle(executor: Executor, monkeypatch: pytest.MonkeyPatch) -> tuple[int, ...]:
    """The shape of `down`, whose library product has other sums for the smallest block."""
    shape = tuple(executor.model.layers[0].down.weight_NK.shape)
    product, smallest = functional.linear, min(executor.model.linear_plan.blocks)

    def other(x: Tensor, weight: Tensor) -> Tensor:
        y = product(x, weight)
        return y * (1 + 2**-20) if (tuple(weight.shape), len(x)) == (shape, smallest) else y

    monkeypatch.setattr(linear.functional, "linear", other)
    return shape


def row_by_row(x: Tensor, weight: Tensor) -> Tensor:
    """In place of the interpreter, where a row's bits depend on its place in a tile."""
    return torch.cat([row[None] @ weight.T for row in x])


@pytest.mark.usefixtures("as_a_gpu")
def test_a_shape_that_fails_falls_to_the_triton_product_and_stays_there(
    executor: Executor, fickle: tuple[int, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    fresh = replace(executor)
    monkeypatch.setattr(triton_products, "linear", row_by_row)
    found = self_check.at_load(executor, CONFIG)
    expected = {"self_check": "passed", "fallback_products": [list(fickle)]}
    assert found == {**expected, "self_check_kept": False}
    assert executor.model.linear_plan.own == {fickle}

    def never(executor: Executor, *, full: bool) -> Iterator[CheckRow]:
        raise AssertionError("the check ran although its result is kept")

    monkeypatch.setattr(self_check, "self_check", never)
    assert fresh.model.linear_plan.own == frozenset()
    assert self_check.at_load(fresh, CONFIG) == {**expected, "self_check_kept": True}
    assert fresh.model.linear_plan == executor.model.linear_plan


@pytest.mark.usefixtures("as_a_gpu")
def test_the_report_says_what_fell_back(executor: Executor, fickle: tuple[int, ...]) -> None:
    rows = list(product_check.products(executor, (1, 600)))
    assert all(row.passed for row in rows)
    (fallen,) = (row for row in rows if row.name != "product")
    assert (fallen.name, fallen.shape) == ("Triton product", f"{list(fickle)}")
    assert fallen.detail == "2 row counts; the library's differs at [1] rows"
    again = list(product_check.products(executor, (1, 600)))
    assert [row.shape for row in again if row.name == "Triton product"] == [f"{list(fickle)}"]


@pytest.mark.usefixtures("as_a_gpu")
def test_a_product_that_fails_only_where_it_is_added_is_added_apart_and_stays_so(
    executor: Executor, monkeypatch: pytest.MonkeyPatch
) -> None:
    fresh = replace(executor)
    shape = tuple(executor.model.layers[0].down.weight_NK.shape)

    def other(y: Tensor, x: Tensor, weight: Tensor, plan: linear.LinearPlan) -> None:
        linear.add_linear(y, x, weight, plan)
        if tuple(weight.shape) == shape and len(x) == 1:
            y.mul_(1 + 2**-20)

    monkeypatch.setattr(product_check, "add_linear", other)
    rows = list(product_check.products(executor, (1, 600)))
    assert all(row.passed and row.name == "product" for row in rows)
    (apart,) = (row for row in rows if "apart" in row.detail)
    assert apart.shape == f"{list(shape)}"
    assert apart.detail.endswith("added apart, since the library's sum differs at [1] rows")
    assert executor.model.linear_plan.apart == {shape}
    before = executor.model.linear_plan
    found = self_check.at_load(executor, CONFIG)
    assert found["self_check_kept"] is False
    assert found["products_added_apart"] == [list(shape)]
    again = list(product_check.products(executor, (1, 600)))
    assert [row.shape for row in again if row.detail.endswith("; added apart")] == [
        f"{list(shape)}"
    ]
    assert self_check.at_load(fresh, CONFIG)["self_check_kept"] is True
    assert fresh.model.linear_plan == before


@pytest.mark.usefixtures("as_a_gpu")
@pytest.mark.parametrize("op", ["gated_delta", "tree_attention"])
@pytest.mark.parametrize("row", [9, -1])
def test_a_kernel_that_is_wrong_alike_everywhere_is_refused(
    executor: Executor, op: str, row: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One head of one of many rows suffices, and no flag lets it pass."""
    executor.device.dtype = torch.bfloat16
    assert [row.passed for row in op_check.ops(executor)] == [True] * 7
    sound = getattr(op_check, op)

    def wrong(x: Tensor, *others: Any, **sizes: Any) -> Tensor:
        found: Tensor = sound(x, *others, **sizes)
        if x.dtype == executor.device.dtype:
            found[row, 0] = 0.0
        return found

    monkeypatch.setattr(op_check, op, wrong)
    failed = [row.shape for row in op_check.ops(executor) if not row.passed]
    assert (
        failed
        == {
            "gated_delta": [
                f"delta rule, {name}" for name in ("one prompt", "together", "as captured")
            ],
            "tree_attention": [
                f"attention, {name}"
                for name in ("one prompt", "together", "in a large pass", "read out")
            ],
        }[op]
    )
    with pytest.raises(DeviceError, match="kernels compute something else than they should"):
        self_check.at_load(executor, replace(CONFIG, allow_inexact=True))


@pytest.mark.usefixtures("as_a_gpu")
def test_a_model_may_have_no_delta_rule(executor: Executor) -> None:
    layers = executor.model.layers
    executor.model = replace(executor.model, layers=layers[-1:])
    assert isinstance(layers[-1].mixer, qwen3_5.Attention)
    rows = list(op_check.ops(executor))
    assert len(rows) == 4 and all(row.shape.startswith("attention, ") for row in rows)
    assert op_check.num_ops(executor) == len(rows)


@pytest.mark.usefixtures("as_a_gpu", "fickle")
def test_what_fails_twice_is_refused(executor: Executor, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        triton_products, "linear", lambda x, weight: row_by_row(x, weight) + (len(x) == 7)
    )
    with pytest.raises(DeviceError, match=r"differs at \[7\] rows; the library's differs at \[1,"):
        self_check.at_load(executor, CONFIG)
    assert executor.model.linear_plan.own == frozenset()


@pytest.mark.usefixtures("fickle")
def test_a_cpu_has_nothing_to_fall_back_to(executor: Executor) -> None:
    with pytest.raises(DeviceError, match=r"product .*: differs at \[1, 2, 7, 16, 31"):
        self_check.at_load(executor, CONFIG)
    found = self_check.at_load(executor, replace(CONFIG, allow_inexact=True))
    assert found["self_check"] == "failed" and "differs at" in found["inexact"]


@pytest.mark.parametrize("damage", ["", "[]", '{"own": [[1]]}', '{"own": 3}', "\0"])
def test_a_damaged_result_is_no_result(
    executor: Executor, as_a_gpu: Path, damage: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    passed = [CheckRow("product", "[4, 4]", "2 row counts", True)]
    monkeypatch.setattr(self_check, "self_check", lambda executor, *, full: iter(passed))
    assert self_check.at_load(executor, CONFIG)["self_check_kept"] is False
    (result,) = (as_a_gpu / "adjudge" / "self_check").iterdir()
    result.write_text(damage)
    assert self_check.at_load(executor, CONFIG)["self_check_kept"] is False
    assert self_check.at_load(executor, CONFIG)["self_check_kept"] is True


@pytest.mark.usefixtures("as_a_gpu")
def test_another_check_does_not_take_the_result_of_this_one(
    executor: Executor, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = kept.kept_file(executor)
    assert kept.kept_file(executor) == before
    (tmp_path / "ops").mkdir()
    (tmp_path / "ops" / "scan.py").write_text("DEEP = (3,)")
    for changed in (
        lambda m: m.setattr(adjudge, "__file__", str(tmp_path / "__init__.py")),
        lambda m: m.setattr(kept, "libraries", lambda: {"nvidia-cublas": "0"}),
        lambda m: m.setattr(kept, "DRIVER", tmp_path / "ops" / "scan.py"),
        lambda m: m.setenv("CUBLAS_WORKSPACE_CONFIG", ":16:8"),
    ):
        with monkeypatch.context() as changing:
            changed(changing)
            assert kept.kept_file(executor) != before
    assert kept.kept_file(executor) == before


def test_a_start_without_a_cache_is_no_failure(
    executor: Executor, as_a_gpu: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(self_check, "self_check", lambda executor, *, full: iter(()))
    (as_a_gpu / "adjudge").write_text("a file where a folder should be")
    assert self_check.at_load(executor, CONFIG)["self_check"] == "passed"


def test_progress_comes_while_checks_run(
    executor: Executor, monkeypatch: pytest.MonkeyPatch
) -> None:
    events: list[object] = []
    sound = self_check.self_check

    def watched(executor: Executor, *, full: bool) -> Iterator[CheckRow]:
        for row in sound(executor, full=full):
            events.append(row)
            yield row

    monkeypatch.setattr(self_check, "self_check", watched)
    self_check.at_load(executor, CONFIG, progress=lambda *step: events.append(step))
    total = self_check.num_comparisons(executor, full=False)
    assert [type(event) for event in events] == [CheckRow, tuple] * total
    assert events[1::2] == [("self-check", done + 1, total) for done in range(total)]


def test_unmerged_deltas_are_proved(demo: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    executor = load(demo, "unmerged")
    pairs = {
        (tuple(delta.a_LK.shape), tuple(delta.b_NL.shape))
        for projection in executor.model.projections()
        for delta in projection.deltas
    }
    rows = list(product_check.deltas(executor, (1, 33)))
    assert {row.shape for row in rows} == {f"{list(a)}, {list(b)}" for a, b in pairs}
    assert rows and all(row.passed for row in rows)
    sound = linear.add_lora
    monkeypatch.setattr(
        product_check,
        "add_lora",
        lambda y, x, a, b, *, scale, plan: sound(y, x, a, b, scale=scale * len(x), plan=plan),
    )
    assert [row.detail for row in product_check.deltas(executor, (1, 33))] == (
        ["differs at [1] rows"] * len(rows)
    )


def test_a_cpu_proves_the_products_that_its_passes_use(
    executor: Executor, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cpu_products, "faithful", lambda: True)
    product, used = functional.linear, set()

    def watched(x: Tensor, weight: Tensor) -> Tensor:
        used.add(torch.backends.mkldnn.matmul.fp32_precision)
        return product(x, weight)

    monkeypatch.setattr(linear.functional, "linear", watched)
    before = torch.backends.mkldnn.matmul.fp32_precision
    for _ in product_check.products(executor, (32, 64)):
        assert torch.backends.mkldnn.matmul.fp32_precision == before
    by_passes, used = used, set()
    list(pass_check.passes(executor, seeds=(0,)))
    assert by_passes == used == {"bf16"}


def test_a_capture_that_fails_is_counted_and_survived(
    executor: Executor, monkeypatch: pytest.MonkeyPatch
) -> None:
    tried: list[Bucket] = []

    def capture(executor: Executor, bucket: Bucket, *_: object) -> graphs.Captured:
        tried.append(bucket)
        if bucket.rows == 64:
            raise torch.cuda.OutOfMemoryError("none left")
        return cast("graphs.Captured", bucket)

    monkeypatch.setattr(graphs, "_capture", capture)
    monkeypatch.setattr(torch.cuda, "graph_pool_handle", lambda: None)
    monkeypatch.setattr(torch.cuda, "Stream", lambda device: None)
    executor.graphs = made = graphs.capture(executor, replace(CONFIG, max_batch_tokens=96))
    failed = [bucket for bucket in tried if bucket.rows == 64]
    assert list(made.captured) == [bucket for bucket in reversed(tried) if bucket not in failed]
    assert (made.num_captures, made.num_failures) == (len(tried) - len(failed), len(failed))
    assert executor.health()["capture_failures"] == len(failed) > 0
    short = made.bucket(plan([np.arange(1, 9, dtype=np.int32)]))
    assert short is not None and short.rows == 80


def test_graphs_of_another_plan_are_captured_again(
    executor: Executor, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[tuple[linear.LinearPlan, graphs.Graphs | None]] = []

    def capture(executor: Executor, config: EngineConfig) -> graphs.Graphs:
        seen.append((executor.model.linear_plan, executor.graphs))
        return graphs.Graphs(torch.empty(0), 0)

    monkeypatch.setattr(graphs, "capture", capture)
    plan = replace(executor.model.linear_plan, own=frozenset({(4, 4)}))
    executor.use(plan)
    assert seen == []
    executor.graphs = first = graphs.Graphs(torch.empty(0), 0)
    executor.use(plan)
    assert executor.graphs is first
    executor.use(replace(plan, own=frozenset()))
    assert seen == [(replace(plan, own=frozenset()), None)]
    assert executor.graphs is not first
