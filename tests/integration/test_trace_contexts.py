"""The OpenTelemetry span around each invocation that is recorded, and what becomes of it."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from opentelemetry import context as contexts
from opentelemetry import trace as api
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.sampling import ALWAYS_OFF
from opentelemetry.trace import NonRecordingSpan, Span, SpanContext, TraceFlags

import relax_trace
from integration.live_spans import live
from integration.otlp_receivers import http_receiver
from integration.small_vms import (
    MAIN,
    chain,
    counts,
    functions,
    run_alone,
    run_threads,
    small,
    tensor,
    vm_of,
)
from relax_trace import Trace, surroundings
from relax_trace.otel import RelaxVMInstrumentor
from relax_trace.otel import contexts as ours
from relax_trace.trace import IMPLICIT, SAMPLED

X = tensor(1, 2, 3, 4)
NOBODY = (0, 0, 0)


def application() -> api.Tracer:
    """A tracer of an application whose traces are all sampled."""
    return TracerProvider(shutdown_on_exit=False).get_tracer("application")


def ids_of(span: Span) -> tuple[int, int, int]:
    """Trace, span, and the flag of an invocation in it."""
    context = span.get_span_context()
    return context.trace_id, context.span_id, SAMPLED * context.trace_flags.sampled


def seen(trace: Trace) -> list[tuple[int, int, int]]:
    """The same of each invocation recorded."""
    calls = trace.invocations
    traces = [int.from_bytes(bytes(row), "big") for row in calls.trace_id]
    return [*zip(traces, calls.span_id.tolist(), (calls.flags & SAMPLED).tolist(), strict=True)]


def test_each_invocation_has_the_span_that_is_current_as_it_begins() -> None:
    """Inside one, none, a nested one, another trace's, one from far away, an unsampled one."""
    tracer, vm = application(), vm_of(small())
    off = TracerProvider(sampler=ALWAYS_OFF, shutdown_on_exit=False).get_tracer("application")
    remote = NonRecordingSpan(SpanContext(2**127 + 5, 2**63 + 7, True, TraceFlags(3)))
    taken_before = vm["main"]
    spans: list[Span] = []
    with relax_trace.record(vm) as recording:
        vm["main"](X)
        with tracer.start_as_current_span("outer") as outer:
            taken_before(X)
            with tracer.start_as_current_span("inner") as inner:
                vm["main"](X)
            vm.set_input("main", X)
            vm.invoke_stateful("main")
        with off.start_as_current_span("unsampled") as unsampled:
            vm["main"](X)
        token = contexts.attach(api.set_span_in_context(remote))
        vm["main"](X)
        contexts.detach(token)
        taken_before(X)
    spans = [outer, inner, outer, unsampled, remote]
    assert seen(recording.trace) == [NOBODY, *map(ids_of, spans), NOBODY]
    assert ids_of(remote) == (2**127 + 5, 2**63 + 7, SAMPLED)
    assert ids_of(unsampled)[2] == 0 < ids_of(unsampled)[0]
    implicit = (recording.trace.invocations.flags & IMPLICIT).tolist()
    assert implicit == [0, IMPLICIT, 0, 0, 0, 0, IMPLICIT]


def test_threads_and_tasks_have_their_own() -> None:
    """Spans of several threads, and of tasks of an event loop that run the VM on other threads."""
    tracer, vms = application(), [vm_of(small()) for _ in range(3)]
    spans: dict[str, set[tuple[int, int, int]]] = {}

    def on_thread(vm: object, name: str) -> None:
        for _ in range(50):
            with tracer.start_as_current_span(name) as span:
                vm["main"](X)  # type: ignore[index]
            spans.setdefault(name, set()).add(ids_of(span))

    async def handler(vm: object, name: str) -> None:
        with tracer.start_as_current_span(name) as span:
            await asyncio.gather(asyncio.to_thread(vm["main"], X), asyncio.sleep(0))  # type: ignore[index]
        spans.setdefault(name, set()).add(ids_of(span))

    async def serve() -> None:
        await asyncio.gather(*(handler(vm, f"task {i}") for i, vm in enumerate(vms)))

    with relax_trace.record() as recording:
        targets = [lambda vm=vm, i=i: on_thread(vm, f"thread {i}") for i, vm in enumerate(vms)]
        run_threads(*targets)
        asyncio.run(serve())
    found = seen(recording.trace)
    assert len(found) == 3 * 50 + 3
    assert sorted(found) == sorted(set().union(*spans.values()))


def test_an_instrumented_vm_has_its_own_span() -> None:
    """The recording lies inside of it; what the instrumentation records for itself asks nobody."""
    asked: list[bytes] = []

    def source() -> bytes:
        asked.append(ours.current_context())
        return asked[-1]

    vm = vm_of(small())
    surroundings.use_context(source)
    try:
        with live() as app:
            RelaxVMInstrumentor().instrument_vm(vm, "model")
            vm["main"](X)
            assert len(app.ops) == 8
            assert asked == []
            with app.tracer.start_as_current_span("request"), relax_trace.record(vm) as recording:
                vm["main"](X)
                recording.pause()
                vm["main"](X)
            invocation = [span for span in app.spans if span.name == "main"][1]
            RelaxVMInstrumentor().uninstrument_vm(vm)
    finally:
        surroundings.use_context(ours.current_context)
    assert len(asked) == 1
    context = invocation.context
    assert seen(recording.trace) == [(context.trace_id, context.span_id, SAMPLED)]


@pytest.fixture
def source() -> Iterator[list[BaseException | bytes]]:
    """What the recorder is told when it asks, in turn, and then nothing."""
    answers: list[BaseException | bytes] = []

    def tell() -> bytes:
        answer = answers.pop(0) if answers else b""
        if isinstance(answer, BaseException):
            raise answer
        return answer

    surroundings.use_context(tell)
    yield answers
    surroundings.use_context(ours.current_context)


def test_whatever_fails_in_it_leaves_the_invocation_alone(
    source: list[BaseException | bytes],
) -> None:
    """An error, and an answer of another size; the next answer is taken."""
    vm = vm_of(small())
    source += [ValueError("broken"), b"short", bytes(24) + b"\1", b"\1" * 25]
    with relax_trace.record(vm) as recording:
        for _ in range(5):
            assert vm["main"](X).numpy().tolist() == [1, 9, 25, 49]
    one = int.from_bytes(b"\1" * 16, "big")
    assert seen(recording.trace) == [NOBODY] * 2 + [
        (0, 0, SAMPLED),
        (one, one >> 64, SAMPLED),
        NOBODY,
    ]


@pytest.mark.parametrize("taken_before", [False, True])
def test_ctrl_c_in_it_reaches_the_caller(
    source: list[BaseException | bytes], taken_before: bool
) -> None:
    """As one that comes an instant later would: when the invocation is over."""
    vm = vm_of(small())
    main = vm["main"]
    with relax_trace.record(vm) as recording:
        main = main if taken_before else vm["main"]
        source.append(KeyboardInterrupt())
        with pytest.raises(KeyboardInterrupt):
            main(X)
        assert main(X).numpy().tolist() == [1, 9, 25, 49]
    assert functions(recording.trace) == ["main"] * 2
    assert counts(recording.trace) == [len(MAIN)] * 2


def test_a_forked_child_asks_too() -> None:
    """The hook stays set."""
    tracer, vm = application(), vm_of(small())
    with relax_trace.record(vm) as recording:
        child = os.fork()
        if not child:
            with tracer.start_as_current_span("in the child") as span:
                vm["main"](X)
            recording.stop()
            os._exit(0 if seen(recording.trace) == [ids_of(span)] else 1)
        assert os.waitpid(child, 0)[1] == 0


WITHOUT = """
import sys
import relax_trace
from integration.small_vms import small, tensor, vm_of
vm, x = vm_of(small()), tensor(1, 2, 3, 4)
with relax_trace.record(vm) as recording:
    vm["main"](x)
    assert not [name for name in sys.modules if name.startswith("opentelemetry")]
    import opentelemetry.trace
    span = opentelemetry.trace.NonRecordingSpan(opentelemetry.trace.SpanContext(5, 7, False))
    with opentelemetry.trace.use_span(span):
        vm["main"](x)
import atexit
@atexit.register
def last():
    with relax_trace.record(vm) as recording, opentelemetry.trace.use_span(span):
        vm["main"](x)
    print(recording.trace.invocations.span_id.tolist())
print(recording.trace.invocations.span_id.tolist())
"""


def test_opentelemetry_may_come_late_or_never() -> None:
    """Nothing of it is imported for a recording; once the program does, recordings ask it."""
    ended = run_alone(WITHOUT)
    assert (ended.returncode, ended.stdout, ended.stderr) == (0, "[0, 7]\n[7]\n", "")


BROKEN = """
import sys
sys.modules["relax_trace.otel.contexts"] = None
import relax_trace
import opentelemetry.trace
print("goes on")
"""


def test_what_fails_as_opentelemetry_comes_does_not_fail_its_import() -> None:
    """It is said in the log."""
    ended = run_alone(BROKEN)
    assert (ended.returncode, ended.stdout) == (0, "goes on\n")
    assert "invocations are recorded without their trace contexts" in ended.stderr


def test_filter_concatenate_and_files_keep_them(tmp_path: Path) -> None:
    """Ids and flags go with their invocation."""
    tracer, vm = application(), vm_of(small())
    with relax_trace.record(vm) as recording:
        vm["main"](X)
        with tracer.start_as_current_span("request") as span:
            vm["main"](X)
    trace = recording.trace
    expected = [NOBODY, ids_of(span)]
    assert seen(trace) == expected
    assert seen(trace.filter(invocation=1, kind="kernel")) == expected[1:]
    assert seen(relax_trace.concatenate([trace.filter(invocation=1), trace])) == [
        expected[1],
        *expected,
    ]
    for suffix in (".npz", ".json", ".json.gz"):
        trace.save(tmp_path / f"trace{suffix}")
        assert seen(relax_trace.load(tmp_path / f"trace{suffix}")) == expected


def test_a_recording_inside_a_span_is_sent_into_its_trace(monkeypatch: pytest.MonkeyPatch) -> None:
    """Under that span; outside of one, or in a trace that isn't sampled, by itself."""
    for name in [name for name in os.environ if name.startswith("OTEL_")]:
        monkeypatch.delenv(name)
    tracer, vm = application(), vm_of(chain(2))
    off = TracerProvider(sampler=ALWAYS_OFF, shutdown_on_exit=False).get_tracer("application")
    with http_receiver() as receiver:
        with (
            tracer.start_as_current_span("handler") as handler,
            relax_trace.record(vm) as recording,
        ):
            vm["main"](X)
            with off.start_as_current_span("unsampled", context=contexts.Context()) as unsampled:
                vm["main"](X)
            token = contexts.attach(contexts.Context())
            vm["main"](X)
            contexts.detach(token)
        sent = recording.trace.send(endpoint=receiver.endpoint, protocol="http/protobuf")
    assert sent.accepted == len(receiver.spans) == 3 + len(recording.trace)
    joined, *others = [span for span in receiver.spans if span.name == "main"]
    trace_id, span_id, _ = ids_of(handler)
    assert joined.trace_id == trace_id.to_bytes(16, "big")
    assert joined.parent_span_id == span_id.to_bytes(8, "big")
    own = {span.trace_id for span in others}
    assert len(own | {joined.trace_id, ids_of(unsampled)[0].to_bytes(16, "big")}) == 4
    assert [span.parent_span_id for span in others] == [b"", b""]
    parents = {span.span_id: span.trace_id for span in (joined, *others)}
    ops = [span for span in receiver.spans if span.name != "main"]
    assert all(parents[op.parent_span_id] == op.trace_id for op in ops)
