"""What Chrome JSON costs: events a second, against json.dumps of the same events, and growth.

Run: python tests/benchmarks/bench_chrome.py
"""

from __future__ import annotations

import functools
import json
import os
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np

from relax_trace import Device, Invocations, Thread, Trace, load
from relax_trace.exporters import chrome
from relax_trace.signature import TENSOR, Signatures

NAMES, SHAPES, OPS_PER_CALL = 250, 1000, 500
FLOAT32, CPU0 = 0x12002, 1 << 32


def made_up(ops: int, *, every_second_shape_new: bool = False) -> Trace:
    """A trace of ``ops`` calls: 1,000 templates, or new shapes in every second call."""
    random = np.random.default_rng(0)
    calls = -(-ops // OPS_PER_CALL)
    start = np.cumsum(random.integers(2_000, 40_000, ops)) + 1_700_000_000_000_000_000
    row = np.arange(ops)
    signature = 1 + row % SHAPES
    if every_second_shape_new:
        signature[::2] = 1 + SHAPES + np.arange(len(signature[::2]))
    count = int(signature.max(initial=0))
    words = np.empty((count, 3, 6), np.uint64)
    words[:] = [TENSOR << 56 | 4 << 32 | FLOAT32, CPU0, 1, 64, 56, 56]
    words[:, 0, 3] = np.arange(count)
    words[:, 1, 2] = np.arange(count) // 7
    offsets = np.concatenate([[0], np.arange(count + 1) * 18])
    first = start[::OPS_PER_CALL]
    return Trace(
        start=start,
        end=start + random.integers(500, 2_000, ops),
        # Names and shapes go together, so that there are as many templates as shapes.
        name=(row % SHAPES % NAMES).astype(np.int32),
        signature=signature.astype(np.int32),
        device=np.zeros(ops, np.int32),
        thread=np.zeros(ops, np.int32),
        invocation=(row // OPS_PER_CALL).astype(np.int32),
        parent=np.full(ops, -1, np.int32),
        flags=np.zeros(ops, np.uint16),
        names=(*(f"fused_conv2d{i}_add_relu" for i in range(NAMES)), "main"),
        kinds=np.array([0] * NAMES + [2], np.uint8),
        signatures=Signatures(words.reshape(-1), offsets),
        devices=(Device(1, 0),),
        threads=(Thread(4321, 4325, "MainThread"),),
        vms=("VirtualMachine",),
        errors=(),
        invocations=Invocations(
            start=first - 1_000,
            end=np.append(first[1:] - 1_000, start[-1] + 3_000),
            function=np.full(calls, NAMES, np.int32),
            vm=np.zeros(calls, np.int32),
            thread=np.zeros(calls, np.int32),
            parent=np.full(calls, -1, np.int32),
            error=np.full(calls, -1, np.int32),
            flags=np.zeros(calls, np.uint16),
            trace_id=np.zeros((calls, 16), np.uint8),
            span_id=np.zeros(calls, np.uint64),
        ),
    )


def seconds(action: Callable[[], object]) -> float:
    """Processor time of a run: what other programs do meanwhile counts little."""
    begin = time.process_time()
    action()
    return time.process_time() - begin


def against_dumps(what: str, bound: str, *, every_second_shape_new: bool) -> None:
    """Print the cost of an event, in memory and in a file, beside that of json.dumps."""
    ours, in_file, theirs = [], [], []
    for _ in range(3):
        # A trace keeps the texts of its signatures: a fresh one each time pays for them.
        trace = made_up(10**6, every_second_shape_new=every_second_shape_new)
        with open(os.devnull, "wb") as nowhere:
            ours.append(seconds(functools.partial(chrome.write, trace, nowhere)))
        trace = made_up(10**6, every_second_shape_new=every_second_shape_new)
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "trace.json"
            in_file.append(seconds(functools.partial(trace.save, path)))
            document = path.read_bytes()
        events = [event for event in json.loads(document)["traceEvents"] if event["ph"] == "X"]
        some = events[::10]
        theirs.append(seconds(functools.partial(json.dumps, some)) / len(some) * len(events))
    count, size = len(events), len(document) / len(events)
    print(
        f"{what}: {count / min(ours) / 1e6:.2f} M events/s ({size:.0f} bytes each, "
        f"{count / min(in_file) / 1e6:.2f} M/s into a file); "
        f"json.dumps {count / min(theirs) / 1e6:.2f} M/s: {min(theirs) / min(ours):.1f} x as fast "
        f"({min(theirs) / min(in_file):.1f} x into a file)   [bound: {bound}]"
    )


def growth() -> None:
    """Print the cost of an op for longer and longer traces."""
    costs = {}
    for ops in (10**5, 10**6, 10**7):
        write = functools.partial(chrome.write, made_up(ops))
        with open(os.devnull, "wb") as nowhere:
            runs = max(3, 3 * 10**6 // ops)
            costs[ops] = min(seconds(lambda w=write, n=nowhere: w(n)) for _ in range(runs)) / ops
    text = ", ".join(f"{ops:,} ops {cost * 1e9:.0f} ns" for ops, cost in costs.items())
    spread = max(costs.values()) / min(costs.values())
    print(f"an op's share as traces grow: {text}: within {spread:.2f} x   [bound: 1.5 x]")


def native_form() -> None:
    """Print what the native form takes for a million ops."""
    trace = made_up(10**6)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "trace.npz"
        saving = min(seconds(functools.partial(trace.save, path)) for _ in range(5))
        loading = min(seconds(functools.partial(load, path)) for _ in range(5))
        size = path.stat().st_size
    print(
        f".npz of 1 M ops: saved in {saving * 1e3:.0f} ms, loaded in {loading * 1e3:.0f} ms, "
        f"{size / 1e6:.0f} MB"
    )


def main() -> None:
    """Print each figure of the design's table beside its bound."""
    against_dumps("1,000 templates", "2 M events/s, 5 x", every_second_shape_new=False)
    against_dumps("every second event with new shapes", "1 x, aim 2 x", every_second_shape_new=True)
    native_form()
    growth()


if __name__ == "__main__":
    main()
