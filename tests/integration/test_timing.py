"""Host against synchronized timing, on a fake asynchronous device."""
# ruff: noqa: N805, N812 - TVMScript's functions take tensors, and its customary names are I and R

from __future__ import annotations

import ctypes
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tvm
import tvm_ffi
from tvm import relax
from tvm.script import ir as I
from tvm.script import relax as R

import relax_trace
from integration.plain_instrument import check_times
from relax_trace import Trace
from relax_trace.recording import Timing
from relax_trace.trace import SYNCHRONIZED

KERNEL = "fake_device.add_one"
KERNELS_NS = [3_000_000, 1_000_000, 5_000_000]  # what the kernels of `main` take on the device
SLOW_NS = 300_000_000  # and the one of `slow`
# How often `main` waits for the device in synchronized mode: before and after each call with a
# tensor (a check, a match, three kernels), and after each of three allocations.
MAIN_WAITS = 1 + 2 * 5 + 3
CAPTURE = "vm.builtin.cuda_graph.run_or_capture"


@I.ir_module
class _Launches:
    @R.function
    def main(x: R.Tensor((4,), "float32")) -> R.Tensor((4,), "float32"):
        out = R.Tensor((4,), "float32")
        a = R.call_dps_packed("fake_device.add_one", (x, R.prim_value(3000)), out)
        b = R.call_dps_packed("fake_device.add_one", (a, R.prim_value(1000)), out)
        return R.call_dps_packed("fake_device.add_one", (b, R.prim_value(5000)), out)

    @R.function
    def slow(x: R.Tensor((4,), "float32")) -> R.Tensor((4,), "float32"):
        out = R.Tensor((4,), "float32")
        return R.call_dps_packed("fake_device.add_one", (x, R.prim_value(300000)), out)

    @R.function(pure=False)
    def take(x: R.Object) -> R.Object:
        return R.call_packed("relax_trace_tests.take", x, ty_args=(R.Object,))


@I.ir_module
class _Capture:
    @R.function(pure=False)
    def main(x: R.Object) -> R.Object:
        return R.call_packed("vm.builtin.cuda_graph.run_or_capture", x, ty_args=(R.Object,))


@tvm_ffi.register_global_func("relax_trace_tests.take", override=True)
def _take(_x: Any) -> None:
    """Take anything, and do nothing with it."""


@dataclass(frozen=True)
class Fake:
    """A VM on the fake device, a tensor there, and what that device tells."""

    vm: relax.VirtualMachine
    x: tvm.runtime.Tensor
    lose: Callable[[bool], None]
    synchronizations: Callable[[], int]

    def recorded(
        self, timing: Timing, function: str = "main", argument: Any = None, times: int = 1
    ) -> tuple[Trace, int]:
        """The calls of this function, and how often somebody waited for the device meanwhile."""
        before = self.synchronizations()
        with relax_trace.record(self.vm, timing=timing) as recording:
            for _ in range(times):
                self.vm[function](self.x if argument is None else argument)
        waits = self.synchronizations() - before
        check_times(recording.trace)
        return recording.trace, waits


@pytest.fixture(scope="session")
def _device_library(tmp_path_factory: pytest.TempPathFactory) -> ctypes.CDLL:
    library = tmp_path_factory.mktemp("fake_device") / "fake_device.so"
    includes = [tvm.libinfo.find_include_path(), *tvm_ffi.libinfo.include_paths()]
    command = ["c++", "-std=c++17", "-O1", "-shared", "-fPIC", *(f"-I{path}" for path in includes)]
    source = Path(__file__).with_name("fake_device.cc")
    subprocess.run([*command, "-o", str(library), str(source)], check=True)
    return ctypes.CDLL(str(library))


@pytest.fixture
def fake(_device_library: ctypes.CDLL) -> Iterator[Fake]:
    """The fake device, idle before and after."""
    device = tvm.ext_dev(0)
    yield Fake(
        relax.VirtualMachine(tvm.compile(_Launches, target="llvm"), [device, tvm.cpu()]),
        tvm.runtime.tensor(np.zeros(4, "float32"), device),
        tvm.get_global_func("fake_device.lose"),
        tvm.get_global_func("fake_device.synchronizations"),
    )
    device.sync()


@contextmanager
def capturing(body: Callable[[Any], Any]) -> Iterator[relax.VirtualMachine]:
    """A VM whose ``main`` runs ``body`` as a graph capture, which TVM itself only has with CUDA."""
    real = tvm.get_global_func(CAPTURE, allow_missing=True)
    tvm_ffi.register_global_func(CAPTURE, body, override=True)
    try:
        executable = tvm.compile(_Capture, target="llvm")
        yield relax.VirtualMachine(executable, [tvm.ext_dev(0), tvm.cpu()])
    finally:
        tvm_ffi.registry.remove_global_func(CAPTURE)
        if real is not None:
            tvm_ffi.register_global_func(CAPTURE, real)


def kernel_times(trace: Trace) -> np.ndarray:
    """Duration of each kernel in ns, a row for each invocation of ``main``."""
    return trace.filter(name=KERNEL).duration.reshape(-1, len(KERNELS_NS))


def test_host_timing_sees_launches_and_never_waits(fake: Fake) -> None:
    """Each launch takes a small part of its kernel's time, and the report says what it shows."""
    trace, waits = fake.recorded("host", times=5)
    assert waits == 0
    assert (kernel_times(trace).min(axis=0) * 10 < KERNELS_NS).all()
    assert not trace.flags.any()
    timing = "host (launch times, not run times, on ext_dev0)"
    assert trace.report().configuration["Timing"] == timing
    assert str(trace.report()).rstrip().endswith(f"\nTiming: {timing}")


def test_synchronized_timing_sees_what_the_device_takes(fake: Fake) -> None:
    """Each kernel has at least its time on the device, and every call says how it was timed."""
    trace, waits = fake.recorded("synchronized", times=2)
    assert waits == 2 * MAIN_WAITS
    assert (kernel_times(trace) >= KERNELS_NS).all()
    assert set(trace.flags.tolist()) == {SYNCHRONIZED}
    assert "Timing" not in trace.report().configuration
    assert fake.vm["main"](fake.x).numpy().tolist() == [3, 3, 3, 3]


def test_profile_synchronizes_all_but_its_warm_up(fake: Fake) -> None:
    """Two by three runs are timed as the device takes them, and the warm-up isn't waited for."""
    before = fake.synchronizations()
    report = relax_trace.profile(fake.vm, "main", fake.x, number=2, repeat=3)
    assert fake.synchronizations() - before == 6 * MAIN_WAITS
    calls = report.calls
    kernels = calls.duration[np.array(calls.names)[calls.name] == KERNEL].reshape(6, 3)
    assert (kernels >= KERNELS_NS).all()
    assert "Timing" not in report.configuration
    assert [(total.device, total.count) for total in report.totals] == [("ext_dev0", 6)]


def test_work_launched_before_is_charged_to_no_call(fake: Fake) -> None:
    """A call begins when the device has finished what was launched before the recording."""
    fake.vm["slow"](fake.x)
    trace, _ = fake.recorded("synchronized")
    assert sum(KERNELS_NS) <= trace.duration.sum() < SLOW_NS


def test_work_launched_before_is_not_in_the_total(fake: Fake) -> None:
    """Nor does the invocation last longer for it: percentages are of the time it took itself."""
    fake.vm["slow"](fake.x)
    trace, _ = fake.recorded("synchronized")
    assert sum(KERNELS_NS) <= trace.report().longest_total < SLOW_NS


def test_the_warm_up_is_not_in_the_total_of_a_profile(fake: Fake) -> None:
    """What the warm-up launched is finished before the first run is timed."""
    report = relax_trace.profile(fake.vm, "slow", fake.x)
    assert SLOW_NS <= report.longest_total < 2 * SLOW_NS


@pytest.mark.parametrize("kind", [tuple, tvm_ffi.List])
def test_tensors_in_tuples_are_waited_for(fake: Fake, kind: Any) -> None:
    """The device is synchronised before and after a call with tensors in any kind of tuple."""
    pair = kind([fake.x, fake.x])
    assert fake.recorded("host", "take", pair)[1] == 0
    trace, waits = fake.recorded("synchronized", "take", pair)
    taken = trace.filter(name="relax_trace_tests.take")
    assert taken.flags.tolist() == [SYNCHRONIZED]
    assert waits == 3


def test_a_lost_device_leaves_its_calls_unsynchronized(fake: Fake) -> None:
    """The run is as it would have been; calls that touch the device are marked, and the report."""
    fake.lose(True)
    try:
        trace, _ = fake.recorded("synchronized")
    finally:
        fake.lose(False)
    names = np.array(trace.names)[trace.name]
    untouched = np.isin(names, ["vm.builtin.alloc_storage", "vm.builtin.null_value"])
    assert (trace.flags == np.where(untouched, SYNCHRONIZED, 0)).all()
    assert "launch times" in trace.report().configuration["Timing"]


def test_nothing_is_synchronized_under_graph_capture(fake: Fake) -> None:
    """Waiting for a stream that is being captured is an error: only the whole capture waits."""
    inner: list[tuple[Trace, int]] = []
    before = fake.synchronizations()
    with (
        capturing(lambda x: inner.append(fake.recorded("synchronized", argument=x))) as vm,
        relax_trace.record(vm, timing="synchronized") as recording,
    ):
        vm["main"](fake.x)
    assert fake.synchronizations() - before == 3
    captured = recording.trace.filter(name=CAPTURE)
    assert captured.flags.tolist() == [SYNCHRONIZED]
    assert captured.duration[0] >= sum(KERNELS_NS)
    ((trace, waits),) = inner
    assert waits == 0
    assert len(trace.filter(name=KERNEL)) == 3
    assert not trace.flags.any()
