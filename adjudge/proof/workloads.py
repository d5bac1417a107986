"""Requests to measure with: the workloads by name, each the same on every machine.

A workload of a given vocabulary and seed never changes: its digest is in every result, and
`adjudge compare` pairs only requests of equal digests.
"""

from __future__ import annotations

import hashlib
import json
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from importlib.resources import files
from typing import Any

from adjudge.proof.prose import Vocabulary
from adjudge.proof.writer import Writer


@dataclass(frozen=True, slots=True)
class Case:
    """One request. tokens: of its longest prompt as Open-Jev writes it, where that is known;
    labels: question -> what the answer should be, where that is known."""

    id: str
    group: str
    request: Mapping[str, Any]
    tokens: int | None = None
    labels: Mapping[str, Any] | None = None

    @property
    def body(self) -> bytes:
        """The request as it is sent: UTF-8 JSON."""
        return json.dumps(self.request, ensure_ascii=False).encode()

    @property
    def num_questions(self) -> int:
        return len(self.request["questions"])

    @property
    def num_candidates(self) -> int:
        """Prompts of the request: one per option or level, one for a noul."""
        return sum(
            1 if question["type"] == "noul" else len(question["criteria"])
            for question in self.request["questions"].values()
        )


@dataclass(frozen=True, slots=True)
class Workload:
    """Requests under a name. vocabulary: whose tokens the lengths are in, if they were made."""

    name: str
    cases: tuple[Case, ...]
    vocabulary: Vocabulary | None = None
    seed: int | None = None

    @property
    def digest(self) -> str:
        """SHA-256 over ids and bodies, in order."""
        total = hashlib.sha256()
        for case in self.cases:
            total.update(f"{case.id}\0{len(case.body)}\0".encode())
            total.update(case.body)
        return total.hexdigest()

    def sample(self, num_requests: int) -> Workload:
        """The workload cut to num_requests, evenly spread over its order; its name says so."""
        total = len(self.cases)
        if num_requests >= total:
            return self
        kept = tuple(self.cases[i * total // num_requests] for i in range(num_requests))
        return replace(self, name=f"{self.name}, {num_requests} of {total} requests", cases=kept)


def public231(vocabulary: Vocabulary, seed: int) -> list[Case]:
    """231 single-question requests in the shape of the public benchmark: kinds by token range,
    775 candidates in all; lengths within a range are log-uniform."""
    shape = json.loads(files("adjudge.proof").joinpath("public231_shape.json").read_text())
    rng = random.Random(f"public-231 {seed}")
    drawn = []
    for group in shape["groups"]:
        least, most = group["tokens"]
        for kind in ("choice", "noul", "score"):
            for _ in range(group[kind]):
                drawn.append((kind, (least, most)))
    counts = _candidate_counts([kind for kind, _ in drawn], shape["candidates"], rng)
    writer = Writer(vocabulary, rng)
    cases: list[Case] = []
    for (kind, (least, most)), count in zip(drawn, counts, strict=True):
        floor = max(least, writer.least_prompt_tokens(kind))
        tokens = round(floor * (max(most, floor) / floor) ** rng.random())
        request = writer.request(kind, count, tokens)
        cases.append(Case(f"{kind}-{len(cases):03}", f"{kind} {least}–{most}", request, tokens))
    rng.shuffle(cases)
    return cases


def _candidate_counts(kinds: Sequence[str], total: int, rng: random.Random) -> list[int]:
    """1 for a noul; 2–9 options and 2–8 levels else, nudged until the sum is the total."""
    most = {"choice": 9, "score": 8}
    counts = [1 if kind == "noul" else rng.randint(2, most[kind] - 1) for kind in kinds]
    while (missing := total - sum(counts)) != 0:
        i = rng.randrange(len(kinds))
        step = 1 if missing > 0 else -1
        if kinds[i] != "noul" and 2 <= counts[i] + step <= most[kinds[i]]:
            counts[i] += step
    return counts


def m1(vocabulary: Vocabulary, seed: int) -> list[Case]:
    """One choice question: 2, 8, 32, 128, 255 options over states of 256, 1,024, 3,072 tokens."""
    writer = Writer(vocabulary, random.Random(f"M1 {seed}"))
    cases = []
    for state in (256, 1024, 3072):
        for count in (2, 8, 32, 128, 255):
            questions = {"question": writer.question("choice", count, 25, 20, shortest=12)}
            request = {"state": writer.prose.state(state), "questions": questions}
            tokens = writer.prompt_tokens("choice", state, 25, 20)
            cases.append(Case(f"{state}+{count}", f"{count} options", request, tokens))
    return cases


def m2(vocabulary: Vocabulary, seed: int) -> list[Case]:
    """Many questions over one state: 4–12 questions, 7–50 candidates, states of 256–3,072."""
    rng = random.Random(f"M2 {seed}")
    writer = Writer(vocabulary, rng)
    cases = []
    for i in range(16):
        state = (256, 512, 1024, 3072)[i % 4]
        kinds = [rng.choice(("noul", "choice", "score")) for _ in range(rng.randint(4, 12))]
        counts = [1 if kind == "noul" else rng.randint(2, 5) for kind in kinds]
        counts[0], kinds[0] = max(counts[0], 7 - sum(counts[1:]), 2), "choice"
        cases.append(_many(f"{i:02}", f"state {state}", writer, state, kinds, counts))
    return cases


def m3(vocabulary: Vocabulary, seed: int) -> list[Case]:
    """One score question with 5 or 10 levels over 1,024 tokens."""
    writer = Writer(vocabulary, random.Random(f"M3 {seed}"))
    return [
        _many(f"{levels}-{i}", f"{levels} levels", writer, 1024, ["score"], [levels])
        for i in range(5)
        for levels in (5, 10)
    ]


def page_state(vocabulary: Vocabulary, seed: int) -> list[Case]:
    """One page of 3,000 tokens and 50 questions: 25 noul, 20 choice of 3–6, 5 score of 5."""
    rng = random.Random(f"page-state {seed}")
    kinds = ["noul"] * 25 + ["choice"] * 20 + ["score"] * 5
    rng.shuffle(kinds)
    counts = [{"noul": 1, "choice": rng.randint(3, 6), "score": 5}[kind] for kind in kinds]
    return [_many("page", "50 questions", Writer(vocabulary, rng), 3000, kinds, counts)]


def _many(
    name: str, group: str, writer: Writer, state: int, kinds: Sequence[str], counts: Sequence[int]
) -> Case:
    """A case of these questions over one state; instructions of 20 tokens, options of up to 16."""
    questions = {
        f"question {i}": writer.question(kind, count, 20, 16)
        for i, (kind, count) in enumerate(zip(kinds, counts, strict=True), start=1)
    }
    longest = max(writer.prompt_tokens(k, state, 20, 0 if k == "noul" else 16) for k in kinds)
    return Case(name, group, {"state": writer.prose.state(state), "questions": questions}, longest)


WORKLOADS: dict[str, Callable[[Vocabulary, int], list[Case]]] = {
    "public-231": public231,
    "m1": m1,
    "m2": m2,
    "m3": m3,
    "page-state": page_state,
}
"""Name -> cases of a vocabulary and a seed."""


def make_workload(name: str, vocabulary: Vocabulary, seed: int) -> Workload:
    """A workload by its name in WORKLOADS."""
    cases = WORKLOADS[name](vocabulary, seed)
    return Workload(name, tuple(cases), vocabulary, seed)
