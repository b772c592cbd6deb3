"""Keep what TVM's importer and loader print to themselves away from the user."""

from __future__ import annotations

import os
import sys
import tempfile
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager


@contextmanager
def captured_output() -> Iterator[Callable[[], str]]:
    """Send file descriptors 1 and 2 to a file while inside; the value yielded reads it back.

    Works below ``sys.stdout``, since most of it comes from C++.
    """
    sys.stdout.flush()
    sys.stderr.flush()
    saved = [os.dup(1), os.dup(2)]
    with tempfile.TemporaryFile() as file, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        os.dup2(file.fileno(), 1)
        os.dup2(file.fileno(), 2)

        def text() -> str:
            sys.stdout.flush()
            size = os.lseek(file.fileno(), 0, os.SEEK_END)
            return os.pread(file.fileno(), size, 0).decode(errors="replace")

        try:
            yield text
        finally:
            sys.stdout.flush()
            for descriptor, original in zip((1, 2), saved, strict=True):
                os.dup2(original, descriptor)
                os.close(original)
