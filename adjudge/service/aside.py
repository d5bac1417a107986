"""Threads for work that would hold up the event loop: few, and nobody waits for them at the end."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future
from functools import partial
from typing import Any, TypeVar

T = TypeVar("T")


class Aside:
    """Daemon threads that do work in order of arrival, urgent work first. Thread-safe.

    Work that has not begun is dropped, with all it holds, when its future is cancelled.
    """

    def __init__(self, num_threads: int) -> None:
        self._changed = threading.Condition()
        self._urgent: dict[Future[Any], Callable[[], Any]] = {}
        self._waiting: dict[Future[Any], Callable[[], Any]] = {}
        self._num_running = 0
        self._closed = False
        for number in range(num_threads):
            name = f"adjudge-aside-{number}"
            threading.Thread(target=self._run, name=name, daemon=True).start()

    def submit(self, work: Callable[..., T], *arguments: Any, urgent: bool = False) -> Future[T]:
        """The future of what the work returns or raises; cancelled at once after `close`."""
        future: Future[T] = Future()
        future.add_done_callback(self._forget)
        with self._changed:
            closed = self._closed
            if not closed:
                queue = self._urgent if urgent else self._waiting
                queue[future] = partial(work, *arguments)
                self._changed.notify()
        if closed:
            future.cancel()
        return future

    @property
    def busy(self) -> bool:
        """Whether some work runs now."""
        with self._changed:
            return self._num_running > 0

    def close(self) -> None:
        """Cancel what has not begun. What runs runs on; its thread ends after it."""
        with self._changed:
            self._closed = True
            left = [*self._urgent, *self._waiting]
            self._changed.notify_all()
        for future in left:
            future.cancel()

    def _forget(self, future: Future[Any]) -> None:
        with self._changed:
            self._urgent.pop(future, None)
            self._waiting.pop(future, None)

    def _run(self) -> None:
        while self._run_one():
            pass

    def _run_one(self) -> bool:
        """False: there will be no more. Holds on to nothing of the work after it."""
        with self._changed:
            while not (self._urgent or self._waiting or self._closed):
                self._changed.wait()
            if self._closed:
                return False
            queue = self._urgent or self._waiting
            future = next(iter(queue))
            work = queue.pop(future)
            self._num_running += 1
        try:
            if future.set_running_or_notify_cancel():
                try:
                    result = work()
                except BaseException as error:
                    future.set_exception(error)
                else:
                    future.set_result(result)
        finally:
            with self._changed:
                self._num_running -= 1
        return True
