"""One caller's rate: steady, a second's worth at once, apart from other callers."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from adjudge.errors import RateLimited
from adjudge.service.rates import MAX_CALLERS, Rates


class Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


def passes(rates: Rates, caller: object = "a") -> int | None:
    """None, or the milliseconds to wait."""
    try:
        rates.check(caller)  # type: ignore[arg-type]
    except RateLimited as error:
        return error.retry_after_ms
    return None


def test_a_seconds_worth_at_once_and_then_one_for_one() -> None:
    clock = Clock()
    rates = Rates(4, clock=clock)
    assert [passes(rates) for _ in range(6)] == [None] * 4 + [250, 250]
    clock.now += 0.25
    assert [passes(rates) for _ in range(2)] == [None, 250]
    clock.now += 60
    assert [passes(rates) for _ in range(5)] == [None] * 4 + [250]


def test_a_rate_below_one_a_second() -> None:
    clock = Clock()
    rates = Rates(0.1, clock=clock)
    assert [passes(rates) for _ in range(2)] == [None, 10_000]
    clock.now += 10
    assert passes(rates) is None


def test_callers_do_not_share_and_the_idle_are_forgotten() -> None:
    clock = Clock()
    rates = Rates(1, clock=clock)
    for number in range(MAX_CALLERS):
        assert passes(rates, number) is None
    assert passes(rates, 0) == 1000
    clock.now += 2
    assert passes(rates, "new") is None
    assert len(rates._due) == 1


def test_no_rate_refuses_nobody() -> None:
    rates = Rates(None)
    assert not rates
    assert {passes(rates) for _ in range(1000)} == {None}


@given(rate=st.floats(0.01, 1000), gaps=st.lists(st.floats(0, 5), min_size=1, max_size=60))
def test_whoever_waits_as_told_passes_and_no_window_holds_more(
    rate: float, gaps: list[float]
) -> None:
    clock = Clock()
    rates = Rates(rate, clock=clock)
    passed: list[float] = []
    for gap in gaps:
        clock.now += gap
        wait_ms = passes(rates)
        if wait_ms is not None:
            clock.now += wait_ms / 1000
            assert passes(rates) is None
        passed.append(clock.now)
    for first in range(len(passed)):
        for last in range(first, len(passed)):
            span = passed[last] - passed[first]
            assert last - first + 1 <= max(1.0, rate) + span * rate + 1e-3


def test_the_refusal_says_the_rate() -> None:
    rates = Rates(2, clock=Clock())
    rates.check("a")
    rates.check("a")
    with pytest.raises(RateLimited, match="more than 2 requests a second"):
        rates.check("a")
