"""The application's own spans in a Trace, and on Perfetto's timeline beside its invocations."""

from __future__ import annotations

import asyncio
import logging
import os
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from opentelemetry import context as contexts
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.sampling import ALWAYS_OFF
from opentelemetry.trace import Span, Status, StatusCode, Tracer

import relax_trace
from integration.live_spans import live
from integration.small_vms import callback, chain, run_threads, small, tensor, vm_of
from relax_trace import Trace, surroundings
from relax_trace.otel import RelaxVMInstrumentor, TimelineSpanProcessor, timeline
from relax_trace.spans import OF_INVOCATION
from relax_trace.trace import FAILED, OPEN, SAMPLED
from viewers.trace_processor import TraceProcessor

X = tensor(1, 2, 3, 4)


@pytest.fixture
def provider() -> Iterator[TracerProvider]:
    """Of an application whose spans come into its recordings."""
    made = TracerProvider(shutdown_on_exit=False)
    made.add_span_processor(TimelineSpanProcessor())
    yield made
    made.shutdown()


@pytest.fixture
def tracer(provider: TracerProvider) -> Tracer:
    """The application's."""
    return provider.get_tracer("application")


def names(trace: Trace) -> list[str]:
    """The spans, in order of their start."""
    return [trace.spans.names[i] for i in trace.spans.name.tolist()]


def flags(trace: Trace) -> dict[str, int]:
    """The flags of each span, without ``SAMPLED``."""
    bare = [flags & ~SAMPLED for flags in trace.spans.flags.tolist()]
    return dict(zip(names(trace), bare, strict=True))


def test_spans_are_those_that_overlap_the_recording(tracer: Tracer) -> None:
    """Each with its times, thread, ids and end; what was before or comes after is not there."""
    vm = vm_of(small())
    with tracer.start_as_current_span("before"):
        pass
    worker_ids: list[int] = []

    def work(around: contexts.Context) -> None:
        worker_ids.append(threading.get_native_id())
        with tracer.start_as_current_span("work", context=around) as span:
            vm["main"](X)
            span.set_status(Status(StatusCode.ERROR))

    with tracer.start_as_current_span("handler") as handler:
        with tracer.start_as_current_span("overlaps") as overlaps:
            recording = relax_trace.record(vm)
        with tracer.start_as_current_span("first name") as inner:
            inner.update_name("inner")
            around = contexts.get_current()
            run_threads(lambda: work(around), names=["worker"])
        recording.stop()
        with tracer.start_as_current_span("after"):
            pass
    trace = recording.trace
    spans = trace.spans
    assert flags(trace) == {"handler": OPEN, "overlaps": 0, "inner": 0, "work": FAILED}
    assert (spans.flags & SAMPLED == SAMPLED).all()
    assert spans.start.tolist()[:3] == [s.start_time for s in (handler, overlaps, inner)]
    assert spans.end.tolist()[1:3] == [overlaps.end_time, inner.end_time]
    assert inner.end_time < spans.end[0] < handler.end_time
    ids = [s.get_span_context().span_id for s in (handler, overlaps, inner)]
    assert spans.span_id.tolist() == [*ids, trace.invocations.span_id[0]]
    assert spans.parent_id.tolist() == [0, ids[0], ids[0], ids[2]]
    assert spans.parents().tolist() == [-1, 0, 0, 2]
    assert len({bytes(row) for row in (*spans.trace_id, *trace.invocations.trace_id)}) == 1
    threads = [(trace.threads[i].tid, trace.threads[i].name) for i in spans.thread.tolist()]
    assert threads == [(threading.get_native_id(), "MainThread")] * 3 + [(worker_ids[0], "worker")]
    assert ", 4 spans of the application>" in repr(trace)


def test_an_unsampled_span_is_not_there_and_nothing_is_held_without_a_recording() -> None:
    """The SDK doesn't record it; and of a recorded one nothing is left once it has ended."""
    processor = TimelineSpanProcessor()
    provider = TracerProvider(sampler=ALWAYS_OFF, shutdown_on_exit=False)
    provider.add_span_processor(processor)
    with (
        relax_trace.record(vm_of(small())) as recording,
        provider.get_tracer("application").start_as_current_span("unsampled"),
    ):
        pass
    assert len(recording.trace.spans) == 0
    provider = TracerProvider(shutdown_on_exit=False)
    provider.add_span_processor(processor)
    with provider.get_tracer("application").start_as_current_span("alone"):
        assert [span.name for span in processor._open_now()] == ["alone"]
    assert processor._open_now() == []
    assert surroundings.watches() == ()
    processor.shutdown()


def test_of_instrumented_invocations_only_what_is_around_them_counts(
    tmp_path: Path, perfetto: Callable[[Path], TraceProcessor]
) -> None:
    """Their spans are marked, op spans left out; the file shows one slice for an invocation."""
    with live() as app:
        app.provider.add_span_processor(TimelineSpanProcessor())
        vm = vm_of(small())
        RelaxVMInstrumentor().instrument_vm(vm)
        with relax_trace.record(vm) as recording:
            with app.tracer.start_as_current_span("handler"):
                around = contexts.get_current()

                def work() -> None:
                    contexts.attach(around)
                    vm["main"](X)

                run_threads(work)
            assert len(app.ops) == 8
        RelaxVMInstrumentor().uninstrument_vm(vm)
        app.provider.shutdown()
    trace = recording.trace
    assert flags(trace) == {"handler": 0, "main": OF_INVOCATION}
    assert trace.spans.rows_of(trace.invocations.trace_id, trace.invocations.span_id) == [1]
    trace.save(tmp_path / "trace.json")
    seen = perfetto(tmp_path / "trace.json")
    assert slices(seen, "category in ('span', 'invocation')") == [
        ("MainThread", "handler", "span", 0),
        (trace.threads[trace.invocations.thread[0]].name, "main", "invocation", 0),
    ]
    assert arrows(seen) == [("handler", "main")]
    assert seen.problems() == {}


def slices(seen: TraceProcessor, condition: str) -> list[tuple[Any, ...]]:
    """Track, name, category and depth, in order of time."""
    rows = seen.query(f"""
        select t.name as thread, s.name, s.category, s.depth from slice s
        join thread_track k on s.track_id = k.id join thread t using (utid)
        where {condition} order by s.ts, s.depth
    """)
    return [tuple(row.values()) for row in rows]


def arrows(seen: TraceProcessor) -> list[tuple[str, str]]:
    """From which slice to which."""
    rows = seen.query("""
        select a.name as source, b.name as target from flow
        join slice a on slice_out = a.id join slice b on slice_in = b.id order by b.ts, b.name
    """)
    return [(row["source"], row["target"]) for row in rows]


def test_snapshots_rings_and_cycles_have_theirs(tracer: Tracer) -> None:
    """A snapshot what is there by then; a ring from its oldest invocation on; a cycle its own."""
    vm = vm_of(small())
    with tracer.start_as_current_span("handler"), relax_trace.record(vm) as whole:
        with tracer.start_as_current_span("done"):
            vm["main"](X)
        with tracer.start_as_current_span("under way"):
            snapshot = whole.snapshot()
    assert flags(snapshot) == {"handler": OPEN, "done": 0, "under way": OPEN}
    assert flags(whole.trace) == {"handler": OPEN, "done": 0, "under way": 0}

    cycles: list[Trace] = []
    plan = relax_trace.schedule(wait=1, active=1, repeat=2)
    with relax_trace.record(vm, schedule=plan, on_ready=cycles.append):
        for i in range(6):
            with tracer.start_as_current_span(f"request {i}"):
                vm["main"](X)
    assert [names(cycle) for cycle in cycles] == [["request 1"], ["request 3"]]
    assert names(relax_trace.concatenate([*cycles, cycles[0]])) == ["request 1", "request 3"]

    ring_vm = vm_of(chain(20))
    with relax_trace.record(ring_vm, mode="ring", memory_limit=1 << 20) as ring:
        for i in range(3000):
            with tracer.start_as_current_span(f"request {i}"):
                ring_vm["main"](X)
    oldest = ring.trace.invocations.start.min()
    assert 1 < len(names(ring.trace)) < 3000
    assert names(ring.trace) == [f"request {i}" for i in range(3000)][-len(names(ring.trace)) :]
    assert (ring.trace.spans.end >= oldest).all()


@pytest.mark.parametrize(
    ("mode", "expected"),
    [("stop", ["span 0", "span 1", "span 2"]), ("ring", ["span 2", "span 3", "span 4"])],
)
def test_they_are_bounded_and_counted(
    tracer: Tracer, monkeypatch: pytest.MonkeyPatch, mode: Any, expected: list[str]
) -> None:
    """The first ones are kept, or in a ring the newest; the others are a loss."""
    monkeypatch.setattr(surroundings, "SPANS_MOST", 3)
    vm = vm_of(small())
    with relax_trace.record(vm, mode=mode) as recording:
        vm["main"](X)
        for i in range(5):
            with tracer.start_as_current_span(f"span {i}"):
                pass
    assert names(recording.trace) == expected
    assert recording.trace.losses == relax_trace.Losses(spans=2)
    assert "dropped" not in repr(recording.trace)
    with relax_trace.record(vm, mode="ring") as later:
        for i in range(5):
            with tracer.start_as_current_span(f"span {i}"):
                pass
        vm["main"](X)
    assert (names(later.trace), later.trace.losses) == ([], relax_trace.Losses())


def test_one_that_ends_as_the_trace_is_taken_is_there_once(tracer: Tracer) -> None:
    """With its end: it was open when the trace asked which are, and then ended."""
    ending: list[Span] = []
    forget = surroundings.open_spans_from(lambda: [span.end() for span in ending] and [])
    vm = vm_of(small())
    with relax_trace.record(vm) as recording:
        ending += [tracer.start_span("ends")]
        trace = recording.snapshot()
    forget()
    assert flags(trace) == {"ends": 0}
    assert flags(recording.trace) == {"ends": 0}


def test_spans_that_never_end_are_forgotten(
    tracer: Tracer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The oldest first."""
    monkeypatch.setattr(timeline, "_OPEN_MOST", 3)
    with relax_trace.record(vm_of(small())) as recording:
        spans = [tracer.start_span(f"span {i}") for i in range(5)]
    assert names(recording.trace) == ["span 2", "span 3", "span 4"]
    for span in spans:
        span.end()


def test_many_threads_and_recordings_at_a_time(provider: TracerProvider, tracer: Tracer) -> None:
    """Each recording has every span of every thread once, two processors or not."""
    provider.add_span_processor(TimelineSpanProcessor())
    vm = vm_of(small())

    def work(number: int) -> None:
        for i in range(200):
            with tracer.start_as_current_span(f"{number} {i}"):
                pass

    with relax_trace.record(vm) as one, relax_trace.record(vm, mode="ring") as other:
        run_threads(*(lambda number=number: work(number) for number in range(4)))
    expected = sorted(f"{number} {i}" for number in range(4) for i in range(200))
    assert sorted(names(one.trace)) == sorted(names(other.trace)) == expected


def test_a_forked_child_has_its_own(tracer: Tracer) -> None:
    """Not what the parent's threads had begun or ended; on the child's own thread."""
    vm = vm_of(small())
    with relax_trace.record(vm) as recording, tracer.start_as_current_span("parent's"):
        with tracer.start_as_current_span("ended"):
            pass
        child = os.fork()
        if not child:
            with tracer.start_as_current_span("child's"):
                pass
            recording.stop()
            thread = recording.trace.threads[recording.trace.spans.thread[0]]
            right = (thread.pid, thread.tid) == (os.getpid(), threading.get_native_id())
            os._exit(0 if names(recording.trace) == ["child's"] and right else 1)
        assert os.waitpid(child, 0)[1] == 0
    assert names(recording.trace) == ["parent's", "ended"]


def test_odd_spans_and_faults_reach_no_one(
    tracer: Tracer,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    tmp_path: Path,
) -> None:
    """Times that can't be are within bounds; an error of ours is in the log, once."""
    with relax_trace.record(vm_of(small())) as recording:
        tracer.start_span("early", start_time=-5).end(-9)
        tracer.start_span("late", start_time=2**70).end(2**80)
        tracer.start_span(None).end()  # type: ignore[arg-type]
        tracer.start_span("\ud800\x1b").end()
    found = recording.trace
    assert names(found)[0] == "early"
    assert sorted(names(found)) == sorted(["early", "None", "\ud800\x1b", "late"])
    late = names(found).index("late")
    assert (found.spans.start[0], found.spans.end[late]) == (0, 2**63 - 1)
    for suffix in (".npz", ".json"):
        found.save(tmp_path / f"trace{suffix}")
        assert names(relax_trace.load(tmp_path / f"trace{suffix}")) == names(found)

    def broken() -> None:
        raise OSError("broken for the test")

    with relax_trace.record(vm_of(small())) as recording:
        monkeypatch.setattr(surroundings, "watches", broken)
        with caplog.at_level(logging.ERROR):
            tracer.start_span("one").end()
            tracer.start_span("two").end()
        monkeypatch.undo()
    assert len(recording.trace.spans) == 0
    (record,) = caplog.records
    assert record.message == "spans are missing from recordings; this is said only once"


# ---- on Perfetto's timeline ----


def test_a_service_on_one_clock(
    tracer: Tracer, tmp_path: Path, perfetto: Callable[[Path], TraceProcessor]
) -> None:
    """Handlers take turns on an event loop, and run the VM on threads: arrows lead there."""
    requests = 6
    vms = [vm_of(small()) for _ in range(requests)]
    waits: list[asyncio.Event] = []

    async def handler(number: int) -> None:
        with tracer.start_as_current_span(f"handler {number}"):
            with tracer.start_as_current_span(f"prepare {number}"):
                await waits[number].wait()
            await asyncio.to_thread(infer, number)

    def infer(number: int) -> None:
        with tracer.start_as_current_span(f"infer {number}"):
            vms[number]["main"](X)

    async def serve() -> None:
        waits.extend(asyncio.Event() for _ in vms)
        tasks = [asyncio.create_task(handler(i)) for i in range(requests)]
        await asyncio.sleep(0)
        for wait in waits:
            wait.set()
        await asyncio.gather(*tasks)

    with relax_trace.record() as recording:
        asyncio.run(serve())
    trace = recording.trace
    assert len(trace.spans) == 3 * requests
    assert len(trace.invocations) == requests
    for file in (tmp_path / "trace.json", tmp_path / "trace.json.gz"):
        trace.save(file)
        assert names(relax_trace.load(file)) == names(trace)
    seen = perfetto(tmp_path / "trace.json")
    found = slices(seen, "category = 'span'")
    on = {name: (thread, depth) for thread, name, _, depth in found}
    assert len(found) == len(on) == 3 * requests
    for i in range(requests):
        track = "MainThread" if i == 0 else f"MainThread, spans {i + 1}"
        assert (on[f"handler {i}"], on[f"prepare {i}"]) == ((track, 0), (track, 1))
        assert on[f"infer {i}"][1] == 0
    led = [(f"handler {i}", f"infer {i}") for i in range(requests)]
    assert sorted(arrows(seen)) == led
    inside = "category = 'invocation' and s.depth = 1"  # right inside of its infer span
    assert len(slices(seen, inside)) == requests
    assert seen.query("select count(*) as n from slice")[0]["n"] == 4 * requests + len(trace)
    assert seen.problems() == {}
    context = seen.query(
        "select distinct a.string_value as id from args a join slice s using (arg_set_id) "
        "where a.key = 'args.trace_id' and s.name in ('handler 3', 'prepare 3', 'infer 3', 'main')"
    )
    assert len(context) == requests


def test_without_a_span_around_the_work_the_arrow_leads_to_the_invocation(
    tracer: Tracer, tmp_path: Path, perfetto: Callable[[Path], TraceProcessor]
) -> None:
    """A handler on the event loop, the invocation on a thread of the pool, and one inside of it."""
    vm, inner = vm_of(small()), vm_of(small())

    async def handler() -> Span:
        with tracer.start_as_current_span("handler") as span:
            await asyncio.to_thread(vm["call"], X)
        return span

    def infer(x: Any) -> None:
        inner["main"](x)

    with callback(infer), relax_trace.record() as recording:
        span = asyncio.run(handler())
    trace = recording.trace
    calls = trace.invocations
    assert calls.parent.tolist() == [-1, 0]
    assert span.start_time < calls.start[0] < calls.end[0] < span.end_time
    assert calls.span_id.tolist() == [span.get_span_context().span_id] * 2
    trace.save(tmp_path / "trace.json")
    seen = perfetto(tmp_path / "trace.json")
    assert arrows(seen) == [("handler", "call")]
    assert len(slices(seen, "category = 'invocation'")) == 2
    assert seen.problems() == {}
