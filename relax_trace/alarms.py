"""Write what a recording holds to a file when an invocation failed, or took too long."""

from __future__ import annotations

import itertools
import logging
import os
import time
from pathlib import Path

from .trace import Trace

# Seconds between two files of a recording: a service that keeps failing must not fill its disk.
_PAUSE = 10.0

_log = logging.getLogger("relax_trace")
_numbers = itertools.count(1)  # of files: two recordings may have one folder


class Alarms:
    """The files of one recording, at most one in ten seconds."""

    def __init__(self, folder: str | os.PathLike[str]) -> None:
        self._folder = Path(folder)
        self._last = float("-inf")
        self._passed_over = 0

    def wanted(self) -> bool:
        """Whether a file is due; if not, that is counted."""
        due = time.monotonic() - self._last >= _PAUSE
        self._passed_over += not due
        return due

    def write(self, trace: Trace, why: str) -> None:
        """Write ``trace``, and log where, or why not: there is nobody to raise to."""
        self._last = time.monotonic()
        name = f"{time.strftime('%Y%m%d-%H%M%S')}-{os.getpid()}-{next(_numbers)}.npz"
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
            trace.save(self._folder / name)
        except OSError as error:
            _log.error("%s; its trace could not be written to %s: %s", why, self._folder, error)
            return
        more = f" ({self._passed_over} more since the last file)" if self._passed_over else ""
        self._passed_over = 0
        _log.warning("%s%s: see %s", why, more, self._folder / name)
