"""profile(): run a function of a VM several times, and report where its time goes."""

from __future__ import annotations

from typing import Any

from .recording import record
from .report import Report
from .trace import Trace


def profile(
    vm: Any, function: str = "main", *args: Any, number: int = 1, repeat: int = 1
) -> Report:
    """Run ``vm[function](*args)`` once to warm up, then ``number * repeat`` times, and add it up.

    Times are synchronized with the device. Arguments may be tensors, numpy arrays, numbers, and
    tuples or lists of them. Raises what the call raises, and what :func:`record` does.
    """
    return profile_trace(vm, function, *args, number=number, repeat=repeat).report()


def profile_trace(
    vm: Any, function: str = "main", *args: Any, number: int = 1, repeat: int = 1
) -> Trace:
    """The calls that :func:`profile` adds up, one by one."""
    if number < 1 or repeat < 1:
        raise ValueError(f"number and repeat must be at least 1, not {number} and {repeat}")
    recording = record(vm, timing="synchronized")
    with recording:
        recording.pause()
        arguments: list[Any] = []
        for argument in args:
            vm._convert(argument, arguments)
        call = vm[function]
        call(*arguments)
        recording.resume()
        for _ in range(number * repeat):
            call(*arguments)
    return recording.trace
