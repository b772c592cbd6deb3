"""A long run in ring mode: memory has to stay flat, and the newest calls have to be there.

    python tests/benchmarks/soak.py [MILLIONS OF CALLS]

Two threads invoke, one with shapes that change all the time; a third takes snapshots, recordings
come and go beside the ring. Prints the memory of the process as it goes; ends with 1 where it grew.
"""

from __future__ import annotations

import sys
import threading
import time
from pathlib import Path

import numpy as np
import tvm

sys.path.insert(0, str(Path(__file__).parents[1]))

import relax_trace
from integration.small_vms import chain, tensor, vm_of

LIMIT = 4 << 20  # bytes; a recording and its snapshots may hold it several times
GROWTH = 8 << 20  # bytes: what an allocator may keep for itself
LENGTH = 400  # additions of an invocation
LENGTHS = 100


def resident() -> int:
    """Bytes of memory that the process has now."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * 4096


class Run:
    """What the threads share: how far they are, and how far they have to go."""

    def __init__(self, calls: int, of_invocation: int) -> None:
        self.calls = calls
        self.of_invocation = of_invocation
        self.done = [0, 0]
        self.failed: list[BaseException] = []

    @property
    def over(self) -> bool:
        """Whether all calls were made, or a thread failed."""
        return sum(self.done) >= self.calls or bool(self.failed)

    def invoke(
        self, number: int, vm: tvm.relax.VirtualMachine, xs: list[tvm.runtime.Tensor]
    ) -> None:
        """Run a VM over and over with each argument in turn."""
        main, at = vm["main"], 0
        while not self.over:
            main(xs[at % len(xs)])
            self.done[number] += self.of_invocation
            at += 1

    def look(self, ring: relax_trace.Recording, vm: tvm.relax.VirtualMachine) -> None:
        """Take snapshots, and record beside the ring."""
        while not self.over:
            trace = ring.snapshot()
            if 32 * len(trace) > 2 * LIMIT:
                raise AssertionError(f"the ring holds {len(trace):,} calls")
            with relax_trace.record(vm, names="add", memory_limit=LIMIT) as recording:
                time.sleep(0.02)
            del trace, recording
            time.sleep(0.2)

    def guarded(self, body: object, *arguments: object) -> threading.Thread:
        """A thread whose failure ends the run."""

        def run() -> None:
            try:
                body(*arguments)
            except BaseException as error:
                self.failed.append(error)

        return threading.Thread(target=run)


def soak(calls: int) -> tuple[int, relax_trace.Trace]:
    """Run, and return by how many bytes memory grew, and what the ring held in the end.

    The least that it had in the last third is compared with that in the second: snapshots come and
    go, a leak stays.
    """
    fixed, dynamic = vm_of(chain(LENGTH)), vm_of(chain(LENGTH, "n"))
    xs = [tvm.runtime.tensor(np.zeros(1 + i % LENGTHS, "float32")) for i in range(LENGTHS)]
    with relax_trace.record(fixed) as once:
        fixed["main"](tensor(1, 2, 3, 4))
    run = Run(calls, len(once.trace))
    with relax_trace.record(mode="ring", memory_limit=LIMIT) as ring:
        threads = [
            run.guarded(run.invoke, 0, fixed, [tensor(1, 2, 3, 4)]),
            run.guarded(run.invoke, 1, dynamic, xs),
            run.guarded(run.look, ring, fixed),
        ]
        for thread in threads:
            thread.start()
        sizes: list[int] = []
        while any(thread.is_alive() for thread in threads):
            time.sleep(0.1)
            sizes.append(resident())
            if len(sizes) % 50 == 0:
                millions, size = sum(run.done) / 1e6, np.median(sizes[-50:])
                print(f"{millions:8.1f} M calls  {size / 2**20:6.0f} MiB", flush=True)
        for thread in threads:
            thread.join()
    if run.failed:
        raise run.failed[0]
    third = len(sizes) // 3
    return min(sizes[2 * third :]) - min(sizes[third : 2 * third]), ring.trace


def main() -> None:
    """Soak as long as asked, and say what came of it."""
    millions = float(sys.argv[1]) if len(sys.argv) > 1 else 20
    growth, trace = soak(int(millions * 1e6))
    print(trace)
    print(f"memory grew by {growth / 2**20:.1f} MiB, bound {GROWTH >> 20}")
    sys.exit(growth > GROWTH)


if __name__ == "__main__":
    main()
