"""Every way into a VM is recorded as invocations, and goes on working as it did."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import tvm
from tvm import relax

import relax_trace
from integration.small_vms import (
    CALL,
    IDENTITY,
    LIFTED,
    MAIN,
    PAIR,
    TWO,
    UNCHECKED,
    TensorType,
    callback,
    calls,
    counts,
    functions,
    small,
    tensor,
    vm_of,
)
from relax_trace.trace import FUNCTION, IMPLICIT

VM = relax.VirtualMachine
X = (1.0, 2.0, 3.0, 4.0)


def values(outputs: Any) -> list[Any]:
    """What a VM function returned, a tensor or a tuple of them, as lists."""
    if hasattr(outputs, "numpy"):
        found: list[Any] = outputs.numpy().tolist()
        return found
    return [values(output) for output in outputs]


def stateful(vm: VM) -> Any:
    """Call ``two`` through the stateful API."""
    vm.set_input("two", tensor(*X))
    vm.invoke_stateful("two")
    return vm.get_outputs("two")


def stateful_module(vm: VM) -> Any:
    """The same through ``vm[...]`` alone, as scripts for RPC do."""
    vm["set_input"]("main", tensor(*X))
    vm["invoke_stateful"]("main")
    return vm["get_output"]("main")


def closure(vm: VM) -> Any:
    """Call a closure that a bare function made."""
    return vm.invoke_closure(vm.module["make"](tensor(*X)), tensor(*X))


def saved(vm: VM) -> Any:
    """Call a function that was saved with its argument."""
    vm.save_function("main", "saved", tensor(*X))
    return vm["saved"]()


def saved_again(vm: VM) -> Any:
    """Save under a name that is taken, after the first was called: the second one is to run."""
    vm.save_function("main", "saved", tensor(*X))
    vm["saved"]()
    vm.save_function("two", "saved", x=tensor(*X))
    return vm["saved"]()


def pair(function: Any) -> Any:
    """Call ``pair``, whose first parameter is a tuple within a tuple."""
    return function((tensor(*X), (tensor(1, 2, dtype="int64"),)), tensor(*X))


ENTRIES: list[tuple[Callable[[VM], Any], list[str], list[list[str]]]] = [
    (lambda vm: vm["main"](tensor(*X)), ["main"], [MAIN]),
    (lambda vm: pair(vm["pair"]), ["pair"], [PAIR]),
    (stateful, ["two"], [TWO]),
    (stateful_module, ["main"], [MAIN]),
    (saved, ["saved"], [MAIN]),
    (saved_again, ["saved", "saved"], [MAIN, TWO]),
]


@pytest.mark.parametrize(("enter", "invoked", "expected"), ENTRIES)
def test_an_entry_point_gives_its_result_and_its_invocations(
    enter: Callable[[VM], Any], invoked: list[str], expected: list[list[str]]
) -> None:
    """The result is the bare VM's, and each invocation has its calls, in order and nested."""
    bare = values(enter(vm_of(small())))
    vm = vm_of(small())
    with relax_trace.record(vm) as recording:
        results = values(enter(vm))
    again = values(enter(vm))
    trace = recording.trace
    assert results == again == bare
    assert functions(trace) == invoked
    assert [calls(trace, i) for i in range(len(trace.invocations))] == expected
    assert trace.invocations.flags.tolist() == [0] * len(invoked)
    assert trace.invocations.parent.tolist() == [-1] * len(invoked)
    assert trace.invocations.error.tolist() == [-1] * len(invoked)
    assert trace.flags.tolist() == [0] * len(trace)
    assert trace.kinds[trace.invocations.function].tolist() == [FUNCTION] * len(invoked)
    assert (trace.start >= trace.invocations.start[trace.invocation]).all()
    assert (trace.end <= trace.invocations.end[trace.invocation]).all()
    assert trace.losses == relax_trace.Losses()


def test_a_closure_is_an_invocation_under_its_own_name() -> None:
    """``invoke_closure`` shows what it runs; the bare call that made the closure is implicit."""
    vm = vm_of(small())
    with relax_trace.record(vm) as recording:
        result = closure(vm)
    trace = recording.trace
    np.testing.assert_array_equal(result.numpy(), [2, 4, 6, 8])
    assert functions(trace) == ["make", "lifted"]
    assert trace.invocations.flags.tolist() == [IMPLICIT, 0]
    assert calls(trace, 0) == ["check_tensor_info", "match_shape", "make_closure"]
    assert calls(trace, 1) == LIFTED


def test_functions_taken_before_the_recording_are_seen_one_by_one() -> None:
    """Back to back, each call is an implicit invocation of its own, tuples or not."""
    vm = vm_of(small())
    main, identity, two = vm["main"], vm["identity"], vm["pair"]
    with relax_trace.record(vm) as recording:
        for _ in range(3):
            np.testing.assert_array_equal(main(tensor(*X)).numpy(), [1, 9, 25, 49])
        for _ in range(3):
            identity(tensor(*X))
        for _ in range(2):
            np.testing.assert_array_equal(pair(two).numpy(), [2, 4, 6, 8])
        vm["main"](tensor(*X))
        identity(tensor(*X))
        vm.module["main"](tensor(*X))
    trace = recording.trace
    expected = ["main"] * 3 + ["identity"] * 3 + ["pair"] * 2 + ["main", "identity", "main"]
    assert functions(trace) == expected
    assert trace.invocations.flags.tolist() == [IMPLICIT] * 8 + [0, IMPLICIT, IMPLICIT]
    bodies = {"main": MAIN, "identity": IDENTITY, "pair": PAIR}
    assert [calls(trace, i) for i in range(11)] == [bodies[name] for name in expected]
    last = np.array([np.flatnonzero(trace.invocation == i)[-1] for i in range(11)])
    implicit = trace.invocations.flags == IMPLICIT
    np.testing.assert_array_equal(trace.invocations.end[implicit], trace.end[last[implicit]])


def test_a_function_without_checked_parameters_taken_before_loses_no_call() -> None:
    """Nothing says where it begins: its calls stand in one implicit invocation without a name."""
    vm = vm_of(small())
    function = vm["unchecked"]
    with relax_trace.record(vm) as recording:
        assert [function().numpy().tolist() for _ in range(3)] == [[2, 1]] * 3
    trace = recording.trace
    assert functions(trace) == ["(unknown)"]
    assert trace.invocations.flags.tolist() == [IMPLICIT]
    assert calls(trace) == UNCHECKED * 3


def test_a_function_that_only_checks_its_parameters_is_counted_right() -> None:
    """Two calls of a function taken before that has nothing but checks are two invocations."""
    x = relax.Var("x", TensorType(dtype="float32", ndim=1))
    y = relax.Var("y", TensorType(dtype="float32", ndim=1))
    builder = relax.BlockBuilder()
    with builder.function("main", [x, y]):
        builder.emit_func_output(x)
    vm = vm_of(tvm.compile(builder.get(), "llvm"))
    function = vm["main"]
    with relax_trace.record(vm) as recording:
        for _ in range(3):
            function(tensor(1), tensor(1))
    assert functions(recording.trace) == ["main"] * 3
    assert counts(recording.trace) == [2, 2, 2]


@pytest.mark.parametrize("name", ["main", "saved", "invoke_stateful"])
def test_time_evaluator_runs_once_and_number_times_repeat(name: str) -> None:
    """Its warm-up and its runs are invocations, its result has ``repeat`` times."""
    vm = vm_of(small())
    vm.save_function("main", "saved", tensor(*X))
    vm.set_input("main", tensor(*X))
    arguments = {"main": [tensor(*X)], "saved": [], "invoke_stateful": ["main"]}[name]
    with relax_trace.record(vm) as recording:
        result = vm.time_evaluator(name, tvm.cpu(), number=3, repeat=4)(*arguments)
        evaluator = vm.time_evaluator(func_name=name, dev=tvm.cpu(), repeat=2, number=1)
    assert len(result.results) == 4
    assert all(0 < seconds < 1 for seconds in result.results)
    assert len(evaluator(*arguments).results) == 2  # made during the recording, run after it
    trace = recording.trace
    assert functions(trace) == ["main" if name == "invoke_stateful" else name] * 13
    assert counts(trace) == [len(MAIN)] * 13


def raised_by(action: Callable[[VM], Any], vm: VM) -> tuple[type, str]:
    """Type and text of what ``action`` raises."""
    with pytest.raises(Exception) as caught:  # noqa: PT011 - compared with what the bare VM raises
        action(vm)
    return type(caught.value), str(caught.value)


@pytest.mark.parametrize(
    "mistake",
    [
        lambda vm: vm["missing"],
        lambda vm: vm[3],
        lambda vm: vm["main"](),
        lambda vm: vm["main"]("text"),
        lambda vm: vm["main"](tensor(1, 2)),
        lambda vm: vm.time_evaluator("missing", tvm.cpu()),
        lambda vm: vm.time_evaluator("main"),
        lambda vm: vm.save_function("missing", "saved"),
        lambda vm: vm.invoke_stateful("main"),
        lambda vm: vm.invoke_stateful("missing"),
        lambda vm: vm.invoke_stateful(3),
        lambda vm: vm.invoke_closure(3),
        lambda vm: vm.invoke_closure(),
        lambda vm: vm.get_outputs("main"),
    ],
)
def test_a_mistake_raises_what_the_bare_vm_raises(mistake: Callable[[VM], Any]) -> None:
    """The same exception with the same words, and the VM can be used afterwards."""
    expected = raised_by(mistake, vm_of(small()))
    vm = vm_of(small())
    with relax_trace.record(vm) as recording:
        assert raised_by(mistake, vm) == expected
        vm["main"](tensor(*X))
    assert calls(recording.trace, len(recording.trace.invocations) - 1) == MAIN
    assert raised_by(mistake, vm) == expected


def test_the_vm_object_is_what_it_was() -> None:
    """During a recording its class passes for the user's own, and after it, it is that again."""
    vm = vm_of(small())
    before = dict(vars(vm))
    bare = vm["main"]
    with relax_trace.record(vm):
        assert isinstance(vm, VM)
        assert issubclass(type(vm), VM)
        assert type(vm).__name__ == "VirtualMachine"
        assert type(vm).__module__ == VM.__module__
        assert type(vm).__qualname__ == VM.__qualname__
        assert repr(vm).split(" at ")[0] == "<tvm.runtime.vm.VirtualMachine object"
        assert vm["main"] is vm["main"]
        assert vm["main"] is not bare
    assert type(vm) is VM
    assert vars(vm).keys() == before.keys()
    assert vm.module is before["module"]
    np.testing.assert_array_equal(vm["main"](tensor(*X)).numpy(), [1, 9, 25, 49])
    vm.set_input("main", tensor(*X))
    vm.invoke_stateful("main")
    np.testing.assert_array_equal(vm.get_outputs("main").numpy(), [1, 9, 25, 49])


def test_wrappers_taken_during_a_recording_work_after_it() -> None:
    """They give the same results, record nothing by themselves, and serve the next recording."""
    vm = vm_of(small())
    with relax_trace.record(vm) as first:
        main, invoke, invoke_closure = vm["main"], vm.invoke_stateful, vm._invoke_closure
    np.testing.assert_array_equal(main(tensor(*X)).numpy(), [1, 9, 25, 49])
    vm.set_input("main", tensor(*X))
    invoke("main")
    made = vm["make"](tensor(*X))
    np.testing.assert_array_equal(invoke_closure(made, tensor(*X)).numpy(), [2, 4, 6, 8])
    assert (len(first.trace), len(first.trace.invocations)) == (0, 0)
    with relax_trace.record(vm) as second:
        main(tensor(*X))
    assert functions(second.trace) == ["main"]
    assert second.trace.invocations.flags.tolist() == [0]
    assert calls(second.trace) == MAIN


class CountingVM(relax.VirtualMachine):
    """A user's own VM: it counts look-ups, and has a method of its own."""

    lookups = 0

    def __getitem__(self, key: str) -> Any:
        """Look up as TVM does."""
        self.lookups += 1
        return super().__getitem__(key)

    def twice(self, x: Any) -> Any:
        """Run ``main`` on its own result."""
        return self["main"](self["main"](x))


def test_a_users_subclass_of_the_vm_keeps_its_own_behaviour() -> None:
    """Its methods run, its override is called, and its calls are recorded."""
    vm = CountingVM(small(), tvm.cpu())
    with relax_trace.record(vm) as recording:
        assert isinstance(vm, CountingVM)
        assert type(vm).__name__ == "CountingVM"
        np.testing.assert_array_equal(vm.twice(tensor(*X)).numpy(), [1, 289, 2401, 9409])
    assert type(vm) is CountingVM
    assert vm.lookups == 2
    assert functions(recording.trace) == ["main", "main"]
    assert recording.trace.invocations.flags.tolist() == [0, 0]


class AliasingVM(relax.VirtualMachine):
    """A user's own VM: its look-up knows names that the VM doesn't, and adds to what it gives."""

    def __getitem__(self, key: str) -> Any:
        """``forward`` is ``main``; ``doubled`` is a Python function around it."""
        if key == "doubled":
            return lambda x: 2 * self["main"](x).numpy()
        return super().__getitem__("main" if key == "forward" else key)


def test_a_users_own_lookup_is_respected() -> None:
    """What a subclass's ``__getitem__`` gives is what the user gets, recorded or not."""
    vm = AliasingVM(small(), tvm.cpu())
    with relax_trace.record(vm) as recording:
        np.testing.assert_array_equal(vm["forward"](tensor(*X)).numpy(), [1, 9, 25, 49])
        np.testing.assert_array_equal(vm["doubled"](tensor(*X)), [2, 18, 50, 98])
    assert counts(recording.trace) == [len(MAIN)] * 2


def test_an_op_that_calls_its_own_vm_nests() -> None:
    """A wrapped function called inside an op is an invocation inside that one's."""
    vm = vm_of(small())
    with relax_trace.record(vm) as recording, callback(vm["main"]):
        np.testing.assert_array_equal(vm["call"](tensor(*X)).numpy(), [2, 4, 6, 8])
    trace = recording.trace
    assert functions(trace) == ["call", "main"]
    assert trace.invocations.parent.tolist() == [-1, 0]
    assert trace.invocations.flags.tolist() == [0, 0]
    assert calls(trace, 0) == CALL
    assert [name.strip() for name in calls(trace, 1)] == [name.strip() for name in MAIN]
