"""The recordings that run now, all fed by the one recorder of the process."""

from __future__ import annotations

import atexit
import os
import threading
import time
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from .errors import RelaxTraceError
from .notices import Notices
from .options import Options
from .recorder.cycles import take_cycles, take_tagged
from .recorder.dumps import Dumps
from .recorder.native import load
from .surroundings import tell_recorder

_DUMP_BYTES = 16 << 20  # handed over at a time, so that draining needs little memory of its own
_EVERYTHING = 1 << 62  # bytes
_SLOTS = 32  # wishes.h
_EXIT_SECONDS = 5.0  # that a program may be held up for when it ends


class Member(Protocol):
    """What the hub knows of a recording."""

    options: Options
    slot: int
    since: int
    dumps: Dumps

    def notice(self, notice: NDArray[np.void]) -> None:
        """Act on how an invocation ended."""

    def after_fork(self) -> None:
        """In a child process: do without what a thread of the parent may hold."""


def _take_in(dumps: Dumps, dump: bytes, options: Options) -> None:
    if options.mode == "ring":
        dumps.add_to_ring(dump, options.limit)
    else:
        dumps.add_within(dump, options.limit)


class Hub:
    """Gives every recording its slot, every dump, and the notices that are for it."""

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self._running: list[Member] = []
        self._tables = Dumps()  # names and signatures known so far, which the recorder sends once
        self._last_slot = -1
        self.deadline = float("inf")  # after which no more cycles are handed over
        self._notices = Notices(self._notice)

    def join(self, member: Member) -> None:
        """Let ``member`` have every dump from now on."""
        with self._lock:
            slot = self._free_slot()
            if self._running:
                self._drain()
            else:
                load().begin()
                tell_recorder()
            member.dumps = self._tables.tables()
            if self._running:
                member.dumps.losses_before = self._tables.losses
            member.slot, member.since = slot, load().now()
            if member.options.notified:
                self._notices.listen()
            self._running.append(member)
            try:
                self._tell_recorder()
            except BaseException:
                self._remove(member)
                raise

    def leave(self, member: Member) -> None:
        """Hand ``member`` what was recorded until now, and no more; a second call does nothing."""
        if member.options.notified:  # others need not wait for what a user's on_ready does
            self._notices.deliver(member.slot)
        with self._lock:
            if member not in self._running:
                return
            try:
                self._drain()
            finally:
                self._remove(member)

    def _remove(self, member: Member) -> None:
        self._running.remove(member)
        if self._running:
            self._tell_recorder()

    def snapshot(self, member: Member) -> Dumps:
        """What ``member`` has by now; it goes on, and the recorder keeps what it holds."""
        with self._lock:
            copy = member.dumps.copy()
            dump = bytes(load().dump(*copy.counts, _EVERYTHING, True))
            _take_in(copy, dump, member.options)
            return copy

    def take_cycles(self, member: Member) -> list[Dumps]:
        """Take out of ``member`` the cycles of its schedule that are complete."""
        with self._lock:
            self._drain()
            return take_cycles(member.dumps, member.slot)

    def take_tagged(self, member: Member, tags: NDArray[np.uint32]) -> Dumps:
        """Take out of ``member`` the invocations with these tags that have ended."""
        with self._lock:
            self._drain()
            return take_tagged(member.dumps, member.slot, tags)

    def _free_slot(self) -> int:
        """Not the last one used: a late record of its recording must not be taken for another's."""
        taken = {member.slot for member in self._running}
        for i in range(1, _SLOTS + 1):
            slot = (self._last_slot + i) % _SLOTS
            if slot not in taken:
                self._last_slot = slot
                return slot
        raise RelaxTraceError(f"{_SLOTS} recordings run already, and no more can at a time")

    def _ring(self) -> bool:
        """Whether the newest records are kept: only where nobody wants the first ones."""
        return all(member.options.mode == "ring" for member in self._running)

    def _tell_recorder(self) -> None:
        """The largest limit asked for holds, and the widest filter: each filters again."""
        options = [member.options for member in self._running]
        load().set_limit(max(each.limit for each in options), self._ring())
        patterns = {name for each in options for name in each.names}
        if not all(each.names for each in options):
            patterns = set()
        load().set_filter(min(each.shortest_ns for each in options), *sorted(patterns))

    def _drain(self) -> None:
        more = True
        while more:
            dump = bytes(load().dump(*self._tables.counts, _DUMP_BYTES, False))
            self._tables.add(dump)
            for member in self._running:
                _take_in(member.dumps, dump, member.options)
            more = self._tables.more
            self._tables.threads.clear()

    def _notice(self, notice: NDArray[np.void]) -> None:
        with self._lock:
            members = [one for one in self._running if one.slot == notice["slot"]]
        for member in members:
            if notice["start"] >= member.since:
                member.notice(notice)

    def at_exit(self) -> None:
        """Don't leave undone what the last invocations asked for, but cycles may be many."""
        self.deadline = time.monotonic() + _EXIT_SECONDS
        self._notices.deliver(timeout=2 * _EXIT_SECONDS)

    def before_fork(self) -> None:
        """Let no other thread be in the middle of a drain: the child would have half of it."""
        self._lock.acquire()

    def after_fork_in_parent(self) -> None:
        """Go on."""
        self._lock.release()

    def after_fork_in_child(self) -> None:
        """Go on without the other threads."""
        self._lock = threading.RLock()
        for member in self._running:
            member.after_fork()
        self._notices.after_fork(any(member.options.notified for member in self._running))


hub = Hub()
atexit.register(hub.at_exit)
os.register_at_fork(
    before=hub.before_fork,
    after_in_parent=hub.after_fork_in_parent,
    after_in_child=hub.after_fork_in_child,
)
