"""Self time: what each call spent outside of the calls that it made."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from ..ragged import Index

if TYPE_CHECKING:
    from ..trace import Trace


def self_time(trace: Trace) -> Index:
    """Duration of each call less that of its direct children, in ns, shape ``(len(trace),)``.

    The calls of an invocation made inside a call (a function in Python that runs another VM) are
    children of that call.
    """
    duration = trace.duration
    parent = trace.parent
    if len(trace) and (trace.invocations.parent >= 0).any():
        parent = np.where(parent < 0, _enclosing_calls(trace)[trace.invocation], parent)
    children = np.flatnonzero(parent >= 0)
    np.subtract.at(duration, parent[children], trace.end[children] - trace.start[children])
    return duration


def _enclosing_calls(trace: Trace) -> Index:
    """For each invocation the innermost call, of its parent invocation, that it ran in; or -1."""
    invocations = trace.invocations
    nested = np.flatnonzero(invocations.parent >= 0)
    outer = invocations.parent[nested]
    candidates = np.flatnonzero(np.isin(trace.invocation, outer))
    # In order of (invocation, start), before a nested invocation comes the call that began last.
    owner = np.concatenate([trace.invocation[candidates], outer])
    start = np.concatenate([trace.start[candidates], invocations.start[nested]])
    order = np.lexsort((start, owner))
    is_call = order < len(candidates)
    last_call = np.maximum.accumulate(np.where(is_call, np.arange(len(order)), -1))[~is_call]
    found = np.append(candidates, -1)[np.where(last_call < 0, -1, order[last_call])]
    enclosing = np.full(len(invocations), -1, np.int64)
    enclosing[nested[order[~is_call] - len(candidates)]] = found
    at = enclosing[nested]
    at[(at >= 0) & (trace.invocation[at] != outer)] = -1
    while (over := (at >= 0) & (trace.end[at] < invocations.end[nested])).any():
        at[over] = trace.parent[at[over]]
    enclosing[nested] = at
    return enclosing
