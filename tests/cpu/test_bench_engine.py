"""`adjudge bench engine` on a small checkpoint, whole and with planted faults."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from adjudge.checkpoint import GEOMETRIES
from adjudge.cli import main
from adjudge.config import EngineConfig
from adjudge.engine import Engine
from adjudge.errors import ConfigError
from adjudge.executor import Executor
from adjudge.forest import count_rows, plan
from adjudge.layout import Layout
from adjudge.proof.asked import Asked
from adjudge.proof.engine_bench import SEED
from adjudge.proof.layouts import LAYOUTS, Shared
from adjudge.proof.peaks import PEAKS, floor_ms
from adjudge.proof.products import products_of
from adjudge.self_check import CheckRow

SMALL = ["--layout", "32x1", "40+9x5", "--repeats", "2"]


@pytest.fixture
def bench(
    demo: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> Callable[..., tuple[int, str, str]]:
    """Runs `bench engine` on the demo checkpoint. Returns exit code, output, errors."""

    def run(*words: str) -> tuple[int, str, str]:
        code = main(["bench", "engine", str(demo), *SMALL, *words])
        captured = capsys.readouterr()
        return code, captured.out, captured.err

    return run


def test_layouts_are_measured(bench: Callable[..., tuple[int, str, str]], tmp_path: Path) -> None:
    out = tmp_path / "result.json"
    code, shown, _ = bench("--transformers", "--adapter", "unmerged", "--ops", "--out", str(out))
    assert code == 0
    assert "40 + 9 × 5" in shown
    result = json.loads(out.read_text())
    one, shared = result["layouts"]
    assert (one["unique_tokens"], shared["unique_tokens"]) == (32, 85)
    assert shared["prompt_tokens"] == 5 * 49
    for layout in (one, shared):
        assert layout["pass_ms"] >= layout["fastest_ms"] > 0
        assert layout["ratio"] == pytest.approx(layout["pass_ms"] / layout["products_ms"])
        assert layout["transformers_ms"] > 0
        assert "matrix products" in {op["name"] for op in layout["ops"]}
    gates = {gate["name"]: gate for gate in result["evidence"]["gates"]}
    assert all(gate["passed"] for gate in gates.values())
    assert set(gates) == {
        "rows are exact on this device",
        "32 × 1: together = alone",
        "40 + 9 × 5: together = alone",
        "agrees with transformers",
    }
    assert len(result["evidence"]["model"]["files"]) > 3


@pytest.fixture
def company_matters(monkeypatch: pytest.MonkeyPatch) -> None:
    """Hidden states that depend, in one bit, on how many prompts are in the pass."""
    sound = Executor.hidden

    def hidden(self: Executor, plan: Layout) -> torch.Tensor:
        return sound(self, plan) * (1 + 2e-7 * (plan.num_readouts > 1))

    monkeypatch.setattr(Executor, "hidden", hidden)


@pytest.mark.usefixtures("company_matters")
def test_a_pass_that_depends_on_its_company_shows_no_figure(
    bench: Callable[..., tuple[int, str, str]], tmp_path: Path
) -> None:
    out = tmp_path / "result.json"
    code, shown, errors = bench("--out", str(out))
    assert (code, shown) == (1, "")
    assert not out.exists()
    assert "FAILED  40 + 9 × 5: together = alone: prompts" in errors


def test_a_failed_self_check_shows_no_figure(
    bench: Callable[..., tuple[int, str, str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    def failing(executor: Executor, *, full: bool) -> list[CheckRow]:
        return [CheckRow("product", "[4, 4]", "differs at [7] rows", False)]

    monkeypatch.setattr("adjudge.proof.engine_bench.self_check", failing)
    code, shown, errors = bench()
    assert (code, shown) == (1, "")
    assert "FAILED  rows are exact on this device: product [4, 4]: differs at [7] rows" in errors


def test_a_wrong_model_shows_no_figure(
    bench: Callable[..., tuple[int, str, str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    sound = Executor.hidden
    monkeypatch.setattr(Executor, "hidden", lambda self, plan: sound(self, plan) * 1.01)
    code, shown, errors = bench("--transformers")
    assert (code, shown) == (1, "")
    assert "FAILED  agrees with transformers" in errors


def test_a_layout_larger_than_a_pass_is_refused(
    bench: Callable[..., tuple[int, str, str]],
) -> None:
    code, _, errors = bench("--max-batch-tokens", "64")
    assert code == 2
    assert "85 tokens and a pass holds 64; raise --max-batch-tokens" in errors


@pytest.mark.parametrize(
    ("layout", "message"),
    [
        ("9999999999x1", "has 9,999,999,999 tokens and a pass holds"),
        ("open_jev:99999999+1x2", "has 99,999,999 tokens and a pass holds"),
        ("1x1100", "has more prompts than the vocabulary has tokens"),
    ],
)
def test_a_layout_that_cannot_be_is_refused_before_it_is_made(
    bench: Callable[..., tuple[int, str, str]], layout: str, message: str
) -> None:
    code, _, errors = bench("--layout", layout)
    assert code == 2 and message in errors


def test_a_result_that_could_not_be_written_is_refused_before_it_is_made(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for out in (tmp_path, tmp_path / "missing" / "x.json"):
        with pytest.raises(SystemExit) as found:
            main(["bench", "engine", "--out", str(out)])
        assert found.value.code == 2
        assert f"{out} cannot be written" in capsys.readouterr().err


class Multiplied(TorchDispatchMode):
    """Collects the shape (rows, inputs, outputs) of every matrix product with a weight."""

    def __init__(self) -> None:
        super().__init__()
        self.shapes: Counter[tuple[int, ...]] = Counter()

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: Any = None
    ) -> Any:
        if func.overloadpacket in (torch.ops.aten.linear, torch.ops.mkldnn._linear_pointwise):
            x, weight = args[:2]
            self.shapes[x.shape[0], x.shape[1], weight.shape[0]] += 1
        return func(*args, **(kwargs or {}))


def test_products_are_those_of_the_forward(demo: Path) -> None:
    engine = Engine.load(str(demo), EngineConfig(self_check=False))
    model = engine.executor.model
    # 128 rows and 64 readouts are sizes that products run with as they are.
    prompts = [np.array([7, i + 100, i + 200], np.int32) for i in range(63)]
    prompts.append(np.array([7, 99], np.int32))
    laid = engine.executor.prepare(plan(prompts))
    assert (laid.num_rows, laid.num_readouts) == (128, 64)
    with Multiplied() as seen:
        engine.executor.hidden(laid)
    expected = Counter(
        (rows, projection.weight_NK.shape[1], projection.weight_NK.shape[0])
        for projection, rows in products_of(model, 128, 64)
    )
    assert seen.shapes == expected
    engine.close()


def test_a_layout_of_a_family_is_what_it_makes_of_a_request(
    demo: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Decider's rows on other weights: the state is shared, once, and each question is a row."""
    out = tmp_path / "result.json"
    words = ["--layout", "decider:90+3x4", "32x1", "--repeats", "1", "--out", str(out)]
    assert main(["bench", "engine", str(demo), *words]) == 0
    assert "decider: 90 + 3 × 4 options" in capsys.readouterr().out
    asked, _ = json.loads(out.read_text())["layouts"]
    prompts = Asked("decider", 90, 3, 4).prompts(EngineConfig(model=str(demo)), SEED)
    assert asked["prompt_tokens"] == sum(map(len, prompts))
    assert asked["unique_tokens"] == count_rows(prompts)
    shared = len("Context:\n") + 90 + len("\n\nQuestion: ")
    apart = sum(len(prompt) - shared for prompt in prompts)
    assert len(prompts) == 3 and apart - 10 < asked["unique_tokens"] - shared <= apart
    assert {32, 33, 34, 35} <= set(prompts[0].tolist())


@pytest.mark.parametrize(
    "text", ["tarot:10+2x2", "decider:10+2", "decider:0+2x2", "decider:10x2", "decider:"]
)
def test_a_layout_of_no_family_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match=r"takes FAMILY:STATE\+QUESTIONSxOPTIONS .* decider"):
        Asked.of(text)


def test_a_request_that_a_family_does_not_take_is_refused(
    demo: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["bench", "engine", str(demo), "--layout", "cua_s1:90+1x27"]) == 2
    assert "27 options; this model takes 1 to 26" in capsys.readouterr().err


def test_layout_spellings() -> None:
    assert Shared.of("1,024 + 38 × 32") == Shared(1024, 38, 32)
    assert [shared.unique_tokens for shared in LAYOUTS] == [
        64, 128, 512, 2048, 4096, 640, 4096, 240, 816, 2240, 9946, 12762,
    ]  # fmt: skip
    for shared in LAYOUTS[7:]:
        assert count_rows(shared.prompts(1000, 0)) == shared.unique_tokens
    assert Shared.of("0+64X1") == Shared.of("64x1") == Shared(0, 64, 1)
    assert [Shared.of(shared.spelling) for shared in LAYOUTS] == list(LAYOUTS)
    for text in ("38", "1+2+3", "0x4", "4x0", "x4"):
        with pytest.raises(ConfigError, match="it takes PREFIX"):
            Shared.of(text)


@pytest.mark.parametrize(
    "geometry, gigabytes, floors",
    [("9b", 13.84, {64: 3.2, 512: 9.0, 4096: 71.7}), ("27b", 48.70, {64: 11.3, 1024: 63.1})],
)
def test_floors_are_those_of_the_design(
    geometry: str, gigabytes: float, floors: dict[int, float]
) -> None:
    config = GEOMETRIES[geometry]
    assert config.product_weights * 2 / 1e9 == pytest.approx(gigabytes, abs=0.005)
    for tokens, expected in floors.items():
        assert floor_ms(config, tokens, PEAKS["NVIDIA H200"]) == pytest.approx(expected, abs=0.05)
