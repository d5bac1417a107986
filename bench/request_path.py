"""Where the time of one short request goes, at one request at a time: each step outside and
inside the engine, from the client's send to its checked answer, without a gap.

Run it: python bench/request_path.py [FOLDER] [--random 9b] [--requests 300]. The server is a
process of its own; both sides read the same monotonic clock. Prints the machine, a table and one
JSON line last. Every answer is checked, and must have the bytes of the first.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

from adjudge.commands.load import with_model
from adjudge.config import EngineConfig, ServiceConfig
from adjudge.engine import Engine
from adjudge.engine_door import Logits, Pass, Work
from adjudge.executor import Executor
from adjudge.layout import Layout
from adjudge.origins import add_flags, resolve
from adjudge.proof.answers import AnswerCheck
from adjudge.proof.connection import Connection, Target
from adjudge.proof.evidence import build, machine
from adjudge.proof.workloads import Case
from adjudge.proof.writer import Writer
from adjudge.service import serve
from adjudge.sources import libraries
from adjudge.state import Carry
from adjudge.wire import Response

WARM_UP = 50
STEPS = (
    "send, HTTP, JSON to compile",
    "compile: prompts and tokens",
    "hand over to the worker",
    "prepare: forest and tables",
    "run: forward on the device",
    "run: around the forward",
    "hand back to the loop",
    "answer: calibrate, normalise",
    "encode, HTTP, client's check",
)

Span = tuple[str, float, float]
"""What, and its begin and end on the monotonic clock."""


class TimedEngine(Engine):
    """An engine that notes when its verbs were called, and writes that down when it is closed."""

    spans: list[Span]
    written_to: Path

    def compile(self, request: Any) -> Work:
        begin = time.perf_counter()
        work = super().compile(request)
        self.spans.append(("compile", begin, time.perf_counter()))
        return work

    def prepare(self, items: Any) -> Any:
        begin = time.perf_counter()
        plan = super().prepare(items)
        self.spans.append(("prepare", begin, time.perf_counter()))
        return plan

    def run(self, plan: Any) -> Pass:
        begin = time.perf_counter()
        done = super().run(plan)
        end = time.perf_counter()
        self.spans.append(("run", begin, end))
        self.spans.append(("forward", begin, begin + forward_seconds()))
        return done

    def answer(self, work: Work, logits: Sequence[Logits], metadata: Mapping[str, Any]) -> Response:
        begin = time.perf_counter()
        response = super().answer(work, logits, metadata)
        self.spans.append(("answer", begin, time.perf_counter()))
        return response

    def close(self) -> None:
        self.written_to.write_text(json.dumps(self.spans))
        super().close()


def timed_hidden(plain: Any) -> tuple[Any, Any]:
    """Executor.hidden with its last time noted, and a function that tells it in seconds."""
    import torch

    last: dict[str, Any] = {}

    def hidden(self: Executor, plan: Layout, carry: Carry | None = None) -> Any:
        if not self.device.is_cuda:
            begin = time.perf_counter()
            found = plain(self, plan, carry)
            last["seconds"] = time.perf_counter() - begin
            return found
        last["events"] = [torch.cuda.Event(enable_timing=True) for _ in range(2)]
        last["events"][0].record()
        found = plain(self, plan, carry)
        last["events"][1].record()
        return found

    def seconds() -> float:
        if "events" not in last:
            return float(last["seconds"])
        return float(last["events"][0].elapsed_time(last["events"][1])) / 1e3

    return hidden, seconds


def serve_timed(config: EngineConfig, written_to: Path) -> int:
    global forward_seconds
    Executor.hidden, forward_seconds = timed_hidden(Executor.hidden)  # type: ignore[method-assign]

    def load() -> Engine:
        engine = TimedEngine.load(config.model, config)
        engine.spans, engine.written_to = [], written_to
        return engine

    return serve(load, ServiceConfig(port=0, log_level="error"))


async def ask(url: str, case: Case, num_requests: int) -> list[tuple[float, float]]:
    """Begin and end of each request after the warm-up. Raises ValueError for a wrong answer."""
    target, check = Target.of(url), AnswerCheck()
    message = target.message("POST", "/v1/systemone", case.body)
    connection = await Connection.open(target)
    first, spans = None, []
    for _ in range(WARM_UP + num_requests):
        begin = time.perf_counter()
        reply = await connection.send(message, 60.0)
        answers = check.check(case, reply.body).answers_json
        spans.append((begin, time.perf_counter()))
        if first not in (None, answers):
            raise ValueError("an answer had not the bytes of the first")
        first = answers
    connection.close()
    return spans[WARM_UP:]


def steps_ms(asked: tuple[float, float], spans: Sequence[Span]) -> list[float]:
    """STEPS of one request, from the spans that lie in its time."""
    inside = {name: (b, e) for name, b, e in spans if asked[0] <= b and e <= asked[1]}
    compiled, prepared, ran, answered = (
        inside[name] for name in ("compile", "prepare", "run", "answer")
    )
    forward = inside["forward"][1] - inside["forward"][0]
    seconds = [
        compiled[0] - asked[0],
        compiled[1] - compiled[0],
        prepared[0] - compiled[1],
        prepared[1] - prepared[0],
        forward,
        ran[1] - prepared[1] - forward,
        answered[0] - ran[1],
        answered[1] - answered[0],
        asked[1] - answered[1],
    ]
    return [1e3 * one for one in seconds]


def short_case(config: EngineConfig, tokens: int) -> Case:
    """One choice of four options with prompts of up to `tokens` tokens."""
    vocabulary = "qwen" if config.random is not None else "bytes"
    request = Writer(vocabulary, random.Random(0)).request("choice", 4, tokens)
    return Case("short", "choice", request, tokens)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model", nargs="?", default=argparse.SUPPRESS, metavar="FOLDER")
    parser.add_argument("--requests", type=int, default=300)
    parser.add_argument("--tokens", type=int, default=300, help="of the longest prompt")
    parser.add_argument("--serve", type=Path, help=argparse.SUPPRESS)
    add_flags(parser, ["engine"], leave_out=["model"])
    arguments = parser.parse_args()
    config = with_model(resolve(vars(arguments), os.environ).engine)
    if arguments.serve is not None:
        return serve_timed(config, arguments.serve)
    case = short_case(config, arguments.tokens)
    with tempfile.TemporaryDirectory() as folder:
        written = Path(folder) / "spans.json"
        words = [sys.executable, __file__, *sys.argv[1:], "--serve", str(written)]
        with subprocess.Popen(words, stdout=subprocess.PIPE, text=True) as server:
            try:
                line = server.stdout.readline() if server.stdout else ""
                url = line.strip().partition(" ")[2]
                asked = asyncio.run(ask(url, case, arguments.requests))
            finally:
                server.terminate()
        spans = [(name, begin, end) for name, begin, end in json.loads(written.read_text())]
    steps = list(zip(*(steps_ms(one, spans) for one in asked), strict=True))
    medians = {name: statistics.median(times) for name, times in zip(STEPS, steps, strict=True)}
    total = statistics.median(1e3 * (end - begin) for begin, end in asked)
    print(f"{machine().name}, {case.tokens} tokens, 4 candidates, {len(asked)} requests, medians")
    for name, ms in medians.items():
        print(f"{name:32} {ms:8.3f} ms")
    print(f"{'whole request':32} {total:8.3f} ms")
    outside = total - medians["run: forward on the device"]
    print(f"{'of it outside the forward':32} {outside:8.3f} ms")
    facts = {
        "bench": "request_path", "tokens": case.tokens, "requests": len(asked), "total_ms": total,
        "outside_forward_ms": outside, "steps_ms": medians, "machine": asdict(machine()),
        "libraries": libraries(), "build": asdict(build()),
    }  # fmt: skip
    print(json.dumps(facts))
    return 0


if __name__ == "__main__":
    sys.exit(main())
