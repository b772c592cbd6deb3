"""A process that forks, or ends, while it records."""

from __future__ import annotations

import pytest

from integration.small_vms import run_alone

# Each program runs alone, for a fork copies whatever the process has: `child(work)` forks, has the
# child do `work()` and write its result to a pipe, and returns that. A child that hangs is killed.
HEAD = """
import json, os, signal, sys, threading, time, warnings
import relax_trace
from integration.small_vms import (
    CALL, MAIN, UNCHECKED, callback, calls, chain, counts, functions, small, tensor, vm_of
)
from relax_trace.trace import FAILED, IMPLICIT, OPEN

# Python warns, from 3.12 on, of what is tried here.
warnings.filterwarnings("ignore", ".* multi-threaded, use of fork", DeprecationWarning)
x = tensor(1, 2, 3, 4)

def child(work):
    reader, writer = os.pipe()
    pid = os.fork()
    if not pid:
        signal.alarm(60)
        status = 1
        try:
            os.write(writer, json.dumps(work(), default=int).encode())
            status = 0
        except BaseException as error:
            os.write(writer, json.dumps(repr(error)).encode())
        finally:
            os._exit(status)
    os.close(writer)
    with open(reader, "rb") as pipe:
        told = pipe.read()
    _, status = os.waitpid(pid, 0)
    assert status == 0, (status, told)
    return json.loads(told)

def summary(trace):
    found = [functions(trace), [calls(trace, i) for i in range(len(trace.invocations))]]
    return [*found, trace.invocations.flags.tolist()]

def record_main(vm):
    with relax_trace.record(vm) as recording:
        assert vm["main"](x).numpy().tolist() == [1, 9, 25, 49]
    thread, = recording.trace.threads
    assert (thread.pid, thread.tid) == (os.getpid(), threading.get_native_id())
    return summary(recording.trace)
"""


def run(body: str) -> None:
    """Run the program ``HEAD + body``, which is to print ``done`` and end well."""
    ended = run_alone(HEAD + body + "\nprint('done')")
    assert (ended.returncode, ended.stdout, ended.stderr) == (0, "done\n", "")


def test_a_fork_between_two_invocations() -> None:
    """The parent's trace is as without it; the child goes on, and records what it runs itself."""
    run(
        """
vm, other = vm_of(small()), vm_of(small())
bare = vm["unchecked"]
with relax_trace.record(vm) as recording:
    vm["main"](x)

    def work():
        first = [record_main(vm), record_main(other)]
        vm["call"](x)
        recording.stop()
        return [*first, summary(recording.trace), record_main(vm)]

    told = child(work)
    vm["call"](x)
whole = [["main"], [MAIN], [0]]
assert told[:2] == [whole, whole], told[:2]
functions_, calls_, flags = told[2]  # the child's copy of the recording: what itself ran
assert functions_ == ["main", "call"], functions_
assert calls_ == [MAIN, CALL]
assert told[3] == whole
assert summary(recording.trace) == [["main", "call"], [MAIN, CALL], [0, 0]]
assert [thread.pid for thread in recording.trace.threads] == [os.getpid()]
"""
    )


@pytest.mark.parametrize("taken_before", [False, True])
def test_a_fork_inside_an_op(taken_before: bool) -> None:
    """Parent and child both return from the op; each goes on with a recording of its own."""
    run(
        f"""
vm, other = vm_of(small()), vm_of(small())
function = vm["call"]
told = []

def fork(_):
    told.append(child(lambda: [record_main(other), record_main(vm)]))

with relax_trace.record(vm) as recording:
    function = function if {taken_before} else vm["call"]
    with callback(fork):
        function(x)
    function(x)
assert told == [[[["main"], [MAIN], [0]]] * 2], told
flags = [IMPLICIT, IMPLICIT] if {taken_before} else [0, 0]
assert summary(recording.trace) == [["call", "call"], [CALL, CALL], flags]
"""
    )


@pytest.mark.parametrize("taken_before", [False, True])
def test_a_child_that_returns_from_the_op_it_was_forked_in(taken_before: bool) -> None:
    """It ends the invocation, and can then record, call functions taken before, and stop."""
    run(
        f"""
vm = vm_of(small())
bare = vm["main"]
function = vm["call"]
reader, writer = os.pipe()
pids = []
parent = os.getpid()
recording = relax_trace.record(vm)
function = function if {taken_before} else vm["call"]
with callback(lambda _: pids.append(os.fork())):
    assert function(x).numpy().tolist() == [2, 4, 6, 8]
if pids == [0]:
    signal.alarm(60)
    try:
        vm["main"](x)
        recording.stop()
        found = [functions(recording.trace)[-1], calls(recording.trace, -1 + len(
            recording.trace.invocations)) == MAIN, record_main(vm)[1] == [MAIN]]
        with relax_trace.record(vm) as again:
            bare(x)
        os.write(writer, json.dumps([*found, summary(again.trace)]).encode())
    except BaseException as error:
        os.write(writer, json.dumps(repr(error)).encode())
    os._exit(0)
os.close(writer)
told = json.loads(open(reader, "rb").read())
_, status = os.waitpid(pids[0], 0)
assert status == 0, status
recording.stop()
assert told == ["main", True, True, [["main"], [MAIN], [IMPLICIT]]], told
assert summary(recording.trace) == [["call"], [CALL], [IMPLICIT if {taken_before} else 0]]
"""
    )


def test_forks_while_other_threads_record_and_invoke() -> None:
    """Whatever lock another thread held at the fork, the child can record."""
    run(
        """
vms = [vm_of(chain(60)) for _ in range(3)]
vm = vm_of(small())
done = threading.Event()

def switch():
    while not done.is_set():
        with relax_trace.record(vms[0]):
            vms[0]["main"](x)

def invoke():
    with relax_trace.record(vms[1]) as recording:
        while not done.is_set():
            vms[1]["main"](x)
    kept.append(recording)

kept = []
threads = [threading.Thread(target=target) for target in (switch, invoke)]
for thread in threads:
    thread.start()
for _ in range(20):
    assert child(lambda: record_main(vm)) == [["main"], [MAIN], [0]]
done.set()
for thread in threads:
    thread.join()
trace = kept[0].trace
assert trace.losses.invocations == 0
with relax_trace.record(vms[1]) as whole:
    vms[1]["main"](x)
assert set(counts(trace)) == {len(whole.trace)}
assert record_main(vm) == [["main"], [MAIN], [0]]
"""
    )


def test_a_child_of_a_child_records() -> None:
    """Three generations, each inside a recording of the one before."""
    run(
        """
vm = vm_of(small())

def generation(depth):
    with relax_trace.record(vm) as recording:
        vm["main"](x)
        below = child(lambda: generation(depth - 1)) if depth else []
        vm["call"](x)
    return [summary(recording.trace), *below]

for found in generation(3):
    assert found == [["main", "call"], [MAIN, CALL], [0, 0]], found
"""
    )


BODY = """
with relax_trace.record(vm):
    function(x)
    vm["main"](x)
    {ending}
"""
OP = """
def end(_):
    {ending}
with callback(end), relax_trace.record(vm):
    try:
        vm["call"](x)
    except RuntimeError:  # TVM's word for an exception that it doesn't know
        {ending}
"""


@pytest.mark.parametrize(
    ("body", "ending", "code", "error"),
    [
        (BODY, "sys.exit(7)", 7, ""),
        (BODY, "sys.exit('no')", 1, "no\n"),
        (BODY, "os._exit(5)", 5, ""),
        ("it = relax_trace.record(vm)\nfunction(x)\nvm['main'](x)\n{ending}", "pass", 0, ""),
        (OP, "sys.exit(7)", 7, ""),
        (OP, "os._exit(5)", 5, ""),
    ],
)
def test_a_process_that_ends_while_it_records(
    body: str, ending: str, code: int, error: str
) -> None:
    """Its exit code is its own, and nothing crashes on the way out."""
    program = 'vm = vm_of(small())\nfunction = vm["main"]\n' + body.format(ending=ending)
    ended = run_alone(HEAD + program)
    assert (ended.returncode, ended.stdout, ended.stderr) == (code, "", error)


def test_an_interpreter_that_ends_before_its_threads() -> None:
    """A daemon thread that ran a recorded VM, and waits, does no harm at the end of the program."""
    run(
        """
vm = vm_of(small())
recording = relax_trace.record(vm)
ran = threading.Event()

def invoke():
    vm["main"](x)
    ran.set()
    time.sleep(1000)

threading.Thread(target=invoke, daemon=True).start()
ran.wait()
vm["main"](x)
"""
    )
