"""How long the recorder's dumps take to become a Trace, and how that grows.

python tests/benchmarks/bench_decode.py
"""

from __future__ import annotations

import time

import numpy as np

from relax_trace.recorder.decode import Labels, to_trace
from relax_trace.recorder.dumps import INVOCATION, OP, Dumps, ThreadRecords
from relax_trace.recorder.records import Share
from relax_trace.signature import TENSOR

OPS_PER_INVOCATION = 400
SIGNATURES = 1000
FLOAT32 = 2 | 32 << 8 | 1 << 16


def synthetic(ops: int) -> Dumps:
    """What a thread records of a model with 200 names and 1,000 signatures, as if dumped."""
    random = np.random.default_rng(0)
    records = np.zeros(ops, OP)
    records["start"] = np.arange(ops) * 3000
    records["end"] = records["start"] + random.integers(300, 2900, ops)
    records["name"] = random.integers(2, 202, ops)
    records["signature"] = random.integers(1, SIGNATURES + 1, ops)
    records["invocation"] = 1 + np.arange(ops) // OPS_PER_INVOCATION
    records["depth"] = 1
    first = np.arange(0, ops, OPS_PER_INVOCATION)
    calls = np.zeros(len(first), INVOCATION)
    calls["start"] = records["start"][first]
    calls["end"] = records["end"][np.minimum(first + OPS_PER_INVOCATION, ops) - 1]
    calls["wall_ns"] = 10**18 + calls["start"]
    calls["number"] = 1 + np.arange(len(first))
    calls["function"], calls["vm"] = 1, 1
    words = np.empty((SIGNATURES, 4), np.uint64)
    words[:] = [TENSOR << 56 | 2 << 32 | FLOAT32, 1 << 32, 0, 64]
    words[:, 2] = np.arange(SIGNATURES)
    reading = np.zeros(2, [("ticks", "<u8"), ("monotonic_ns", "<u8"), ("wall_ns", "<u8")])
    reading["wall_ns"] = 10**18
    reading[1] = (ops * 3000, ops * 3000, 10**18 + ops * 3000)
    return Dumps(
        pid=1,
        first=reading[0],
        now=reading[1],
        name_flags=[2] + [0] * 200,
        name_texts=["main", *(f"fused_conv2d{i}_relu" for i in range(200))],
        words=[words.reshape(-1)],
        word_counts=[np.full(SIGNATURES, 4, np.uint32)],
        signature_count=SIGNATURES,
        threads={1: ThreadRecords(1, "main", [calls], [records])},
    )


def seconds(dumps: Dumps) -> float:
    """Best time of three."""
    labels = Labels({1: "vm"}, {}, (), "benchmark", {})
    best = float("inf")
    for _ in range(3):
        started = time.perf_counter()
        trace = to_trace(dumps, Share(), labels)
        best = min(best, time.perf_counter() - started)
        assert len(trace) == sum(len(piece) for piece in dumps.threads[1].ops)
    return best


def main() -> None:
    """Print the time of an op call at three sizes."""
    costs = {ops: seconds(synthetic(ops)) / ops * 1e9 for ops in (10**5, 10**6, 10**7)}
    for ops, cost in costs.items():
        print(f"{ops:>10,} op calls  {cost:6.1f} ns each, {ops * cost / 1e9:.3f} s")
    print(f"growth 1e5 to 1e7     {costs[10**7] / costs[10**5]:6.2f}            bound 1.5")


if __name__ == "__main__":
    main()
