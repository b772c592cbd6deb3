"""What happens to a process that records: VMs and threads come and go, disks fill, it ends."""

from __future__ import annotations

import gc
import threading
import weakref
from pathlib import Path

import numpy as np
import pytest

import relax_trace
from benchmarks.soak import GROWTH, resident, soak
from integration.small_vms import (
    CALL,
    MAIN,
    calls,
    chain,
    counts,
    functions,
    run_alone,
    small,
    tensor,
    vm_of,
)
from relax_trace import Losses
from relax_trace.options import Mode

X = tensor(1, 2, 3, 4)


@pytest.mark.parametrize("everywhere", [False, True])
def test_a_vm_that_is_destroyed_while_it_is_recorded(everywhere: bool) -> None:
    """Nothing keeps it alive, its calls stay, and the slot it leaves is no later recording's."""
    vm = vm_of(small())
    gone = weakref.ref(vm)
    with relax_trace.record(*([] if everywhere else [vm])) as recording:
        vm["main"](X)
        function = vm["call"]
        del vm
        gc.collect()
        assert gone() is None
        other = vm_of(small())
        other["main"](X)
    assert functions(recording.trace) == ["main"] * (1 + everywhere)
    assert calls(recording.trace) == MAIN
    with relax_trace.record(other) as later:
        function(X)
        other["call"](X)
    assert functions(later.trace) == ["call"]
    assert calls(later.trace) == CALL


@pytest.mark.parametrize("mode", ["stop", "ring"])
def test_threads_that_come_and_go_by_the_thousand(mode: Mode) -> None:
    """Each leaves its calls under its own name; memory doesn't grow with their number."""
    vm = vm_of(small())

    def run(first: int, count: int) -> None:
        for number in range(first, first + count):
            thread = threading.Thread(target=vm["main"], args=(X,), name=f"worker {number}")
            thread.start()
            thread.join()

    with relax_trace.record(vm, mode=mode) as recording:
        run(0, 500)
        before = resident()
        run(500, 2500)
        grown = resident() - before
    trace = recording.trace
    assert counts(trace) == [len(MAIN)] * 3000
    assert trace.losses == Losses()
    assert len(set(trace.invocations.thread.tolist())) == len(trace.threads)
    assert grown < 3000 * 8192  # a state of 60 KB for each would show


def test_ten_thousand_recordings() -> None:
    """Opened and closed, of one VM and of all; each its own, and no memory left behind."""
    vm = vm_of(small())
    main = vm["main"]
    sizes = []
    for number in range(10_000):
        with relax_trace.record(*([vm] if number % 3 else [])) as recording:
            if number % 100 == 0:
                vm["main"](X)
        if number % 100 == 0:
            assert calls(recording.trace) == MAIN
        if number % 1000 == 999:
            gc.collect()
            sizes.append(resident())
    assert sizes[-1] - sizes[2] < GROWTH
    np.testing.assert_array_equal(main(X).numpy(), [1, 9, 25, 49])


def test_a_reader_that_drains_while_many_threads_record() -> None:
    """Recordings that come and go drain; the one around them has every call once."""
    vms = [vm_of(chain(50)) for _ in range(4)]
    rounds = 300

    def run(number: int) -> None:
        main = vms[number]["main"]
        for _ in range(rounds):
            main(X)

    with relax_trace.record() as recording:
        threads = [threading.Thread(target=run, args=(number,)) for number in range(4)]
        for thread in threads:
            thread.start()
        drains = 0
        while any(thread.is_alive() for thread in threads):
            with relax_trace.record(vms[drains % 4]):
                drains += 1
    trace = recording.trace
    assert drains > 10
    assert len(trace.invocations) == 4 * rounds
    assert len(set(counts(trace))) == 1
    assert trace.losses == Losses()
    for thread in range(4):
        starts = trace.start[trace.thread == thread]
        assert (np.diff(starts) > 0).all()


HEAD = """
import os, resource, signal, sys, threading, time
import relax_trace
from integration.small_vms import callback, calls, chain, functions, small, tensor, vm_of, MAIN
x = tensor(1, 2, 3, 4)
vm = vm_of(small())
"""


def test_an_interpreter_that_ends_in_the_middle(tmp_path: Path) -> None:
    """Threads invoke, a ring takes snapshots, a failure waits for its file: the end is clean."""
    ended = run_alone(
        HEAD
        + f"""
recording = relax_trace.record(mode="ring", snapshots={str(tmp_path)!r})
scheduled = relax_trace.record(schedule=relax_trace.schedule(active=300), on_ready=lambda t: None)
others = [vm_of(chain(100)) for _ in range(2)]

def run(vm):
    for _ in range(3000):
        vm["main"](x)

for other in others:  # they go on after the main thread has ended
    threading.Thread(target=run, args=(other,)).start()

def fail(_):
    raise ValueError("on purpose")

recording.snapshot()
with callback(fail):
    try:
        vm["call"](x)
    except ValueError:
        pass
print("done")
"""
    )
    assert (ended.returncode, ended.stdout) == (0, "done\n"), ended.stderr
    (written,) = tmp_path.iterdir()
    assert ended.stderr == f"'call' failed: see {written}\n"
    assert "call" in functions(relax_trace.load(written))


def test_a_fork_inside_a_ring_with_snapshots(tmp_path: Path) -> None:
    """The child's failures are written by the child, and the parent's by the parent."""
    ended = run_alone(
        HEAD
        + f"""
import warnings
warnings.simplefilter("ignore", DeprecationWarning)  # of a fork beside threads
recording = relax_trace.record(vm, mode="ring", snapshots={str(tmp_path)!r})
vm["main"](x)

def fail(_):
    raise ValueError("on purpose")

def fail_once():
    with callback(fail):
        try:
            vm["call"](x)
        except ValueError:
            pass
    recording.stop()

pid = os.fork()
if not pid:
    signal.alarm(60)
    fail_once()
    os._exit(0)
_, status = os.waitpid(pid, 0)
assert status == 0, status
fail_once()
print(os.getpid(), pid)
"""
    )
    assert ended.returncode == 0, ended.stderr
    parent, child = ended.stdout.split()
    found = {path.name.split("-")[2]: relax_trace.load(path) for path in tmp_path.iterdir()}
    assert set(found) == {parent, child}
    assert functions(found[parent]) == ["main", "call"]
    assert functions(found[child]) == ["call"]
    for pid, trace in found.items():
        assert {thread.pid for thread in trace.threads} == {int(pid)}


@pytest.mark.parametrize("suffix", ["npz", "json", "json.gz"])
def test_a_disk_that_is_full(tmp_path: Path, suffix: str) -> None:
    """An OSError, no part of the file left, and the trace can be written elsewhere."""
    ended = run_alone(
        HEAD
        + f"""
with relax_trace.record(vm) as recording:
    for _ in range(500):
        vm["main"](x)
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (2000, resource.RLIM_INFINITY))
try:
    recording.trace.save({str(tmp_path / f"trace.{suffix}")!r})
except OSError as error:
    print(type(error).__name__, error.strerror)
print(os.listdir({str(tmp_path)!r}))
resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY,) * 2)
recording.trace.save({str(tmp_path / f"other.{suffix}")!r})
"""
    )
    assert (ended.returncode, ended.stderr) == (0, "")
    assert ended.stdout == "OSError File too large\n[]\n"
    assert len(relax_trace.load(tmp_path / f"other.{suffix}").invocations) == 500


def test_a_soak_of_20_million_calls_keeps_memory_flat() -> None:
    """In ring mode, with snapshots, changing shapes and recordings beside it."""
    growth, trace = soak(20_000_000)
    assert growth < GROWTH
    assert trace.losses.overwritten > 19_000_000
    assert (trace.losses.ops, trace.losses.invocations, trace.losses.signatures) == (0, 0, 0)
