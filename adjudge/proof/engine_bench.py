"""Passes of a loaded engine over synthetic layouts, against their own matrix products.

First the exactness of this build on this device; then, for every layout, that the measured pass
gives each prompt the bits that it has alone; only then times.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from time import monotonic

import torch
from torch import Tensor

from adjudge.config import EngineConfig
from adjudge.engine import Engine, open_model
from adjudge.engine_door import TokenIds
from adjudge.errors import ConfigError
from adjudge.forest import Forest, count_rows, plan
from adjudge.progress import Progress
from adjudge.proof.asked import Asked
from adjudge.proof.clock import Clock, paired_ms
from adjudge.proof.evidence import Gate, gather, machine
from adjudge.proof.layouts import Shared
from adjudge.proof.op_times import op_times
from adjudge.proof.peaks import Peak, floor_ms, peak_of
from adjudge.proof.products import products_of, runner
from adjudge.proof.result import EngineResult, LayoutResult
from adjudge.proof.transformers_model import TransformersModel
from adjudge.self_check import self_check

SEED = 20_240
MOST_ALONE = 4
"""Prompts of a layout that are also run alone."""
MOST_PEER_TOKENS = 20_000
"""Prompt tokens above which transformers, which shares nothing, is not timed."""
PEER_DISTANCE = {torch.float32: 1e-3, torch.bfloat16: 0.1}
"""Relative L2 between two correct implementations' hidden states, with room to spare."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EnginePlan:
    """What is measured: layouts, repeats of each; with_transformers: the peer too."""

    config: EngineConfig
    layouts: Sequence[Shared | Asked]
    repeats: int
    with_transformers: bool = False


@dataclass(frozen=True, slots=True)
class Filled:
    """A layout's prompts."""

    name: str
    prompts: Sequence[TokenIds]

    @property
    def unique_tokens(self) -> int:
        return count_rows(self.prompts)

    @property
    def prompt_tokens(self) -> int:
        return sum(map(len, self.prompts))


@dataclass(frozen=True, slots=True)
class Outcome:
    """The gates, and the result if all of them passed."""

    gates: tuple[Gate, ...]
    result: EngineResult | None


def bench_engine(
    wanted: EnginePlan,
    load: Callable[[], Engine],
    progress: Progress,
    *,
    model: dict[str, object],
) -> Outcome:
    """Loads an engine, checks it, measures it. model: geometry or file hashes.

    Raises ConfigError for a layout that is larger than one pass, and what loading raises.
    """
    began = monotonic()
    engine = load()
    load_s = monotonic() - began
    try:
        return _Bench(wanted, engine, load_s, progress).outcome(model)
    finally:
        engine.close()


class _Bench:
    def __init__(
        self, wanted: EnginePlan, engine: Engine, load_s: float, progress: Progress
    ) -> None:
        self.wanted = wanted
        self.engine = engine
        self.executor = engine.executor
        self.device = engine.executor.device.torch_device
        self.load_s = load_s
        self.progress = progress
        self.peer: TransformersModel | None = None
        self.layouts = [self._filled(layout) for layout in wanted.layouts]

    def outcome(self, model: dict[str, object]) -> Outcome:
        layouts = self.layouts
        gates = [self.exactness()]
        for done, filled in enumerate(layouts):
            self.progress("layouts checked", done, len(layouts))
            gates.append(self.alone_gate(filled))
        self.progress("layouts checked", len(layouts), len(layouts))
        peak_memory_mib = self._peak_memory_mib()
        if self.wanted.with_transformers:
            config, dtype = self.wanted.config, self.executor.device.dtype
            self.peer = TransformersModel(open_model(config), self.device, dtype)
            gates.append(self.peer_gate())
        if not all(gate.passed for gate in gates):
            return Outcome(tuple(gates), None)
        measured = []
        for done, filled in enumerate(layouts):
            self.progress("layouts measured", done, len(layouts))
            measured.append(self.measure(filled))
        self.progress("layouts measured", len(layouts), len(layouts))
        result = EngineResult(
            model=self.engine.card.name,
            dtype=str(self.executor.device.dtype).removeprefix("torch."),
            repeats=self.wanted.repeats,
            load_s=self.load_s,
            peak_memory_mib=peak_memory_mib,
            layouts=tuple(measured),
            evidence=gather(gates=gates, model=model),
        )
        return Outcome(tuple(gates), result)

    def exactness(self) -> Gate:
        """The self-check, run now whatever was kept of an earlier one."""
        with torch.inference_mode():
            rows = list(self_check(self.executor, full=False))
        failed = [f"{row.name} {row.shape}: {row.detail}" for row in rows if not row.passed]
        detail = "; ".join(failed) or f"{len(rows)} comparisons"
        return Gate("rows are exact on this device", not failed, detail)

    def alone_gate(self, filled: Filled) -> Gate:
        """The pass to be measured against some of its prompts alone; finite, and not all alike."""
        name = f"{filled.name}: together = alone"
        prompts = filled.prompts
        count = min(MOST_ALONE, len(prompts))
        chosen = [i * len(prompts) // count for i in range(count)]
        together_PH = self._hidden(prompts)
        different = [
            i for i in chosen if not torch.equal(self._hidden([prompts[i]])[0], together_PH[i])
        ]
        if different:
            return Gate(name, False, f"prompts {different} differ")
        if not bool(torch.isfinite(together_PH).all()):
            return Gate(name, False, "hidden states are not finite")
        if len(prompts) > 1 and torch.equal(together_PH[0], together_PH[1]):
            return Gate(name, False, "two different prompts have one hidden state")
        return Gate(name, True, f"{count} prompts")

    def peer_gate(self) -> Gate:
        """Hidden states against transformers on the smallest layout's prompts."""
        smallest = min(self.layouts, key=lambda filled: filled.prompt_tokens)
        prompts = smallest.prompts[:MOST_ALONE]
        ours_PH = self._hidden(prompts).double()
        theirs_PH = torch.stack([self._peer(prompt) for prompt in prompts]).double()
        distance = float((ours_PH - theirs_PH).norm() / theirs_PH.norm())
        most = PEER_DISTANCE[self.executor.device.dtype]
        detail = f"{smallest.name}: relative L2 {distance:.2e}, at most {most:g}"
        return Gate("agrees with transformers", distance <= most, detail)

    def measure(self, filled: Filled) -> LayoutResult:
        """Times of one layout, once its gate was passed."""
        executor, model = self.executor, self.executor.model
        clock = Clock(self.device)
        laid = executor.prepare(plan(filled.prompts))
        graph = laid.bucket is not None
        products = products_of(model, laid.num_rows, laid.num_readouts)

        @torch.inference_mode()
        def whole() -> None:
            executor.hidden(laid)

        alone = runner(model, products, graph=graph)
        whole()
        alone()
        whole_ms, products_ms = paired_ms(clock, whole, alone, self.wanted.repeats)
        pass_ms, product_ms = statistics.median(whole_ms), statistics.median(products_ms)
        peak = self._peak()
        flops = 2 * model.config.product_weights * laid.num_rows
        return LayoutResult(
            name=filled.name,
            unique_tokens=laid.num_rows,
            padded_tokens=laid.padded_rows,
            prompt_tokens=filled.prompt_tokens,
            graph=graph,
            pass_ms=pass_ms,
            fastest_ms=min(whole_ms),
            products_ms=product_ms,
            ratio=pass_ms / product_ms,
            floor_ms=None if peak is None else floor_ms(model.config, laid.num_rows, peak),
            utilisation=None if peak is None else flops / (pass_ms / 1e3) / peak.flops,
            transformers_ms=self._peer_ms(filled, clock),
            ops=tuple(op_times(whole, self.device)),
        )

    def _peer_ms(self, filled: Filled, clock: Clock) -> float | None:
        """transformers on the layout's prompts, one after the other: it shares no prefix."""
        if self.peer is None or filled.prompt_tokens > MOST_PEER_TOKENS:
            return None

        def run() -> None:
            for prompt in filled.prompts:
                self._peer(prompt)

        run()
        return statistics.median(clock.ms(run) for _ in range(min(3, self.wanted.repeats)))

    def _peer(self, prompt: TokenIds) -> Tensor:
        if self.peer is None:
            raise RuntimeError("no transformers model was loaded")
        return self.peer.hidden(prompt)

    def _filled(self, layout: Shared | Asked) -> Filled:
        if isinstance(layout, Shared):
            self._must_fit(layout.name, layout.unique_tokens)
            vocab_size = self.executor.model.config.vocab_size
            return Filled(layout.name, layout.prompts(vocab_size, SEED))
        self._must_fit(layout.name, layout.state)
        filled = Filled(layout.name, layout.prompts(self.wanted.config, SEED))
        self._must_fit(layout.name, filled.unique_tokens)
        return filled

    def _must_fit(self, name: str, num_tokens: int) -> None:
        if num_tokens > self.engine.max_rows:
            raise ConfigError(
                f"the layout {name} has {num_tokens:,} tokens and a pass holds "
                f"{self.engine.max_rows:,}; raise --max-batch-tokens"
            )

    @torch.inference_mode()
    def _hidden(self, prompts: Sequence[TokenIds]) -> Tensor:
        """[P, H]: final hidden states in the prompts' order, by the path that is measured."""
        forest: Forest = plan(prompts)
        hidden_QH = self.executor.hidden(self.executor.prepare(forest))
        at = torch.from_numpy(forest.prompt_readout).long().to(self.device)
        return hidden_QH[at]

    def _peak(self) -> Peak | None:
        return peak_of(machine()) if self.device.type == "cuda" else None

    def _peak_memory_mib(self) -> int | None:
        """Of the device, as the allocator took it from the driver; None on a CPU."""
        if self.device.type != "cuda":
            return None
        return int(torch.cuda.max_memory_reserved(self.device)) >> 20
