"""VMs behind RPC: recorded where they run, as a local one is; and what can happen on the way."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tvm
from tvm import relax, rpc
from tvm.script import ir as I  # noqa: N812
from tvm.script import relax as R  # noqa: N812

import models
import relax_trace
from integration.otlp_receivers import http_receiver
from integration.remotes import Server, remote_vm, running, server
from integration.small_vms import chain, run_alone
from relax_trace.arguments import arguments_of
from relax_trace.recorder.native import LIBRARY
from relax_trace.remote import shipping
from relax_trace.remote.sessions import name_of, session_of
from relax_trace.trace import FAILED, Trace

X = np.arange(4, dtype=np.float32)
OPS = 22  # of chain(5), those without a tensor included


@pytest.fixture
def board() -> Iterator[Server]:
    """A server that has no recorder."""
    with server() as found:
        yield found


@pytest.fixture
def session(board: Server) -> Any:
    """A connection, and so a process of the server."""
    return board.connect(session_timeout=120)


def listed(trace: Trace) -> list[tuple[str, str, int, str, int]]:
    """Each op: name, shapes, kind, device, row of the op around it."""
    texts = trace.signatures.texts
    parents = trace.parent.tolist()
    return [
        (
            trace.names[trace.name[i]],
            texts[trace.signature[i]].decode(),
            int(trace.kind[i]),
            str(trace.devices[trace.device[i]]) if trace.device[i] >= 0 else "",
            parents[i],
        )
        for i in range(len(trace))
    ]


def rows(report: relax_trace.Report) -> list[tuple[str, ...]]:
    """The table's rows by everything but time, and the totals by everything but time."""
    counts: Counter[tuple[str, str, str]] = Counter()
    for call in json.loads(report.json())["calls"]:
        key = [call[name]["string"] for name in ("Name", "Argument Shapes", "Device")]
        counts[key[0], key[1], key[2]] += call["Count"]["count"]
    found = sorted((*key, str(count)) for key, count in counts.items())
    return [*found, *((total.device, str(total.count)) for total in report.totals)]


@pytest.mark.parametrize("model", [models.silero, models.squeezenet])
def test_a_real_model_there_and_here(
    model: Callable[[], models.Model], session: Any, tmp_path: Path
) -> None:
    """Names, kinds, shapes, devices, nesting, order, table: all but the times, which lie inside."""
    made = model()
    with relax_trace.record(made.vm) as recording:
        made.check(made.run())
    here = recording.trace
    vm = remote_vm(session, made.executable, tmp_path)
    arguments = arguments_of(vm, [a.numpy() for a in made.arguments])
    with relax_trace.record(vm) as recording:
        vm[made.function](*arguments)
    there = recording.trace
    calls = there.invocations
    assert listed(there) == listed(here)
    assert rows(there.report()) == rows(here.report())
    assert calls.parent.tolist() == [-1, 0]
    inside = (there.start >= calls.start[1]) & (there.end <= calls.end[1])
    assert inside.all()
    assert calls.start[0] <= calls.start[1] <= calls.end[1] <= calls.end[0]
    (total,) = there.report().totals
    assert total.duration == calls.end[1] - calls.start[1]
    assert (there.invocation == 1).all()
    name = name_of(session)
    assert [thread.process for thread in there.threads] == ["", name]
    assert there.threads[0].pid == os.getpid() != there.threads[1].pid
    (said,) = [value for key, value in there.configuration.items() if key == f"Clock of {name}"]
    assert 0 < float(said.removeprefix("within ").split()[0]) < 10_000
    for suffix in (".npz", ".json"):
        there.save(tmp_path / f"trace{suffix}")
        again = relax_trace.load(tmp_path / f"trace{suffix}")
        assert (again.threads, again.devices) == (there.threads, there.devices)
        assert listed(again) == listed(there)


def test_profile_and_the_stateful_api(session: Any, tmp_path: Path) -> None:
    """With arguments, with what was set, with neither and with both."""
    vm = remote_vm(session, chain(5), tmp_path)
    ops = [("add", "5"), ("vm.builtin.check_tensor_info", "1"), ("vm.builtin.match_shape", "1")]

    def counted(report: relax_trace.Report) -> list[tuple[str, str]]:
        return [(row[0], row[3]) for row in rows(report)[:-1]]

    assert counted(relax_trace.profile(vm, "main", X)) == ops
    with pytest.raises(ValueError, match="No input is provided: 'main' takes some"):
        relax_trace.profile(vm, "main")
    vm.set_input("main", tvm.runtime.tensor(X, session.cpu()))
    assert counted(relax_trace.profile(vm, "main")) == ops
    with pytest.raises(ValueError, match="Inputs are already provided by set_input"):
        relax_trace.profile(vm, "main", X)
    with relax_trace.record() as recording:
        vm.invoke_stateful("main")
        assert (vm.get_outputs("main").numpy() == 6 * X).all()
    trace = recording.trace
    assert [trace.names[i] for i in trace.invocations.function.tolist()] == ["main", "main"]
    assert len(trace) == OPS


@I.ir_module
class Tuples:
    """A tuple in, a tuple with a tuple in it out."""

    @R.function
    def main(  # noqa: D102
        t: R.Tuple(R.Tensor((4,), "float32"), R.Tensor((4,), "float32")),  # noqa: N805
    ) -> R.Tuple(R.Tensor((4,), "float32"), R.Tuple(R.Tensor((4,), "float32"))):
        a = t[0]
        b = t[1]
        c = R.add(a, b)
        d = R.multiply(a, b)
        return (c, (d,))


@pytest.mark.parametrize("remote", [False, True])
def test_tuples_in_and_out(remote: bool, session: Any, tmp_path: Path) -> None:
    """By the stateful API, over there and here, with the same table."""
    executable = tvm.compile(Tuples, "llvm")
    if remote:
        vm = remote_vm(session, executable, tmp_path)
        values: Any = relax_trace.remote_tuple(vm, [X, X + 1])
    else:
        vm = relax.VirtualMachine(executable, tvm.cpu())
        values = (X, X + 1)
    vm.set_input("main", values)
    with relax_trace.record(vm) as recording:
        vm.invoke_stateful("main")
    total, (product,) = vm.get_outputs("main")
    assert total.numpy().tolist() == (2 * X + 1).tolist()
    assert product.numpy().tolist() == (X * (X + 1)).tolist()
    found = {row[:2] for row in rows(recording.trace.report())}
    assert ("add", "float32[4], float32[4], float32[4]") in found
    assert ("vm.builtin.check_tuple_info", "(float32[4], float32[4])") in found
    report = relax_trace.profile(vm, "main")
    assert rows(report) == rows(recording.trace.report())
    if remote:
        with pytest.raises(relax_trace.ModelError, match="a tuple holds tensors alone"):
            relax_trace.remote_tuple(vm, [X, (X, X)])


def test_a_session_that_leads_here(tmp_path: Path) -> None:
    """rpc.LocalSession() is this process: no client's side, no second process."""
    vm = remote_vm(rpc.LocalSession(), chain(5), tmp_path)
    with relax_trace.record(vm) as recording:
        vm["main"](*arguments_of(vm, [X]))
    trace = recording.trace
    assert (len(trace), len(trace.invocations), len(trace.threads)) == (OPS, 1, 1)
    assert trace.threads[0].pid == os.getpid()


def test_two_servers_and_this_process_at_once(board: Server, tmp_path: Path) -> None:
    """A process each in the timeline, devices that say where they are, a Total each."""
    with server() as other:
        sessions = [board.connect(), other.connect()]
        vms = [remote_vm(session, chain(5), tmp_path) for session in sessions]
        local = relax.VirtualMachine(chain(5), tvm.cpu())
        with relax_trace.record() as recording:
            for vm in vms:
                x = tvm.runtime.tensor(X, device_of(vm))
                for _ in range(2):
                    vm["main"](x)
            local["main"](tvm.runtime.tensor(X))
    trace = recording.trace
    there = [f"cpu0@{each.name}" for each in (board, other)]
    report = trace.report()
    assert {total.device: total.count for total in report.totals} == {
        "cpu0": 1,
        there[0]: 2,
        there[1]: 2,
    }
    adds = [row for row in rows(report) if row[0] == "add"]
    assert sorted((row[2], row[3]) for row in adds) == sorted(
        [("cpu0", "5"), (there[0], "10"), (there[1], "10")]
    )
    assert len(trace.filter(device=there[1])) < len(trace)
    trace.save(tmp_path / "trace.json")
    events = json.loads((tmp_path / "trace.json").read_text())["traceEvents"]
    processes = [e for e in events if e["name"] == "process_name"]
    assert [e["args"]["name"] for e in processes][1:] == [board.name, other.name]
    assert len({e["pid"] for e in processes}) == 3
    adds_by_process = {e["pid"]: 0 for e in processes}
    for event in events:
        if event["name"] == "add":
            adds_by_process[event["pid"]] += 1
    assert list(adds_by_process.values()) == [5, 10, 10]


def device_of(vm: Any) -> Any:
    """The CPU that a remote VM runs on."""
    return session_of(vm).cpu()


def test_in_opentelemetry_the_ops_are_of_the_clients_trace(session: Any, tmp_path: Path) -> None:
    """Two resources, one trace: the call, inside it the server's invocation, inside it the ops."""
    vm = remote_vm(session, chain(5), tmp_path)
    with relax_trace.record(vm) as recording:
        vm["main"](*arguments_of(vm, [X]))
    with http_receiver() as receiver:
        sent = recording.trace.send(endpoint=receiver.endpoint, protocol="http/protobuf")
        assert sent.accepted == OPS + 2
        by_pid = {}
        for request in receiver.requests:
            for resource in request.resource_spans:
                said = {a.key: a.value for a in resource.resource.attributes}
                pid = said["process.pid"].int_value
                by_pid[pid] = [span for scope in resource.scope_spans for span in scope.spans]
                assert (said["host.name"].string_value == "127.0.0.1") == (pid != os.getpid())
    pids = [thread.pid for thread in recording.trace.threads]
    (outer,) = by_pid[pids[0]]
    inner, *ops = by_pid[pids[1]]
    assert (outer.parent_span_id, inner.parent_span_id) == (b"", outer.span_id)
    assert {op.parent_span_id for op in ops} == {inner.span_id}
    assert {span.trace_id for span in (outer, inner, *ops)} == {outer.trace_id}


def test_cycles_and_files_on_failure(session: Any, tmp_path: Path) -> None:
    """A schedule's cycles are handed over; what fails leaves a file."""
    vm = remote_vm(session, chain(5), tmp_path)
    x = tvm.runtime.tensor(X, session.cpu())
    ready: list[int] = []
    plan = relax_trace.schedule(wait=1, active=2)
    with relax_trace.record(
        vm,
        schedule=plan,
        on_ready=lambda trace: ready.append(len(trace)),
        snapshots=tmp_path / "files",
    ):
        for _ in range(6):
            vm["main"](x)
        with pytest.raises(tvm.error.RPCError):
            vm["main"]()
    assert ready == [2 * OPS, 2 * OPS]
    (file,) = (tmp_path / "files").iterdir()
    table = relax_trace.load(file).invocations
    assert int((table.flags & FAILED > 0).sum()) >= 1


def test_a_recorder_that_is_there_already(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Loaded by the server, it is not uploaded."""
    with server("--load-library", str(LIBRARY)) as found:
        vm = remote_vm(found.connect(), chain(5), tmp_path)
        monkeypatch.setattr(shipping, "LIBRARY", tmp_path / "nothing may be uploaded")
        with relax_trace.record(vm) as recording:
            vm["main"](*arguments_of(vm, [X]))
        assert len(recording.trace) == OPS


def test_servers_without_a_recorder_that_fits(
    session: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One line says what was tried, for which machine one is needed, and how it is made."""
    other = tmp_path / "aarch64.so"
    header = bytearray(LIBRARY.read_bytes())
    header[18] = 183  # e_machine: AArch64
    other.write_bytes(header)
    monkeypatch.setattr(shipping, "LIBRARY", other)
    vm = remote_vm(session, chain(5), tmp_path)
    with pytest.raises(relax_trace.RecorderError) as raised:
        relax_trace.record(vm)
    said = str(raised.value)
    assert "\n" not in said
    assert f"the server {name_of(session)} has no recorder, and took none" in said
    assert "aarch64.so" in said
    assert "relax-trace recorder --target TRIPLE -o FILE" in said
    assert "x86_64" in said
    monkeypatch.setenv("RELAX_TRACE_RECORDERS", f"{tmp_path}/missing.so{os.pathsep}{LIBRARY}")
    with relax_trace.record(vm) as recording:
        vm["main"](*arguments_of(vm, [X]))
    assert len(recording.trace) == OPS


def test_a_recorder_of_another_format(tmp_path: Path) -> None:
    """It is named, with both formats."""
    sources = LIBRARY.parent
    include = Path(tvm.__file__).parents[1] / "tvm_ffi" / "include"
    changed = tmp_path / "sources"
    changed.mkdir()
    for file in [*sources.glob("*.h"), sources / "recorder.c"]:
        text = file.read_text()
        (changed / file.name).write_text(text.replace("DUMP_VERSION = ", "DUMP_VERSION = 9"))
    library = tmp_path / "other.so"
    flags = ["-std=gnu11", "-O1", "-fPIC", "-shared", "-fvisibility=hidden", f"-I{include}"]
    subprocess.run(["cc", *flags, "-o", library, changed / "recorder.c", "-lpthread"], check=True)
    with server("--load-library", str(library)) as found:
        vm = remote_vm(found.connect(), chain(5), tmp_path)
        with pytest.raises(
            relax_trace.RecorderError, match=rf"the recorder of {found.name} writes"
        ):
            relax_trace.record(vm)


def test_a_server_that_dies(tmp_path: Path) -> None:
    """What ran before is kept, the trace says that it is not whole, the error is TVM's own."""
    with server() as found:
        session = found.connect()
        vm = remote_vm(session, chain(5), tmp_path)
        x = tvm.runtime.tensor(X, session.cpu())
        recording = relax_trace.record(vm)
        with recording:
            for _ in range(3):
                vm["main"](x)
            drained(recording, 6)
            kill_children(found)
            with pytest.raises(tvm.error.InternalError):
                vm["main"](x)
        trace = recording.trace
        assert len(trace) == 3 * OPS
        flags = [int(flag) & FAILED for flag in trace.invocations.flags]
        assert flags == [0, 0, 0, FAILED, 0, 0, 0]
        (said,) = [v for k, v in trace.configuration.items() if k == f"Incomplete, {found.name}"]
        assert said.startswith(f"the recorder of {found.name} can't be reached: ")
        assert f"Incomplete, {found.name}: " in str(trace.report())
        with pytest.raises(relax_trace.RecorderError, match="can't be reached: "):
            relax_trace.record(vm)
        del vm, session


def test_a_server_that_dies_in_the_middle_of_a_call(tmp_path: Path) -> None:
    """The call fails as it does without us; what ran before it is there."""
    size = 8 << 20
    with server() as found:
        session = found.connect()
        vm = remote_vm(session, chain(200, size), tmp_path)
        x = tvm.runtime.tensor(np.ones(size, np.float32), session.cpu())
        small_vm = remote_vm(session, chain(5), tmp_path)
        small = tvm.runtime.tensor(X, session.cpu())
        recording = relax_trace.record()
        with recording:
            small_vm["main"](small)
            drained(recording, 2)
            threading.Timer(0.3, kill_children, [found]).start()
            with pytest.raises(tvm.error.InternalError):
                vm["main"](x)
        trace = recording.trace
        assert [int(flag) & FAILED for flag in trace.invocations.flags] == [0, FAILED, 0]
        assert len(trace) == OPS
        assert any(key.startswith("Incomplete") for key in trace.configuration)
        del vm, small_vm, session


def test_a_server_that_dies_in_the_middle_of_a_drain(tmp_path: Path) -> None:
    """Nobody's call fails for it; what came over earlier is there."""
    with server() as found:
        session = found.connect()
        vm = remote_vm(session, chain(5), tmp_path)
        x = tvm.runtime.tensor(X, session.cpu())
        recording = relax_trace.record(vm)
        (part,) = recording._parts.values()
        vm["main"](x)
        drained(recording, 2)
        native = part.hub._native()

        def die(*args: Any) -> Any:
            kill_children(found)
            return native.dump(*args)

        part.hub._native = lambda: replace(native, dump=die)  # type: ignore[method-assign]
        vm["main"](x)
        recording.stop()
        assert len(recording.trace) == OPS
        assert any(key.startswith("Incomplete") for key in recording.trace.configuration)
        del vm, session


def drained(recording: relax_trace.Recording, records: int) -> None:
    """Wait until so many records of invocations are here."""
    until = time.monotonic() + 30
    while time.monotonic() < until:
        parts = recording._parts.values()
        dumps = [records for part in parts for records in part.dumps.threads.values()]
        if sum(len(piece) for one in dumps for piece in one.invocations) >= records:
            return
        time.sleep(0.02)
    raise AssertionError("nothing was drained along the way")


def kill_children(found: Server) -> None:
    """Kill the processes that serve connections."""
    import psutil

    for child in psutil.Process(found.process.pid).children(recursive=True):
        child.send_signal(signal.SIGKILL)


def test_a_connection_that_times_out(board: Server, tmp_path: Path) -> None:
    """The server ends it; what was drained on the way is kept."""
    session = board.connect(session_timeout=4)
    vm = remote_vm(session, chain(5), tmp_path)
    x = tvm.runtime.tensor(X, session.cpu())
    with relax_trace.record(vm) as recording:
        for _ in range(5):
            vm["main"](x)
        time.sleep(5)
    assert len(recording.trace) == 5 * OPS
    assert any(key.startswith("Incomplete") for key in recording.trace.configuration)


def test_a_recording_left_open_and_two_clients_in_turn(board: Server, tmp_path: Path) -> None:
    """Each connection has a process, and a recorder, of its own."""
    program = f"""
import numpy as np, tvm, relax_trace
from pathlib import Path
from tvm import rpc
from integration.remotes import remote_vm
from integration.small_vms import chain
session = rpc.connect("127.0.0.1", {board.port})
vm = remote_vm(session, chain(5), Path({str(tmp_path)!r}))
x = tvm.runtime.tensor(np.arange(4, dtype="float32"), session.cpu())
recording = relax_trace.record(vm)
for _ in range(COUNT):
    vm["main"](x)
FINISH
print(len(recording.trace) if recording._ended else "open")
"""
    for count, finish, printed in ((2, "", "open"), (3, "recording.stop()", str(3 * OPS))):
        ended = run_alone(program.replace("COUNT", str(count)).replace("FINISH", finish))
        assert (ended.returncode, ended.stdout.split()[-1:]) == (0, [printed]), ended


def test_the_command(board: Server, tmp_path: Path) -> None:
    """``relax-trace run --rpc``, and through a tracker; the table is the local one's."""
    library = tmp_path / "model.so"
    chain(5).export_library(str(library))
    command = [sys.executable, "-m", "relax_trace", "run", str(library)]
    options = ["--input", "x=4", "-o", str(tmp_path / "trace.npz")]

    def table(*more: str) -> list[str]:
        ended = subprocess.run(
            [*command, *options, *more], capture_output=True, text=True, check=False, timeout=120
        )
        assert ended.returncode == 0, ended
        lines = ended.stdout.splitlines()
        cells = [line.split() for line in lines[1 : lines.index("Configuration") - 1]]
        return [cell[0] + cell[-1] for cell in cells if cell and cell[0] != "----------"]

    here = sorted(table())
    assert sorted(table("--rpc", board.name)) == here
    with running("tvm.exec.rpc_tracker", "--port", "9190") as (_, port):
        tracker = f"127.0.0.1:{port}"
        with server("--tracker", tracker, "--key", "test"):
            found = table("--tracker", tracker, "--key", "test")
    assert sorted(found) == here
    ended = subprocess.run(
        [*command, "--rpc", "127.0.0.1:1"], capture_output=True, text=True, check=False
    )
    assert (ended.returncode, ended.stdout) == (1, "")
    assert ended.stderr.startswith("relax-trace: error: --rpc 127.0.0.1:1 can't be reached")
    assert ended.stderr.count("\n") == 1
