"""schedule(): which of many invocations are recorded, as a pure function of their number."""

from __future__ import annotations

from dataclasses import dataclass, fields
from enum import Enum


class Action(Enum):
    """What is done with an invocation."""

    SKIP = "skip"  # it runs the bare VM
    WARMUP = "warmup"  # it runs as if recorded, and is forgotten
    RECORD = "record"
    RECORD_AND_DELIVER = "record and deliver"  # it is recorded, and ends its cycle


@dataclass(frozen=True)
class Schedule:
    """A step-to-action function; see :func:`schedule`."""

    wait: int
    warmup: int
    active: int
    repeat: int

    def __post_init__(self) -> None:
        for field in fields(self):
            number = getattr(self, field.name)
            if not isinstance(number, int):
                raise TypeError(f"{field.name} must be an integer, not a {type(number).__name__}")
            if not 0 <= number < 1 << 32:
                raise ValueError(f"{field.name} must be from 0 to 4294967295, not {number}")
        if self.active == 0:
            raise ValueError("active must be at least 1: with 0 nothing would be recorded")

    def __call__(self, step: int) -> Action:
        """What to do with invocation number ``step``, counted from 0.

        The recorder follows the same rule, in wishes.h.
        """
        length = self.wait + self.warmup + self.active
        cycle, place = divmod(step, length)
        if (self.repeat and cycle >= self.repeat) or place < self.wait:
            return Action.SKIP
        if place < self.wait + self.warmup:
            return Action.WARMUP
        return Action.RECORD_AND_DELIVER if place == length - 1 else Action.RECORD


def schedule(*, wait: int = 0, warmup: int = 0, active: int, repeat: int = 0) -> Schedule:
    """Record ``active`` invocations after ``wait`` skipped ones and ``warmup`` forgotten ones.

    That is a cycle; there are ``repeat`` of them, or with 0 no end. Invocations are counted for
    each VM and entry function by itself, from where the recording began or was resumed; one inside
    an invocation that is left out is left out with it, and not counted. The words are those of
    ``torch.profiler.schedule``. Raises ``ValueError`` for a negative number, or if nothing is
    active; ``TypeError`` for what is no integer.
    """
    return Schedule(wait, warmup, active, repeat)
