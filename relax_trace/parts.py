"""Part: what a recording has of one recorder, and the Trace that this makes."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import replace

from .attach import Attachment
from .concatenation import concatenate
from .hub import hub
from .labels import labels_now, with_suffixes
from .notices import Notice
from .options import Options
from .recorder.decode import Labels, to_trace
from .recorder.dumps import Dumps
from .recorder.records import Clock, Share
from .remote.calls import RemoteCall
from .remote.clock import Ping, clock_of
from .remote.remote import Remote, notice_of
from .remote.trace import remote_trace
from .trace import Trace

_BYTES_A_CALL = 512  # of Python's


class Part:
    """``Member`` of a hub: of this process's, or of a remote's."""

    def __init__(
        self, options: Options, remote: Remote | None, act: Callable[[Part, Notice], None]
    ) -> None:
        self.options = options
        self.remote = remote  # None once the part has left: it holds the connection
        self.hub = remote.hub if remote else hub
        self._name = remote.name if remote else ""
        self._lost = ""
        self.slot = -1
        self.since = 0
        self.dumps = Dumps()
        self.ready: deque[Dumps] = deque()  # complete cycles
        self._act = act
        self._calls: deque[RemoteCall] = deque(maxlen=options.limit // _BYTES_A_CALL)
        self._leaving = threading.Lock()
        self._first: Ping | None = None
        self._last: Ping | None = None

    def join(self) -> None:
        """Have what is recorded from now on."""
        if self.remote:
            self._first = self.remote.ping()
        self.hub.join(self)
        if self.remote:
            self.remote.listen(self._called)

    def leave(self) -> None:
        """Have no more; a second call waits for the first."""
        self.hub.leave(self)
        with self._leaving:
            remote, self.remote = self.remote, None
            if remote:
                self._last = remote.ping() or self._first
                remote.forget(self._called)
                self._lost = remote.hub.lost
                self.hub = hub  # of which it is no member

    def _called(self, call: RemoteCall) -> Notice | None:
        self._calls.append(call)
        return notice_of(call, self.options, self.slot)

    def notice(self, notice: Notice) -> None:
        """Act on how an invocation ended."""
        self._act(self, notice)

    def after_fork(self) -> None:
        """In a child process: nothing here is held by a thread."""

    def snapshot(self) -> Dumps:
        """What there is by now; it goes on."""
        return self.hub.snapshot(self)

    def take_cycles(self) -> list[Dumps]:
        """Take out the cycles of the schedule that are complete."""
        return self.hub.take_cycles(self)

    def labels(self, attachments: Sequence[Attachment]) -> Labels:
        """What only Python knows, as it is now; these are the VMs that run here."""
        found = labels_now(attachments)
        if not self.remote:
            return found
        configuration = {**found.configuration, **self.remote.configuration}
        return replace(found, threads={}, process=self.remote.name, configuration=configuration)

    def trace(self, dumps: Dumps, labels: Labels) -> Trace:
        """The recording's share of these dumps."""
        share, labels = Share(self.slot, self.since), with_suffixes(labels)
        if not self._name:
            return to_trace(dumps, share, labels)
        clock, error_ns = self._clock(dumps)
        said = {f"Clock of {self._name}": f"within {error_ns / 1000:.1f} us of this one's"}
        if lost := self.remote.hub.lost if self.remote else self._lost:
            said[f"Incomplete, {self._name}"] = lost
        here = replace(labels_now([]), configuration={**labels.configuration, **said})
        return remote_trace(dumps, share, labels, clock, list(self._calls), here)

    def _clock(self, dumps: Dumps) -> tuple[Clock, float]:
        first = self._first or Ping(0, 0, 0.0)
        last = self._last or (self.remote.ping() if self.remote else None) or first
        return clock_of(dumps, first, last)

    @property
    def name(self) -> str:
        """Of the server; empty for this process."""
        return self._name


def whole(traces: dict[Part, Trace]) -> Trace:
    """What several recorders have as one Trace; devices say where they are if that is in doubt."""
    ran = [part for part, trace in traces.items() if len(trace)]
    named = [
        _with_names(trace, part.name) if part.name and len(ran) > 1 else trace
        for part, trace in traces.items()
    ]
    if len(named) == 1:
        return named[0]
    configuration: dict[str, str] = {}
    for trace in named:
        configuration = {**trace.configuration, **configuration}
    return replace(concatenate(named), configuration=configuration)


def _with_names(trace: Trace, remote: str) -> Trace:
    devices = tuple(replace(device, remote=remote) for device in trace.devices)
    return replace(trace, devices=devices)
