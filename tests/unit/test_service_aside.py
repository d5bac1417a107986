"""Threads for work beside the event loop: order, what is dropped, and the end."""

from __future__ import annotations

import gc
import threading
import weakref
from collections.abc import Iterator
from concurrent.futures import CancelledError, Future
from contextlib import contextmanager

import pytest

from adjudge.service.aside import Aside
from tests.service_rig import SOON


@contextmanager
def held() -> Iterator[tuple[Aside, Future[bool], threading.Event]]:
    """One thread, busy until the event is set."""
    aside, began, gate = Aside(1), threading.Event(), threading.Event()

    def work() -> bool:
        began.set()
        return gate.wait(SOON)

    running = aside.submit(work)
    assert began.wait(SOON)
    try:
        yield aside, running, gate
    finally:
        gate.set()
        aside.close()


def test_work_is_done_in_order_and_urgent_work_first() -> None:
    done: list[str] = []
    with held() as (aside, _, gate):
        waits = [aside.submit(done.append, name) for name in "ab"]
        waits.append(aside.submit(done.append, "first", urgent=True))
        gate.set()
        for one in waits:
            one.result(SOON)
    assert done == ["first", "a", "b"]


def test_what_work_raises_is_raised_to_the_one_who_waits() -> None:
    aside = Aside(1)
    with pytest.raises(ZeroDivisionError):
        aside.submit(lambda: 1 // 0).result(SOON)
    assert aside.submit(lambda: 2).result(SOON) == 2
    aside.close()


class Text:
    """Something whose end can be seen."""


def test_cancelled_work_is_not_done_and_held_no_longer() -> None:
    done: list[Text] = []
    text = Text()
    seen = weakref.ref(text)
    with held() as (aside, _, gate):
        left = aside.submit(done.append, text)
        assert left.cancel()
        del text
        gc.collect()
        assert seen() is None
        gate.set()
        assert aside.submit(lambda: 1).result(SOON) == 1
    assert done == []


def test_the_end_cancels_what_waits_and_waits_for_nothing() -> None:
    with held() as (aside, running, gate):
        waiting = aside.submit(lambda: 1)
        aside.close()
        assert aside.busy
        for late in (waiting, aside.submit(lambda: 1)):
            with pytest.raises(CancelledError):
                late.result(SOON)
        gate.set()
        assert running.result(SOON)
