"""What an op span says, which ones are kept, and how many are granted."""

from __future__ import annotations

import numpy as np
import pytest

from relax_trace import Device
from relax_trace.otel import budgets
from relax_trace.otel.op_spans import _attributes, arguments_of
from relax_trace.otel.selection import longest
from relax_trace.otel.settings import Settings
from relax_trace.signature import RESULT, Signatures
from relax_trace.trace import ABORTED
from unit.traces import Op, trace_of, words


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("float32[1, 64]", ["float32[1, 64]"]),
        ("float32[], int64[2]", ["float32[]", "int64[2]"]),
        (
            "(float32[1, 2], (int64[3], bool[])), int8x4[5]",
            ["(float32[1, 2], (int64[3], bool[]))", "int8x4[5]"],
        ),
        ("float32[1], ...", ["float32[1]", "..."]),
    ],
)
def test_the_arguments_of_a_spelling(text: str, expected: list[str]) -> None:
    """A tuple is one, whatever is in it."""
    assert arguments_of(text) == expected


def test_a_copy_has_a_source() -> None:
    """The device is where the copy goes to."""
    copy = [*words("float32[2, 3]", "cuda1"), RESULT << 56, *words("float32[2, 3]", "cpu0")]
    trace = trace_of([Op("vm.builtin.to_device", 0, 1, "float32[2, 3]", "cuda1", "builtin")])
    trace = trace.__class__(**{**vars(trace), "signatures": Signatures.from_lists([copy])})
    assert trace.devices == (Device(2, 1),)
    assert _attributes(trace, int(trace.name[0]), 1, 0) == {
        "tvm.op.name": "vm.builtin.to_device",
        "tvm.op.kind": "builtin",
        "tvm.op.argument_shapes": ["float32[2, 3]"],
        "tvm.device.type": "cpu",
        "tvm.device.id": 0,
        "tvm.device.source.type": "cuda",
        "tvm.device.source.id": 1,
    }


def test_the_longest_calls_are_kept_with_those_around_them() -> None:
    """And first of all those that threw."""
    trace = trace_of(
        [
            Op("short", 0, 5),
            Op("outer", 10, 60),
            Op("inner", 10, 60, parent=1),
            Op("leaf", 11, 59, parent=2),
            Op("long", 70, 100),
            Op("around", 110, 114, flags=ABORTED),
            Op("threw", 111, 113, parent=5, flags=ABORTED),
        ]
    )
    kept = [longest(trace, np.arange(7), count).tolist() for count in range(8)]
    order = [5, 6, 1, 2, 3, 4, 0]
    assert [sorted(one) for one in kept] == [sorted(order[:count]) for count in range(8)]


def test_budgets(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of an invocation, of a trace, and each second; the last fills again."""
    now = [1000.0]
    monkeypatch.setattr(budgets.time, "monotonic", lambda: now[0])
    made = budgets.Budgets(Settings(ops_per_invocation=10, ops_per_trace=25, ops_per_second=40))
    assert [made.take(1, wanted) for wanted in (4, 99, 99, 99, 1)] == [4, 10, 10, 1, 0]
    assert [made.take(2, 99), made.take(3, 99)] == [10, 5]
    now[0] += 0.25
    assert [made.take(3, 99), made.take(4, 0), made.take(4, 1)] == [10, 0, 0]
    now[0] += 60
    assert [made.take(trace, 10) for trace in (5, 6, 7, 8, 9)] == [10, 10, 10, 10, 0]
