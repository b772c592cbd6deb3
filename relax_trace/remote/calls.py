"""RemoteCall: an invocation of a remote VM, as the process that made it saw it."""

from __future__ import annotations

from typing import NamedTuple


class RemoteCall(NamedTuple):
    """Times are in ns since the Unix epoch."""

    vm: int  # the recorder's number
    function: str
    start: int
    end: int
    tid: int
    thread_name: str
    error: str | None
    context: bytes  # of OpenTelemetry, as in recorder/contexts.h; empty without one
