"""What it costs to record silero, beside what onnxruntime's own profiler costs on the same file.

Run: ``python tests/benchmarks/bench_silero.py [--turns N]``. All variants take turns in one
process, so that what else the machine does hits them alike.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import onnxruntime
import tvm

sys.path.insert(0, str(Path(__file__).parents[1]))

import models
import relax_trace

RUNS = 100  # at a turn


@dataclass
class Variant:
    """One way to run the model, and how long each run took, in ns."""

    name: str
    run: Callable[[], object]
    around: Callable[[], AbstractContextManager[object]] = nullcontext
    times: list[int] = field(default_factory=list)

    def turn(self) -> None:
        """Run it RUNS times."""
        with self.around():
            for _ in range(RUNS):
                start = time.perf_counter_ns()
                self.run()
                self.times.append(time.perf_counter_ns() - start)

    @property
    def microseconds(self) -> float:
        """Time of a run that little else disturbed: one in ten is faster."""
        return float(np.quantile(self.times, 0.1)) / 1e3


def session(folder: str | None) -> onnxruntime.InferenceSession:
    """The model in onnxruntime on one thread, profiled where there is a folder for it."""
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    options.intra_op_num_threads = 1
    if folder is not None:
        options.enable_profiling = True
        options.profile_file_prefix = f"{folder}/profile"
    return onnxruntime.InferenceSession(models.SILERO, options)


@contextmanager
def empty_hook(vm: tvm.relax.VirtualMachine) -> Iterator[None]:
    """A native instrument that does nothing: what TVM itself charges for having one."""
    vm.set_instrument(tvm.get_global_func("testing.nop"))
    yield
    vm.set_instrument(None)


def measure(variants: list[Variant], turns: int) -> None:
    """Let the variants take turns; the first one only warms up."""
    for turn in range(turns + 1):
        for variant in variants:
            variant.turn()
            if turn == 0:
                variant.times.clear()


def main() -> None:
    """Measure, and print a line for each variant."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--turns", type=int, default=20, help=f"of {RUNS} runs, for each variant")
    turns = parser.parse_args().turns
    vm, arguments, inputs = models.silero().vm, models.silero().arguments, models.silero_inputs(1)
    with relax_trace.record(vm) as recording:
        vm["main"](*arguments)
    calls = len(recording.trace)

    def relax_vm() -> None:
        vm["main"](*arguments)

    with tempfile.TemporaryDirectory() as folder:
        plain, profiled = session(None), session(folder)
        variants = [
            Variant("Relax VM, bare", relax_vm),
            Variant("Relax VM, empty hook", relax_vm, lambda: empty_hook(vm)),
            Variant("Relax VM, recorded", relax_vm, lambda: relax_trace.record(vm)),
            Variant("onnxruntime, bare", lambda: plain.run(None, inputs)),
            Variant("onnxruntime, profiled", lambda: profiled.run(None, inputs)),
        ]
        measure(variants, turns)
        events = json.loads(Path(profiled.end_profiling()).read_text())
    nodes = sum(event.get("cat") == "Node" for event in events) // (RUNS * (turns + 1))
    bare, hooked, recorded, ort, ort_profiled = variants
    show(bare, bare, calls)
    show(hooked, bare, calls)
    ours = show(recorded, bare, calls)
    show(ort, ort, nodes)
    theirs = show(ort_profiled, ort, nodes)
    print(f"onnxruntime's profiler costs {theirs / ours:.0f} times as much for an op")


def show(variant: Variant, bare: Variant, ops: int) -> float:
    """Print what a run takes, and return what that is more than the bare one, in ns an op."""
    cost = variant.microseconds - bare.microseconds
    line = f"{variant.name:24}{variant.microseconds:9.1f} us a run of {ops} ops"
    if variant is not bare:
        line += f", {cost / bare.microseconds:+7.1%}: {1e3 * cost / ops:6.0f} ns an op"
    print(line)
    return 1e3 * cost / ops


if __name__ == "__main__":
    main()
