"""Measures a running server with a workload: warm-up, passes, gates, and only then figures."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from adjudge.errors import ConfigError
from adjudge.progress import Progress
from adjudge.proof.answer_book import AnswerBook
from adjudge.proof.answers import AnswerCheck
from adjudge.proof.connection import Connection, Target
from adjudge.proof.evidence import Gate, gather
from adjudge.proof.idle_server import client_ms
from adjudge.proof.load import Load, Mode
from adjudge.proof.result import ServeResult
from adjudge.proof.summary import Summary
from adjudge.proof.workloads import Case, Workload

MOST_ALONE = 8
"""Questions that are asked again on their own, over the whole workload."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ServePlan:
    """What is measured. warm_up: requests before the first pass, not measured but checked;
    tokens_path: where a server counts tokens, if it does; peak_tokens_per_s: unique tokens that the
    device could do if it only multiplied matrices at its peak, None where that is not known;
    allow_inexact: answers may differ between passes; model: geometry or file hashes."""

    target: Target
    workload: Workload
    modes: Sequence[Mode]
    rounds: int = 3
    warm_up: int = 64
    path: str = "/v1/systemone"
    tokens_path: str = "/v1/systemone/tokens"
    timeout_s: float = 120.0
    tolerance: float = 1e-6
    allow_inexact: bool = False
    peak_tokens_per_s: float | None = None
    model: Mapping[str, Any] | None = None


@dataclass(frozen=True, slots=True)
class Outcome:
    """The gates, and the result if all of them passed."""

    gates: tuple[Gate, ...]
    result: ServeResult | None


def bench_serve(plan: ServePlan, progress: Progress) -> Outcome:
    """Runs a plan. Raises ConfigError when the server cannot be reached."""
    try:
        return asyncio.run(_Run(plan, progress).outcome())
    except OSError as error:
        host, port = plan.target.host, plan.target.port
        raise ConfigError(f"{host}:{port} cannot be reached ({error}); is it serving?") from None


class _Run:
    def __init__(self, plan: ServePlan, progress: Progress) -> None:
        self.plan = plan
        self.cases = plan.workload.cases
        self.progress = progress
        self.book = AnswerBook(self.cases)
        self.load = self._load(self.cases)

    def _load(self, cases: Sequence[Case]) -> Load:
        plan = self.plan
        check = AnswerCheck(plan.tolerance)
        return Load(
            plan.target,
            cases,
            check,
            path=plan.path,
            timeout_s=plan.timeout_s,
            progress=self.progress,
        )

    async def outcome(self) -> Outcome:
        plan = self.plan
        warmed = await self._warm_up()
        unique_tokens = await self._unique_tokens()
        order = [case for _ in range(plan.rounds) for case in range(len(self.cases))]
        measured = []
        for mode in plan.modes:
            samples, seconds = await self.load.run(mode, order)
            self.book.add(mode.name, samples, may_turn_away=mode.rate_per_s is not None)
            measured.append((mode, samples, seconds))
        gates = self.book.gates(allow_inexact=plan.allow_inexact)
        if not plan.allow_inexact and all(gate.passed for gate in gates):
            gates += await self._alone_gate()
        if not all(gate.passed for gate in gates):
            return Outcome(tuple(gates), None)
        workload, server = plan.workload, await self._server_facts()
        summary = Summary(self.cases, plan.rounds, unique_tokens, plan.peak_tokens_per_s)
        result = ServeResult(
            workload=workload.name,
            workload_sha256=workload.digest,
            vocabulary=workload.vocabulary,
            seed=workload.seed,
            requests=len(self.cases),
            candidates=sum(case.num_candidates for case in self.cases),
            model=self.book.model,
            warm_up_requests=warmed,
            client_ms=await client_ms(*self.book.sample()),
            peak_memory_mib=None,
            device_memory_mib=_device_memory_mib(server),
            passes=tuple(summary.of(mode, samples, seconds) for mode, samples, seconds in measured),
            quality=self.book.quality(),
            answers=self.book.answers(),
            answers_sha256=self.book.digest(),
            evidence=gather(gates=gates, model=plan.model, server=server),
        )
        return Outcome(tuple(gates), result)

    async def _server_facts(self) -> dict[str, Any]:
        """What the server says of itself; a route that it lacks is left out."""
        facts = {}
        for path in ("/version", "/v1/models", "/health"):
            value = await self._ask("GET", path)
            if value is not None:
                facts[path] = value
        return facts

    async def _ask(self, method: str, path: str, body: bytes = b"") -> Any:
        """Parsed JSON of a 200, else None."""
        connection = await Connection.open(self.plan.target)
        message = self.plan.target.message(method, path, body)
        reply = await connection.send(message, self.plan.timeout_s)
        connection.close()
        if reply.status != 200:
            return None
        try:
            return json.loads(reply.body)
        except ValueError:
            return None

    async def _warm_up(self) -> int:
        """Requests spread over the workload, at the greatest concurrency that is measured."""
        total = len(self.cases)
        count = min(self.plan.warm_up, total)
        order = [i * total // count for i in range(count)]
        most = max(mode.concurrency or 1 for mode in self.plan.modes)
        samples, _ = await self.load.run(Mode(concurrency=most), order, name="warm-up")
        self.book.add("warm-up", samples)
        return count

    async def _unique_tokens(self) -> dict[int, int] | None:
        """Case -> unique tokens of its request alone, from a server that counts them."""
        counts = {}
        for i, case in enumerate(self.cases):
            found = await self._ask("POST", self.plan.tokens_path, case.body)
            if not isinstance(found, dict) or not isinstance(found.get("unique_tokens"), int):
                return None
            counts[i] = found["unique_tokens"]
        return counts

    async def _alone_gate(self) -> list[Gate]:
        """Questions that were asked with others, asked alone: the answer must be the same."""
        asked = [
            (i, name)
            for i, case in enumerate(self.cases)
            for name in case.request["questions"]
            if case.num_questions > 1
        ]
        count = min(MOST_ALONE, len(asked))
        if not count:
            return []
        asked = [asked[i * len(asked) // count] for i in range(count)]
        alone = [_alone(self.cases[i], name) for i, name in asked]
        book = AnswerBook(alone)
        samples, _ = await self._load(alone).run(
            Mode(concurrency=1), range(count), name="questions alone"
        )
        book.add("alone", samples)
        name = "a question alone = among its siblings"
        for gate in book.gates(allow_inexact=False):
            if not gate.passed:
                return [Gate(name, False, gate.detail)]
        for i, (case, question) in enumerate(asked):
            if book.first(i)[question] != self.book.first(case)[question]:
                detail = f"{self.cases[case].id}, {question!r}: another answer"
                return [Gate(name, False, detail)]
        return [Gate(name, True, f"{count} questions")]


def _device_memory_mib(server: Mapping[str, Any]) -> int | None:
    """What our own server's health says that its engine took of the device at peak."""
    engine = server.get("/health", {}).get("engine")
    memory = engine.get("peak_memory_mib") if isinstance(engine, dict) else None
    return memory if isinstance(memory, int) else None


def _alone(case: Case, question: str) -> Case:
    request = {**case.request, "questions": {question: case.request["questions"][question]}}
    return replace(case, id=f"{case.id}, {question!r}", request=request, labels=None)
