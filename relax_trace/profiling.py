"""profile(): run a function of a VM several times, and report where its time goes."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from .arguments import arguments_of, has_inputs
from .recording import record
from .report import Report
from .trace import Trace


def profile(
    vm: Any, function: str = "main", *args: Any, number: int = 1, repeat: int = 1
) -> Report:
    """Run ``vm[function](*args)`` once to warm up, then ``number * repeat`` times, and add it up.

    Times are synchronized with the device. Arguments may be tensors, numpy arrays, numbers, and
    tuples or lists of them; behind RPC they are copied there. Without any, what ``vm.set_input``
    set is used, by ``vm.invoke_stateful``. Raises ``ValueError`` if neither or both are given, what
    the call raises, and what :func:`record` does.
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
        call = _call_of(vm, function, args)
        call()
        recording.resume()
        for _ in range(number * repeat):
            call()
    return recording.trace


def _call_of(vm: Any, function: str, args: tuple[Any, ...]) -> Callable[[], Any]:
    """What is to be run; its inputs are there."""
    call = vm[function]  # raises what TVM raises for a missing name
    if has_inputs(vm, function):
        if args:
            raise ValueError("Inputs are already provided by set_input.")
        return functools.partial(vm.invoke_stateful, function)
    if not args and vm._get_function_arity(function):
        raise ValueError(f"No input is provided: {function!r} takes some, or use vm.set_input()")
    return functools.partial(call, *arguments_of(vm, args))
