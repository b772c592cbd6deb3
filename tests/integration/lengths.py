"""Tell the invocations of ``small_vms.dynamic()`` apart by the length of their argument."""

from __future__ import annotations

import numpy as np
import tvm

from relax_trace import Trace


def vector(length: int) -> tvm.runtime.Tensor:
    """A vector whose length tells which invocation it was for."""
    return tvm.runtime.tensor(np.ones(length, "float32"))


def lengths(trace: Trace) -> list[int]:
    """What each invocation was given, as its ``add`` says; 0 for one that didn't come so far."""
    found = np.zeros(len(trace.invocations), np.int64)
    if "add" in trace.names:
        rows = np.flatnonzero(trace.name == trace.names.index("add"))
        used = np.unique(trace.signature[rows])
        of_signature = {i: _length(trace.signatures.texts[i]) for i in used.tolist()}
        found[trace.invocation[rows]] = [of_signature[i] for i in trace.signature[rows].tolist()]
    return found.tolist()


def _length(text: bytes) -> int:
    return int(text.split(b"]")[0].removeprefix(b"float32["))
