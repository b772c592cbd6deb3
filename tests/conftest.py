"""What every test may use."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

import relax_trace

if TYPE_CHECKING:
    from recorder.play import Builds
    from viewers.trace_processor import TraceProcessor


def pytest_configure() -> None:
    """Give Ctrl-C its meaning back for the programs that tests run: a background job lost it."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_report_header() -> str:
    """Say which relax_trace is tested: the installed one, or a source tree on the path."""
    return f"relax_trace: {Path(relax_trace.__file__).parent}"


@pytest.fixture(scope="session")
def builds(tmp_path_factory: pytest.TempPathFactory) -> Builds:
    """The programs that play the recorder under sanitizers, each built once when it is needed."""
    from recorder.play import Builds

    return Builds(tmp_path_factory.mktemp("programs"))


@pytest.fixture
def perfetto() -> Iterator[Callable[[Path], TraceProcessor]]:
    """Load a trace file into Perfetto's own engine, to be queried in SQL until the test ends."""
    # Only here, so that tests without a viewer run where no viewer is installed.
    from viewers.trace_processor import TraceProcessor

    with ExitStack() as engines:
        yield lambda path: engines.enter_context(closing(TraceProcessor(path)))
