"""Files that are written when an invocation fails or takes long."""

from __future__ import annotations

import logging
import re
import threading
import time
from pathlib import Path
from typing import Any

import pytest

import relax_trace
from integration.small_vms import (
    CALL,
    MAIN,
    callback,
    calls,
    functions,
    small,
    tensor,
    vm_of,
)
from relax_trace import Trace, alarms
from relax_trace.trace import ABORTED, FAILED, OPEN

X = (1.0, 2.0, 3.0, 4.0)
UNTIL_THROW = CALL[: CALL.index("relax_trace_tests.callback") + 1]
SLOW_NS = 50_000_000


def fail(_: Any) -> None:
    """An op that throws."""
    raise ValueError("no\x1b[2J")


def sleep(_: Any) -> None:
    """An op that takes longer than SLOW_NS."""
    time.sleep(1.2 * SLOW_NS / 1e9)


def call_and_fail(vm: Any) -> None:
    """Invoke ``call`` with an op that throws: the user sees that exception, as it was."""
    with callback(fail), pytest.raises(ValueError, match="no\x1b"):
        vm["call"](tensor(*X))


def written(folder: Path) -> list[Trace]:
    """The files of a folder, in the order in which they were written."""
    files = sorted(folder.iterdir(), key=lambda file: int(re.split(r"[-.]", file.name)[-2]))
    assert all(re.fullmatch(r"\d{8}-\d{6}-\d+-\d+\.npz", file.name) for file in files)
    return [relax_trace.load(file) for file in files]


def lines(caplog: pytest.LogCaptureFixture) -> list[str]:
    """What was logged, on its one logger."""
    assert {record.name for record in caplog.records} <= {"relax_trace"}
    return [record.getMessage() for record in caplog.records]


def test_a_failing_invocation_writes_a_file(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """It holds what led there, and a line says where it is; the folder need not be there."""
    vm = vm_of(small())
    folder = tmp_path / "a" / "b"
    with relax_trace.record(vm, snapshots=folder) as recording:
        vm["main"](tensor(*X))
        call_and_fail(vm)
    (trace,) = written(folder)
    assert functions(trace) == ["main", "call"]
    assert trace.invocations.flags.tolist() == [0, FAILED]
    assert [calls(trace, i) for i in range(2)] == [MAIN, UNTIL_THROW]
    assert trace.flags.tolist() == [0] * (len(trace) - 1) + [ABORTED]
    assert trace.errors == ("ValueError: no\x1b[2J",)
    assert trace.vms == ("vm",)
    assert trace.configuration["Executor"] == "VM"
    (file,) = folder.iterdir()
    assert lines(caplog) == [f"'call' failed: see {file}"]
    assert caplog.records[0].levelno == logging.WARNING
    assert functions(recording.trace) == ["main", "call"]  # nothing was taken out


def test_a_slow_invocation_writes_a_file(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Those that took less write none, and the line says how long it took."""
    vm = vm_of(small())
    with relax_trace.record(vm, snapshots=str(tmp_path), slow_ns=SLOW_NS):
        vm["call"](tensor(*X))
        with callback(sleep):
            vm["call"](tensor(*X))
    (trace,) = written(tmp_path)
    assert [calls(trace, i) for i in range(2)] == [CALL, CALL]
    (line,) = lines(caplog)
    found = re.fullmatch(r"'call' took (\d+\.\d{3}) ms: see (.*)", line)
    assert found is not None
    assert float(found[1]) * 1e6 == pytest.approx(
        int(trace.invocations.end[1] - trace.invocations.start[1]), abs=1000
    )
    assert [Path(found[2])] == list(tmp_path.iterdir())


def test_without_a_threshold_nothing_is_slow(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """And nothing failed: no file, no line, no folder."""
    vm = vm_of(small())
    with relax_trace.record(vm, snapshots=tmp_path / "folder"), callback(sleep):
        vm["call"](tensor(*X))
    assert list(tmp_path.iterdir()) == []
    assert lines(caplog) == []


def test_one_file_in_ten_seconds(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The next one's line says how many there were between; each recording has its own pause."""
    assert alarms._PAUSE == 10
    vm = vm_of(small())
    with relax_trace.record(vm, snapshots=tmp_path / "one") as recording:
        for _ in range(4):
            call_and_fail(vm)
        with relax_trace.record(vm, snapshots=tmp_path / "other"):
            call_and_fail(vm)
        hub_is_done(recording)
        assert len(lines(caplog)) == 2
        monkeypatch.setattr(alarms, "_PAUSE", 0.0)
        call_and_fail(vm)
        hub_is_done(recording)
        call_and_fail(vm)
    one, other = sorted((tmp_path / "one").iterdir()), list((tmp_path / "other").iterdir())
    assert len(other) == 1
    assert lines(caplog) == [
        f"'call' failed: see {one[0]}",
        f"'call' failed: see {other[0]}",
        f"'call' failed (4 more since the last file): see {one[1]}",
        f"'call' failed: see {one[2]}",
    ]
    found = written(tmp_path / "one")
    assert [set(trace.invocations.flags.tolist()) for trace in found] == [{FAILED}] * 3
    assert [len(trace.invocations) for trace in found[1:]] == [6, 7]


def hub_is_done(recording: relax_trace.Recording) -> None:
    """Wait until what the invocations before asked for is done; the recording goes on."""
    from relax_trace.hub import hub

    assert recording in hub._running
    hub._notices.deliver()


@pytest.mark.parametrize("kind", ["a file", "below a file", "read only"])
def test_a_folder_that_cannot_be_written(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, kind: str
) -> None:
    """One line says so; the user's exception is as it was, and the recording goes on."""
    vm = vm_of(small())
    file = tmp_path / "file"
    file.write_bytes(b"kept")
    folder = {"a file": file, "below a file": file / "x", "read only": Path("/proc/self/x")}[kind]
    with relax_trace.record(vm, snapshots=folder) as recording:
        for _ in range(3):
            call_and_fail(vm)
    (line,) = lines(caplog)
    assert line.startswith(f"'call' failed; its trace could not be written to {folder}: ")
    assert caplog.records[0].levelno == logging.ERROR
    assert file.read_bytes() == b"kept"
    assert functions(recording.trace) == ["call"] * 3


def test_two_recordings_with_one_folder(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Within one second each writes a file of its own."""
    vm, other = vm_of(small()), vm_of(small())
    with (
        relax_trace.record(vm, name="one", snapshots=tmp_path),
        relax_trace.record(other, name="other", snapshots=tmp_path),
    ):
        call_and_fail(vm)
        call_and_fail(other)
    assert [trace.vms for trace in written(tmp_path)] == [("one",), ("other",)]
    assert len(lines(caplog)) == 2


def test_failing_in_several_threads(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Every thread gets its own exception; one file is written, and the others are counted."""
    vms = [vm_of(small()) for _ in range(4)]
    seen: list[str] = []

    def work(vm: Any) -> None:
        for _ in range(20):
            with pytest.raises(ValueError, match="no") as caught:
                vm["call"](tensor(*X))
            seen.append(str(caught.value))

    with relax_trace.record(snapshots=tmp_path) as recording, callback(fail):
        threads = [threading.Thread(target=work, args=[vm]) for vm in vms]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert seen == ["no\x1b[2J"] * 80
    (trace,) = written(tmp_path)
    assert set(trace.invocations.flags.tolist()) <= {FAILED, OPEN}
    assert FAILED in trace.invocations.flags.tolist()
    (line,) = lines(caplog)
    assert line == f"'call' failed: see {next(tmp_path.iterdir())}"
    assert recording._alarms is not None
    assert recording._alarms._passed_over == 79
    assert functions(recording.trace) == ["call"] * 80


def test_a_failure_inside_a_schedule(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """One that is recorded writes a file before its cycle is handed over; a skipped one none."""
    vm = vm_of(small())
    ready: list[Trace] = []
    plan = relax_trace.schedule(wait=1, active=2)
    with relax_trace.record(vm, snapshots=tmp_path, schedule=plan, on_ready=ready.append):
        call_and_fail(vm)
        call_and_fail(vm)
        vm["call"](tensor(*X))
    (trace,) = written(tmp_path)
    assert trace.invocations.flags.tolist()[0] == FAILED
    assert [found.invocations.flags.tolist() for found in ready] == [[FAILED, 0]]
    assert len(lines(caplog)) == 1


def test_a_failure_that_ends_a_cycle_is_in_both(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The invocation failed and was the last of its cycle: the file has it as well."""
    vm = vm_of(small())
    ready: list[Trace] = []
    plan = relax_trace.schedule(active=2)
    with relax_trace.record(vm, snapshots=tmp_path, schedule=plan, on_ready=ready.append):
        vm["call"](tensor(*X))
        call_and_fail(vm)
    assert [found.invocations.flags.tolist() for found in ready] == [[0, FAILED]]
    (trace,) = written(tmp_path)
    assert trace.invocations.flags.tolist() == [0, FAILED]
    assert len(lines(caplog)) == 1
