"""Tell the user what is going on: a spinner on a terminal, a line a step elsewhere."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def step(text: str) -> Iterator[None]:
    """Show ``text`` on stderr while the work inside goes on, and then how long it took."""
    start = time.perf_counter()
    try:
        with _spinner(text) if sys.stderr.isatty() else _line(text):
            yield
    except BaseException:
        print("failed", file=sys.stderr)
        raise
    print(f"{time.perf_counter() - start:.1f} s", file=sys.stderr)


@contextmanager
def _line(text: str) -> Iterator[None]:
    print(f"{text} ... ", end="", file=sys.stderr, flush=True)
    yield


@contextmanager
def _spinner(text: str) -> Iterator[None]:
    from rich.console import Console
    from rich.text import Text

    # A duplicate, since captured_output() takes descriptor 2 away while the spinner turns.
    with os.fdopen(os.dup(2), "w") as terminal:
        try:
            with Console(file=terminal).status(Text(text)):
                yield
        finally:
            print(f"{text} ... ", end="", file=terminal, flush=True)
