"""What recording costs behind RPC: a remote call with and without it, and how fast a drain is.

Run: python tests/benchmarks/bench_rpc.py
"""

from __future__ import annotations

import sys
import tempfile
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

import numpy as np
import tvm

import relax_trace
from integration.remotes import remote_vm, server
from integration.small_vms import chain

OPS = 300  # additions of a call
CALLS, RUNS = 200, 7
DRAINED = 300_000  # calls of ops, at least


def microseconds(function: Any, x: Any) -> float:
    """A call, waiting for its answer."""
    begin = time.perf_counter()
    for _ in range(CALLS):
        function(x)
    return (time.perf_counter() - begin) / CALLS * 1e6


def calls(vm: Any, x: Any) -> None:
    """Print what a call takes, bare and recorded in turn: the machine's moods hit both alike."""
    bare, recorded, ops = [], [], 0
    for _ in range(RUNS):
        bare.append(microseconds(vm["main"], x))
        with relax_trace.record(vm) as recording:
            recorded.append(microseconds(vm["main"], x))
        ops = len(recording.trace) // CALLS
    ratio = np.median(np.array(recorded) / np.array(bare))
    print(f"a remote call of {ops} ops: {min(bare):,.0f} us, recorded {min(recorded):,.0f} us")
    print(f"  ratio {ratio:.2f}, {(min(recorded) - min(bare)) / ops * 1000:,.0f} ns an op")


def drain(vm: Any, x: Any) -> None:
    """Print how fast records come over."""
    recording = relax_trace.record(vm)
    (part,) = recording._parts.values()
    part.hub._lock.acquire()  # no drain on the way
    function, done = vm["main"], 0
    while done < DRAINED:
        function(x)
        done += OPS
    begin = time.perf_counter()
    part.hub.drain()
    took = time.perf_counter() - begin
    part.hub._lock.release()
    recording.stop()
    count = len(recording.trace)
    print(f"a drain of {count:,} ops: {took:.2f} s, {count / took / 1e6:.1f} million ops/s")


def main() -> None:
    """Print both."""
    with server() as found, tempfile.TemporaryDirectory() as folder:
        session = found.connect()
        vm = remote_vm(session, chain(OPS), Path(folder))
        x = tvm.runtime.tensor(np.arange(4, dtype=np.float32), session.cpu())
        calls(vm, x)
        drain(vm, x)
        del vm, x, session


if __name__ == "__main__":
    main()
