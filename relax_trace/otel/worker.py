"""One thread that does the work which the application's own leave to it, a lot at a time."""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable
from typing import Generic, TypeVar

_log = logging.getLogger("relax_trace")

_GATHER_SECONDS = 0.25  # to do many at once
_IDLE_SECONDS = 10.0  # after which the thread ends

T = TypeVar("T")


_LESSER = 20  # times as many items of less weight may wait


class Worker(Generic[T]):
    """Takes items to ``work`` on its own thread; at most ``most`` may wait, of less weight more."""

    def __init__(self, work: Callable[[list[T]], None], most: int) -> None:
        self.most = most
        self._work = work
        self._complained = False
        self.after_fork()

    def after_fork(self) -> None:
        """In a child process: neither the thread is there, nor what waits is the child's."""
        self._changed = threading.Condition()
        self._items: deque[T] = deque()
        self._put = self._done = self._weighty = 0
        self._hurry = False
        self._thread: threading.Thread | None = None

    def put(self, item: T, *, weighty: bool = True) -> bool:
        """Leave an item to the thread; False where too many wait already, or it can't be had."""
        with self._changed:
            full = self._weighty >= self.most if weighty else False
            if full or len(self._items) >= self.most * (1 + _LESSER):
                return False
            if not self._thread and not self._start():
                return False
            self._items.append(item)
            self._put += 1
            self._weighty += weighty
            if len(self._items) == 1 or self._crowded():
                self._changed.notify_all()
        return True

    def _crowded(self) -> bool:
        """Whether it is time to begin: half of what may wait does."""
        return 2 * self._weighty >= self.most or 2 * len(self._items) >= self.most * _LESSER

    def _start(self) -> bool:
        thread = threading.Thread(target=self._run, name="relax_trace.otel", daemon=True)
        try:
            thread.start()
        except RuntimeError:  # the system has no more: there may be one later
            return False
        self._thread = thread
        return True

    def flush(self, seconds: float) -> bool:
        """Wait until all that was put by now is done; False if that takes too long."""
        with self._changed:
            if self._thread is threading.current_thread():
                return False
            wanted, self._hurry = self._put, True
            self._changed.notify_all()
            return self._changed.wait_for(lambda: self._done >= wanted, seconds)

    def clear(self) -> list[T]:
        """Take back what waits."""
        with self._changed:
            left = list(self._items)
            self._items.clear()
            self._weighty = 0
            self._done += len(left)
            self._changed.notify_all()
            return left

    def _run(self) -> None:
        while True:
            with self._changed:
                if not self._changed.wait_for(lambda: self._items, _IDLE_SECONDS):
                    self._thread = None
                    return
                self._changed.wait_for(lambda: self._hurry or self._crowded(), _GATHER_SECONDS)
                items = list(self._items)
                self._items.clear()
                self._weighty = 0
            try:
                self._work(items)
            except Exception:  # nobody else would hear of it
                if not self._complained:
                    _log.exception("op spans could not be made; this is said only once")
                self._complained = True
            with self._changed:
                self._done += len(items)
                self._hurry = self._hurry and bool(self._items)
                self._changed.notify_all()
