"""Traces and signatures at random, legal but unlikely; and whether two traces are the same."""

from __future__ import annotations

import random
from dataclasses import fields
from typing import Any

import numpy as np

from relax_trace import Device, Invocations, Losses, Thread, Trace
from relax_trace.signature import (
    DTYPE,
    ELLIPSIS,
    INT,
    OBJECT,
    RESULT,
    SHAPE,
    TENSOR,
    TUPLE,
    Signatures,
)
from relax_trace.spans import Spans
from relax_trace.trace import KINDS

# Quotes, markup, a terminal's escape, NUL, lone surrogates, and a pair that is not one character.
HOSTILE = ('"\\', "</script><!--", "\x1b[2J\r\n\0", "\udc80\ud800", "\ud83d\ude00", "😀 é", "")
_DTYPES = [0x12002, 0x14000, 0x10801, 0x10806, 0x10101, 0x11004, 0x40800, 0x10409, 0x107FF, 0]


def random_signature(chance: random.Random) -> list[int]:
    """Words of up to five arguments, and sometimes of a result."""
    words = [word for _ in range(chance.randrange(6)) for word in _argument(chance, 0)]
    if chance.random() < 0.3:
        words += [RESULT << 56, *_tensor(chance)]
    return words


def _argument(chance: random.Random, depth: int) -> list[int]:
    if depth < 4 and chance.random() < 0.2:
        return _tuple(chance, depth)
    simple = [_tensor, _tensor, _shape, _integer, _dtype, lambda _: [OBJECT << 56]]
    return chance.choice(simple)(chance)


def _tuple(chance: random.Random, depth: int) -> list[int]:
    if chance.random() < 0.1:
        return [TUPLE << 56 | 1000 << 32, ELLIPSIS << 56]
    elements = [_argument(chance, depth + 1) for _ in range(chance.randrange(4))]
    return [TUPLE << 56 | len(elements) << 32, *(word for words in elements for word in words)]


def _shape(chance: random.Random) -> list[int]:
    numbers = _numbers(chance)
    return [SHAPE << 56 | len(numbers) << 32, *numbers]


def _integer(chance: random.Random) -> list[int]:
    return [INT << 56, *_numbers(chance, 1)]


def _dtype(chance: random.Random) -> list[int]:
    return [DTYPE << 56 | chance.choice(_DTYPES)]


def _tensor(chance: random.Random) -> list[int]:
    device = chance.choice([1 << 32, 2 << 32, 2 << 32 | 1])
    numbers = _numbers(chance)
    return [TENSOR << 56 | len(numbers) << 32 | chance.choice(_DTYPES), device, *numbers]


def _numbers(chance: random.Random, count: int | None = None) -> list[int]:
    choices = [0, 1, 7, 64, 12345, 2**63 - 1, 2**64 - 1]
    return [chance.choice(choices) for _ in range(chance.randrange(5) if count is None else count)]


def random_trace(seed: int, ops: int = 300, calls: int = 40) -> Trace:
    """A trace whose every field is filled, with hostile texts and times far apart."""
    chance, numbers = random.Random(seed), np.random.default_rng(seed)
    start, end = _times(numbers, ops)
    call_start, call_end = _times(numbers, calls)
    signatures = [random_signature(chance) for _ in range(50)]
    spans = random_spans(numbers, 60)
    led = numbers.integers(0, len(spans), calls)
    return Trace(
        start=start,
        end=end,
        name=_indices(numbers, 20, ops),
        signature=_indices(numbers, 51, ops),
        device=_indices(numbers, 4, ops) - np.int32(1),
        thread=_indices(numbers, 4, ops),
        invocation=_indices(numbers, calls, ops),
        parent=numbers.integers(-1, np.arange(ops)).astype(np.int32),
        flags=numbers.choice([0, 1, 2, 5, 0x8000], ops).astype(np.uint16),
        names=tuple(f"{HOSTILE[i % len(HOSTILE)]}op{i // 2}" for i in range(20)),
        kinds=_indices(numbers, len(KINDS), 20).astype(np.uint8),
        signatures=Signatures.from_lists(signatures),
        devices=(Device(1, 0), Device(2, 1), Device(99, 2**32)),
        threads=tuple(Thread(1, 2 + i // 2, name) for i, name in enumerate(HOSTILE[:4])),
        vms=HOSTILE,
        errors=HOSTILE,
        invocations=Invocations(
            start=numbers.permutation(call_start),
            end=call_end + 2**60,
            function=_indices(numbers, 20, calls),
            vm=_indices(numbers, len(HOSTILE), calls),
            thread=_indices(numbers, 4, calls),
            parent=numbers.integers(-1, np.arange(calls)).astype(np.int32),
            error=_indices(numbers, len(HOSTILE) + 1, calls) - np.int32(1),
            flags=numbers.choice([0, 1, 2, 5, 0x8000], calls).astype(np.uint16),
            trace_id=spans.trace_id[led],
            span_id=spans.span_id[led],
        ),
        spans=spans,
        process=HOSTILE[3],
        configuration=dict(zip(HOSTILE, reversed(HOSTILE), strict=True)),
        losses=Losses(ops=1, invocations=2**40, signatures=3, overwritten=4, spans=5),
    )


def random_spans(numbers: np.random.Generator, count: int) -> Spans:
    """Spans that are around each other as it comes, in circles too."""
    start, end = _times(numbers, count)
    ids = numbers.choice(np.array([0, 1, 2**63, 2**64 - 1, *range(5, 60)], np.uint64), count)
    return Spans(
        start=start,
        end=end,
        name=_indices(numbers, len(HOSTILE), count),
        thread=_indices(numbers, 4, count),
        trace_id=numbers.choice([0, 255], (count, 1)).astype(np.uint8) * np.ones(16, np.uint8),
        span_id=ids,
        parent_id=numbers.permutation(ids),
        flags=numbers.choice([0, 1, 4, 8, 16, 0x8000], count).astype(np.uint16),
        names=HOSTILE,
    )


def _times(numbers: np.random.Generator, count: int) -> tuple[Any, Any]:
    steps = numbers.choice([0, 0, 1, 999, 1000, 10**6, 10**13], count)
    start = np.cumsum(steps) + 1_764_576_000_000_000_000
    return start, start + numbers.choice([0, 1, 999, 10**7, 10**14], count)


def _indices(numbers: np.random.Generator, below: int, count: int) -> Any:
    return numbers.integers(0, below, count).astype(np.int32)


def contents(trace: Trace) -> dict[str, Any]:
    """Everything in ``trace`` as plain values, for an exact comparison."""
    found: dict[str, Any] = {}
    owners = {"": trace, "invocations.": trace.invocations, "signatures.": trace.signatures}
    owners |= {"spans.": trace.spans}
    for prefix, owner in owners.items():
        for field in fields(owner):
            value = getattr(owner, field.name)
            if isinstance(value, np.ndarray):
                found[prefix + field.name] = (value.dtype.str, value.tolist())
            elif prefix + field.name not in ("invocations", "signatures", "spans"):
                found[prefix + field.name] = value
    return found
