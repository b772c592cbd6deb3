"""What can be asked of a recording, checked before it begins."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

from .schedules import Schedule
from .trace import Trace

Timing = Literal["host", "synchronized"]
Mode = Literal["stop", "ring"]
OnReady = Callable[[Trace], object]

MEMORY_LIMIT = 256 << 20  # bytes: room for some 8 million ops
SMALLEST_LIMIT = 1 << 20  # bytes: below, a thread's own tables leave no room for its ops
_LARGEST = (1 << 63) - 1  # what an argument of the recorder can hold

# The recorder's flags of a wish, wishes.h.
_HELD, _SYNCHRONIZED, _FAILURES, _CYCLES = 1, 2, 4, 8


@dataclass(frozen=True)
class Options:
    """The arguments of :func:`relax_trace.record`, which explains them."""

    timing: Timing = "host"
    memory_limit: int = MEMORY_LIMIT
    mode: Mode = "stop"
    schedule: Schedule | None = None
    on_ready: OnReady | None = None
    functions: str | None = None
    names: tuple[str, ...] = ()
    shortest_ns: int = 0
    snapshots: str | os.PathLike[str] | None = None
    slow_ns: int | None = None

    def __post_init__(self) -> None:
        for name in self.names:
            _pattern("names", name)
        if self.functions is not None:
            _pattern("functions", self.functions)
        _one_of("timing", self.timing, ("host", "synchronized"))
        _one_of("mode", self.mode, ("stop", "ring"))
        _integer("memory_limit", self.memory_limit)
        _integer("shortest_ns", self.shortest_ns, least=0)
        _integer("slow_ns", 1 if self.slow_ns is None else self.slow_ns, least=1)
        if self.memory_limit < SMALLEST_LIMIT:
            raise ValueError(
                f"memory_limit must be at least {SMALLEST_LIMIT} bytes (1 MiB), "
                f"not {self.memory_limit}"
            )
        if self.schedule is not None and not isinstance(self.schedule, Schedule):
            raise TypeError("schedule must come from relax_trace.schedule()")
        if self.on_ready is not None and self.schedule is None:
            raise ValueError("on_ready is called after each cycle of a schedule: give one as well")
        if self.slow_ns is not None and self.snapshots is None:
            raise ValueError("slow_ns has files written: name their folder with snapshots=...")

    @property
    def held(self) -> bool:
        """Whether the hook can stay in a VM between the invocations: all of them are wanted."""
        return self.schedule is None and self.functions is None

    @property
    def limit(self) -> int:
        """``memory_limit``, within what the recorder can be told."""
        return min(self.memory_limit, _LARGEST)

    @property
    def notified(self) -> bool:
        """Whether the recorder has to say how invocations ended."""
        return self.on_ready is not None or self.snapshots is not None

    def wish(self, held: bool) -> tuple[Any, ...]:
        """The recorder's arguments for want(), from ``flags`` on."""
        plan = self.schedule
        flags = _HELD * (held and self.held)
        flags |= _SYNCHRONIZED * (self.timing == "synchronized")
        flags |= _FAILURES * (self.snapshots is not None) | _CYCLES * (self.on_ready is not None)
        steps = (plan.wait, plan.warmup, plan.active, plan.repeat) if plan else (0, 0, 0, 0)
        return flags, *steps, min(self.slow_ns or 0, _LARGEST), self.functions or ""


def _one_of(name: str, value: Any, known: tuple[str, ...]) -> None:
    if value not in known:
        raise ValueError(f"{name} must be {' or '.join(map(repr, known))}, not {value!r}")


def _pattern(name: str, value: Any) -> None:
    if not isinstance(value, str):
        raise TypeError(f"{name} must be given as text, not as {type(value).__name__}")
    if not value or "\0" in value or value != value.encode("utf-8", "replace").decode():
        raise ValueError(f"{name} has a pattern that no name can match: {value!r}")
    if any(text in value for text in ("[^", "[[:", "[[.", "[[=")):
        # the recorder's fnmatch() is C's, which reads them otherwise than Python's
        raise ValueError(f"{name} has a pattern with more than *, ?, [abc], [!abc]: {value!r}")


def _integer(name: str, value: Any, least: int | None = None) -> None:
    if not isinstance(value, int):
        raise TypeError(f"{name} must be an integer, not a {type(value).__name__}")
    if least is not None and not least <= value <= _LARGEST:
        raise ValueError(f"{name} must be at least {least}, not {value}")
