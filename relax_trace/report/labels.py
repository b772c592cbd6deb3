"""Labels: for each call of a report the text of one of its properties."""

from __future__ import annotations

from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from ..trace import KINDS, Thread
from .calls import Calls, merged

Labels: TypeAlias = tuple[NDArray[np.integer[Any]], tuple[str, ...]]


def labels(calls: Calls, what: str) -> Labels:
    """``(index, texts)``: the label of call ``i`` is ``texts[index[i]]``; no text is there twice.

    ``what``: ``name``, ``shapes``, ``device``, ``kind``, ``thread``, ``function`` (the one
    invoked), ``invocation`` or ``vm``.
    """
    if what in _IN_CALLS:
        index, texts = _IN_CALLS[what]
        return getattr(calls, index), getattr(calls, texts)
    if what == "kind":
        return calls.kind, KINDS
    trace = calls.trace
    if what == "thread":
        threads, thread = merged(map(_thread, trace.threads))
        return thread[calls.thread], threads
    functions = trace.invocations.function
    if what == "invocation":
        numbered = enumerate(functions.tolist())
        return calls.invocation, tuple(f"{trace.names[name]} #{i}" for i, name in numbered)
    if what == "function":
        names, name = merged(trace.names)
        return name[functions[calls.invocation]], names
    vms, vm = merged(trace.vms)
    return vm[trace.invocations.vm[calls.invocation]], vms


_IN_CALLS = {
    "name": ("name", "names"),
    "shapes": ("shapes", "spellings"),
    "device": ("device", "devices"),
}


def _thread(thread: Thread) -> str:
    return f"{thread.name} (pid {thread.pid}, tid {thread.tid})"
