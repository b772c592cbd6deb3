"""How long a trace takes to become the classic table, or statistics, and how that grows.

Run: ``python tests/benchmarks/bench_report.py [--ops N] [--repeat N]``.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable

import numpy as np

from relax_trace import Device, Invocations, Thread, Trace
from relax_trace.report import Report
from relax_trace.signature import TENSOR, Signatures

NAMES = 200
STATIC_SHAPES = 1000
OPS_PER_INVOCATION = 400
NESTED_SHARE = 20  # every so many calls is a Relax function that makes the next one
FLOAT32 = 2 | 32 << 8 | 1 << 16


def synthetic(ops: int, shapes: int) -> Trace:
    """A trace of ``ops`` calls of a model with ``shapes`` argument signatures, drawn at random."""
    random = np.random.default_rng(0)
    start = np.arange(ops, dtype=np.int64) * 2000
    end = start + random.integers(200, 1900, ops)
    parent = np.full(ops, -1, np.int32)
    functions = np.arange(0, ops - 1, NESTED_SHARE)
    parent[functions + 1] = functions
    end[functions] = start[functions] + 4000
    calls = -(-ops // OPS_PER_INVOCATION)
    first = np.arange(calls) * OPS_PER_INVOCATION
    last = np.minimum(first + OPS_PER_INVOCATION, ops) - 1
    zeros = np.zeros(calls, np.int32)
    signature = random.integers(1, shapes + 1, ops, np.int32)
    return Trace(
        start=start,
        end=end,
        name=signature % NAMES,
        signature=signature,
        device=np.zeros(ops, np.int32),
        thread=np.zeros(ops, np.int32),
        invocation=(np.arange(ops) // OPS_PER_INVOCATION).astype(np.int32),
        parent=parent,
        flags=np.zeros(ops, np.uint16),
        names=tuple(f"fused_relax_nn_conv2d_relax_nn_relu{i}" for i in range(NAMES)),
        kinds=np.zeros(NAMES, np.uint8),
        signatures=_signatures(shapes),
        devices=(Device(1, 0),),
        threads=(Thread(1, 1, "MainThread"),),
        vms=("vm",),
        errors=(),
        invocations=Invocations(
            start[first],
            end[last],
            zeros,
            zeros,
            zeros,
            zeros - 1,
            zeros - 1,
            zeros.astype(np.uint16),
            np.zeros((len(zeros), 16), np.uint8),
            zeros.astype(np.uint64),
        ),
    )


def _signatures(count: int) -> Signatures:
    """``count`` signatures of two float32 tensors, the first dimension of each different."""
    tensor = [TENSOR << 56 | 3 << 32 | FLOAT32, 1 << 32, 0, 64, 56]
    words = np.tile(np.array(tensor + tensor, np.uint64), (count, 1))
    words[:, 2] = words[:, 7] = np.arange(count)
    offsets = np.append(0, np.arange(count + 1) * words.shape[1]).astype(np.int64)
    return Signatures(words.reshape(-1), offsets)


def seconds(ops: int, shapes: int, repeat: int, text: Callable[[Report], str]) -> float:
    """Best of ``repeat`` times from a trace, its signatures not yet spelt, to the report's text."""
    best = float("inf")
    for _ in range(repeat):
        trace = synthetic(ops, shapes)
        began = time.perf_counter()
        text(Report.from_trace(trace))
        best = min(best, time.perf_counter() - began)
    return best


def growth(
    title: str,
    sizes: list[int],
    repeat: int,
    dynamic: bool = False,
    text: Callable[[Report], str] = Report.table,
) -> None:
    """Print a line for each size, and how time per call grows from the smallest to the largest."""
    print(title)
    per_call = []
    for ops in sizes:
        shapes = ops // 10 if dynamic else STATIC_SHAPES
        took = seconds(ops, shapes, repeat, text)
        per_call.append(took / ops * 1e9)
        figures = f"{took:8.3f} s, {per_call[-1]:7.1f} ns a call"
        print(f"  {ops:>12,} calls, {shapes:>9,} signatures: {figures}")
    print(f"  time per call, largest over smallest: {per_call[-1] / per_call[0]:.2f} (bound 1.5)")


def main() -> None:
    """Print the figures."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--ops", type=int, default=10_000_000, help="calls of the largest trace")
    parser.add_argument("--repeat", type=int, default=3, help="measure so often, take the best")
    options = parser.parse_args()
    sizes = [max(options.ops // 100, 1), max(options.ops // 10, 1), options.ops]
    repeat = options.repeat
    growth("static shapes (bound: 10,000,000 calls in 2 s)", sizes, repeat)
    growth("dynamic shapes, a tenth of all calls has new ones", sizes, repeat, dynamic=True)
    growth("statistics by name", sizes, repeat, text=lambda report: str(report.statistics()))


if __name__ == "__main__":
    main()
