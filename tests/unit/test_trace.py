"""Trace: choosing calls, joining traces, what it says of itself, and what it refuses."""

from __future__ import annotations

from dataclasses import fields, replace
from typing import Any

import numpy as np
import pytest

import relax_trace
from relax_trace import Losses, Thread, Trace, TraceFileError, concatenate
from relax_trace.signature import Signatures
from relax_trace.trace import ABORTED, FAILED, IMPLICIT, check
from unit.random_traces import random_trace
from unit.traces import Call, Op, trace_of

# main: block(block(dense), add), copy; then step: add; a call of another VM inside `block`
OPS = [
    Op("block", 10, 90, "float32[1]", kind="function"),
    Op("block", 20, 80, "float32[2]", kind="function", parent=0),
    Op("nn_dense", 30, 40, "float32[4, 5], float32[5]", parent=1),
    Op("nn_dense", 50, 60, "float32[4, 5], float32[5]", parent=1, invocation=1, flags=ABORTED),
    Op("add", 82, 88, "float32[1]", device="cuda1", parent=0),
    Op("vm.builtin.copy", 91, 95, "", device=None, kind="builtin"),
    Op("add", 110, 120, "float32[1]", invocation=2, thread=1),
    Op("lib", 130, 140, "float32[1]", kind="extern", invocation=2, thread=1, parent=6),
]
CALLS = [
    Call(0, 100, "main"),
    Call(45, 65, "inner", parent=0, flags=FAILED, error=0),
    Call(105, 150, "step", thread=1, flags=IMPLICIT),
    Call(160, 170, "main"),
]


@pytest.fixture
def trace() -> Trace:
    """Two devices, two threads, four invocations, every kind of call."""
    made = trace_of(OPS, CALLS, errors=("ValueError: x",), losses=Losses(1, 2, 3))
    check(made)
    return made


def shown(trace: Trace) -> list[tuple[str, int, int, int]]:
    """Name, start, parent and invocation of each call."""
    names = [trace.names[i] for i in trace.name.tolist()]
    columns = (trace.start.tolist(), trace.parent.tolist(), trace.invocation.tolist())
    return list(zip(names, *columns, strict=True))


DENSE, INNER = ("nn_dense", 30, -1, 0), ("nn_dense", 50, -1, 1)


@pytest.mark.parametrize(
    ("conditions", "expected"),
    [
        ({"kind": "function"}, [("block", 10, -1, 0), ("block", 20, 0, 0)]),
        ({"kind": "builtin"}, [("vm.builtin.copy", 91, -1, 0)]),
        ({"kind": "extern"}, [("lib", 130, -1, 2)]),
        ({"kind": "kernel"}, [DENSE, INNER, ("add", 82, -1, 0), ("add", 110, -1, 2)]),
        ({"name": "*dense"}, [DENSE, INNER]),
        ({"name": "ADD"}, []),
        ({"name": "a?d", "device": "cuda1"}, [("add", 82, -1, 0)]),
        ({"name": "[lb]*"}, [("block", 10, -1, 0), ("block", 20, 0, 0), ("lib", 130, -1, 2)]),
        ({"device": "cuda1"}, [("add", 82, -1, 0)]),
        ({"invocation": 1}, [("nn_dense", 50, -1, 0)]),
        ({"invocation": 3}, []),
        ({"invocation": -1}, []),
        ({"invocation": []}, []),
        (
            {"invocation": [2, 1]},
            [("nn_dense", 50, -1, 0), ("add", 110, -1, 1), ("lib", 130, 1, 1)],
        ),
        ({"invocation": np.int64(2)}, [("add", 110, -1, 0), ("lib", 130, 0, 0)]),
        ({"invocation": range(2), "kind": "kernel", "name": "nn*"}, [DENSE, INNER]),
    ],
)
def test_filter_keeps_what_meets_every_condition(
    trace: Trace, conditions: dict[str, Any], expected: list[tuple[str, int, int, int]]
) -> None:
    """Parents that go are replaced by the nearest that stay; all other columns go along."""
    kept = trace.filter(**conditions)
    check(kept)
    assert shown(kept) == expected
    rows = [trace.start.tolist().index(start) for _, start, _, _ in expected]
    for column in ("end", "signature", "device", "thread", "flags"):
        assert getattr(kept, column).tolist() == getattr(trace, column)[rows].tolist()
        assert getattr(kept, column).dtype == getattr(trace, column).dtype
    assert (kept.names, kept.devices, kept.losses) == (trace.names, trace.devices, trace.losses)


def test_filter_keeps_the_table_of_invocations_unless_asked(trace: Trace) -> None:
    """By kind, name or device it stays; by invocation it is cut, with parents found anew."""
    assert trace.filter(name="nothing").invocations is trace.invocations
    assert trace.filter() is trace
    kept = trace.filter(invocation=[1, 3]).invocations
    assert kept.start.tolist() == [45, 160]
    assert kept.parent.tolist() == [-1, -1]
    assert kept.error.tolist() == [0, -1]
    both = trace.filter(invocation=[0, 1, 2]).invocations
    assert both.parent.tolist() == [-1, 0, -1]
    assert both.flags.tolist() == [0, FAILED, IMPLICIT]


def test_take_invocations_finds_the_nearest_that_stays() -> None:
    """A chain of four, of which the first and the last stay."""
    calls = [Call(i, 100 - i, parent=i - 1) for i in range(4)]
    nested = trace_of([Op("add", 50, 51, invocation=3)], calls)
    kept = nested.take_invocations(np.array([True, False, False, True]))
    assert kept.invocations.parent.tolist() == [-1, 0]
    assert kept.invocation.tolist() == [1]
    assert kept.invocations.parent.dtype == kept.invocation.dtype == np.int32


@pytest.mark.parametrize(
    ("conditions", "text"),
    [
        ({"kind": "op"}, "kind must be one of kernel, builtin, function, extern, not 'op'"),
        ({"device": "cuda0"}, "no device 'cuda0' in this trace; it has cpu0, cuda1"),
    ],
)
def test_filter_refuses_what_the_trace_cannot_have(
    trace: Trace, conditions: dict[str, Any], text: str
) -> None:
    """One line says what was asked for, and what there is."""
    with pytest.raises(ValueError) as caught:  # noqa: PT011 - its text is compared
        trace.filter(**conditions)
    assert str(caught.value) == text
    for row in (4, [0, -5]):
        with pytest.raises(IndexError, match="out of bounds for axis 0 with size 4"):
            trace.filter(invocation=row)


def test_concatenate_joins_what_filter_took_apart(trace: Trace) -> None:
    """The invocations one by one, in any order: the same calls, by their start."""
    parts = [trace.filter(invocation=i) for i in (2, 0, 3, 1)]
    joined = concatenate(parts)
    check(joined)
    assert [(name, start) for name, start, _, _ in shown(joined)] == [
        (name, start) for name, start, _, _ in shown(trace)
    ]
    assert joined.invocation.tolist() == [1, 1, 1, 3, 1, 1, 0, 0]
    assert joined.parent.tolist() == [-1, 0, 1, -1, 0, -1, -1, 6]
    for column in ("end", "thread", "flags", "device"):
        assert getattr(joined, column).tolist() == getattr(trace, column).tolist()
    texts = [joined.signatures.texts[i] for i in joined.signature.tolist()]
    assert texts == [trace.signatures.texts[i] for i in trace.signature.tolist()]
    assert joined.invocations.start.tolist() == [105, 0, 160, 45]
    assert (joined.names, joined.devices, joined.threads) == (
        trace.names,
        trace.devices,
        trace.threads,
    )
    assert joined.losses == Losses(4, 8, 12)


def test_concatenate_merges_equal_entries_and_keeps_others_apart() -> None:
    """Names of another kind, threads of another process, shapes on another device stay two."""
    first = trace_of([Op("add", 10, 20, "float32[4]")], threads=(Thread(1, 1, "a"),))
    other = trace_of(
        [
            Op("add", 5, 9, "float32[4]", device="cuda0"),
            Op("add", 15, 16, "int64[4]", kind="extern"),
        ],
        [Call(0, 30, error=0)],
        threads=(Thread(2, 1, "a"),),
        errors=("E: e",),
        vms=("other",),
        process="second",
        configuration={"x": "y"},
    )
    joined = concatenate([first, other])
    check(joined)
    assert shown(joined) == [("add", 5, -1, 1), ("add", 10, -1, 0), ("add", 15, -1, 1)]
    assert joined.kinds[joined.name].tolist() == [0, 0, 3]
    assert [joined.names.count(name) for name in ("add", "main")] == [2, 1]
    assert [str(joined.devices[i]) for i in joined.device.tolist()] == ["cuda0", "cpu0", "cpu0"]
    assert joined.threads == (Thread(1, 1, "a"), Thread(2, 1, "a"))
    assert joined.thread.tolist() == [1, 0, 1]
    assert len(joined.signatures) == 4
    assert joined.signature[0] != joined.signature[1]
    assert [joined.vms[i] for i in joined.invocations.vm.tolist()] == ["vm", "other"]
    assert joined.invocations.error.tolist() == [-1, 0]
    assert (joined.process, joined.configuration) == (first.process, first.configuration)


def test_concatenate_of_one_or_of_empty_traces() -> None:
    """One is itself; an empty one changes nothing; none at all is an error."""
    some = random_trace(seed=3)
    empty = some.filter(invocation=[])
    for joined in (concatenate([some]), concatenate([empty, some, empty])):
        check(joined)
        for field in fields(Trace)[:9]:
            assert getattr(joined, field.name).dtype == getattr(some, field.name).dtype
        assert joined.start.tolist() == some.start.tolist()
        assert joined.parent.tolist() == some.parent.tolist()
        assert [joined.names[i] for i in joined.name] == [some.names[i] for i in some.name]
        assert joined.invocations.end.tolist() == some.invocations.end.tolist()
    assert len(concatenate([empty, empty])) == 0
    with pytest.raises(ValueError, match=r"^concatenate\(\) needs at least one trace$"):
        concatenate([])


def test_parents_stay_right_where_traces_interleave() -> None:
    """Calls of two threads that start in turn: each still stands under its own."""
    one = trace_of([Op("f", 10, 50), Op("g", 20, 30, parent=0), Op("h", 22, 23, parent=1)])
    two = trace_of([Op("f", 10, 50), Op("g", 15, 30, parent=0), Op("h", 21, 23, parent=1)])
    joined = concatenate([one, two])
    check(joined)
    assert joined.start.tolist() == [10, 10, 15, 20, 21, 22]
    assert joined.parent.tolist() == [-1, -1, 1, 0, 2, 3]
    assert joined.invocation.tolist() == [0, 1, 1, 0, 1, 0]


def test_repr_says_what_is_in_it(trace: Trace) -> None:
    """Numbers, functions, devices, threads, the time from first to last, and what was lost."""
    assert repr(trace) == (
        "<Trace: 8 ops in 4 invocations of 'inner', 'main', 'step', cpu0, cuda1, 2 threads, "
        "0.000 ms, dropped 1 ops>"
    )
    many = [Call(i * 10**6, (i + 1) * 10**6, f"f{i}\x1b[31m", thread=i % 2) for i in range(4)]
    assert repr(trace_of([], many)) == (
        "<Trace: 0 ops in 4 invocations of 'f0\\x1b[31m', 'f1\\x1b[31m', 'f2\\x1b[31m', ..., "
        "no device, 2 threads, 4.000 ms>"
    )
    empty = trace.filter(invocation=[]).filter(name="")
    assert repr(replace(trace_of([]), losses=Losses(overwritten=1234))).endswith(
        "1 threads, 0.000 ms, overwrote 1,234 older ops>"
    )
    assert repr(replace(empty, losses=Losses(), devices=(), threads=())) == (
        "<Trace: 0 ops in 0 invocations, no device, 0 threads>"
    )


def test_columns_of_what_is_derived(trace: Trace) -> None:
    """Length, durations and kinds."""
    assert (len(trace), len(trace.invocations)) == (8, 4)
    assert trace.duration.tolist() == [80, 60, 10, 10, 6, 4, 10, 10]
    assert trace.kind.tolist() == [2, 2, 0, 0, 0, 1, 0, 3]
    assert Losses(1, 2, 3) + Losses(10, 20, 30) == Losses(11, 22, 33)
    assert str(relax_trace.Device(2, 3)) == "cuda3"
    assert str(relax_trace.Device(99, 0)) == "device_type99_0"


def changed(column: str, row: int, value: int) -> dict[str, Any]:
    """The same column of OPS's trace with one value replaced."""
    values = getattr(trace_of(OPS, CALLS, errors=("",)), column).copy()
    values[row] = value
    return {column: values}


def changed_call(column: str, row: int, value: int) -> dict[str, Any]:
    """The same of the table of invocations."""
    calls = trace_of(OPS, CALLS, errors=("",)).invocations
    values = getattr(calls, column).copy()
    values[row] = value
    return {"invocations": replace(calls, **{column: values})}


@pytest.mark.parametrize(
    ("change", "word"),
    [
        (changed("name", 0, 8), "'name'"),
        (changed("name", 0, -1), "'name'"),
        (changed("signature", 3, 6), "'signature'"),
        (changed("device", 0, 2), "'device'"),
        (changed("device", 0, -2), "'device'"),
        (changed("thread", 0, 2), "'thread'"),
        (changed("invocation", 0, 4), "'invocation'"),
        (changed("invocation", 0, -1), "'invocation'"),
        (changed("parent", 0, 0), "'parent'"),
        (changed("parent", 2, 5), "'parent'"),
        (changed("parent", 0, -2), "'parent'"),
        (changed("end", 0, 9), "'end'"),
        (changed("start", 1, 5), "'start'"),
        (changed_call("function", 0, 9), "'function'"),
        (changed_call("vm", 0, 1), "'vm'"),
        (changed_call("thread", 0, 2), "thread"),
        (changed_call("parent", 1, 4), "parent"),
        (changed_call("parent", 1, 1), "parent"),
        (changed_call("error", 0, 1), "'error'"),
        (changed_call("end", 0, -1), "'end'"),
        ({"end": np.zeros(7, np.int64)}, "'end'"),
        ({"kinds": np.zeros(1, np.uint8)}, "names"),
        ({"kinds": np.full(8, 4, np.uint8)}, "names"),
        ({"signatures": Signatures(np.zeros(6, np.uint64), np.arange(1, 7))}, "signatures"),
    ],
)
def test_check_refuses_what_points_outside(change: dict[str, Any], word: str) -> None:
    """One line names the column or table that is damaged."""
    sound = trace_of(OPS, CALLS, errors=("",))
    check(sound)
    with pytest.raises(TraceFileError, match=word) as caught:
        check(replace(sound, **change))
    assert "\n" not in str(caught.value)
