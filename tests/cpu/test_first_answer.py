"""The first answer of an engine, cold, is that of any later time, whatever came between."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from adjudge import Engine, EngineConfig
from adjudge.errors import InvalidRequest, UsageError

NOUL = {"type": "noul", "instructions": "Is it late?"}
CHOICE = {"type": "choice", "instructions": "Who?", "criteria": {"a": None, "b": "bees", "c": "c"}}


def request(state: str, question: dict[str, Any]) -> dict[str, Any]:
    return {"state": state, "questions": {"q": question}}


THREE = [
    request("The parcel is late.", NOUL),
    request("The parcel is late. " * 20, CHOICE),
    request("Nothing happened.", CHOICE),
]


@pytest.mark.parametrize("first", range(3))
def test_the_first_answer_is_that_of_any_later_time(first: int, demo: Path) -> None:
    engine = Engine.load(str(demo), EngineConfig(device="cpu", max_batch_tokens=4096))

    def ask(body: dict[str, Any]) -> Any:
        return engine.decide(body)["answers"]

    cold = ask(THREE[first])
    warm = [ask(one) for one in THREE]
    assert warm[first] == cold
    assert [ask(one) for one in reversed(THREE)] == warm[::-1]
    ask(request("A long one. " * 200, CHOICE))
    assert [ask(one) for one in THREE] == warm
    with pytest.raises(UsageError):
        ask(request("Too long. " * 3000, NOUL))
    with pytest.raises(InvalidRequest):
        ask({"state": None, "questions": {}})
    assert [ask(one) for one in THREE] == warm
    assert len({str(one) for one in warm}) == 3
    engine.close()
