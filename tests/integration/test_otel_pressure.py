"""Where the exporter, the queue or the system can't keep up: the application comes first."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import pytest
from opentelemetry import context as contexts
from opentelemetry.exporter.otlp.proto.common.trace_encoder import encode_spans
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter, SpanExportResult
from opentelemetry.trace import get_current_span

from integration.live_spans import Live, attributes, live
from integration.small_vms import callback, chain, small, tensor, vm_of
from integration.test_otel_metrics import collected, of_op
from integration.test_throw import OwnError
from relax_trace.otel import RelaxVMInstrumentor, metrics

X = (1, 2, 3, 4)
MANY = {"ops_per_invocation": 1000, "ops_per_trace": 1000, "ops_per_second": 1_000_000}


class Counted(SpanExporter):
    """Counts by scope, once it is told to go on."""

    def __init__(self) -> None:
        self.counts: Counter[str] = Counter()
        self.reached = threading.Event()
        self.go = threading.Event()

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        """Count by scope."""
        self.reached.set()
        assert self.go.wait(60)
        self.counts.update(
            span.instrumentation_scope.name for span in spans if span.instrumentation_scope
        )
        return SpanExportResult.SUCCESS


@contextmanager
def exporting(settings: dict[str, Any], queue: int = 2048) -> Iterator[tuple[Live, Counted]]:
    """An application with a batch processor."""
    with live({**MANY, **settings}) as application:
        exporter = Counted()
        application.provider.add_span_processor(
            BatchSpanProcessor(exporter, max_queue_size=queue, max_export_batch_size=queue // 4)
        )
        try:
            yield application, exporter
        finally:
            exporter.go.set()
            application.provider.shutdown()


def test_a_burst_far_above_the_sdks_queue() -> None:
    """Every span arrives, of the application as of ops."""
    with exporting({}) as (application, exporter):
        exporter.go.set()
        vm = vm_of(chain(300))
        for _ in range(20):
            with application.tracer.start_as_current_span("request"):
                vm["main"](tensor(*X))
        assert RelaxVMInstrumentor().force_flush()
        assert application.provider.force_flush()
        assert exporter.counts == {"application": 20, "relax_trace": 20, "relax_trace.ops": 6040}


def test_while_the_exporter_hangs_no_op_span_takes_an_applications_place() -> None:
    """The queue is left to the application, to the last place; the ops come when there is room."""
    with exporting({}) as (application, exporter):

        def requests(count: int) -> None:
            for _ in range(count):
                application.tracer.start_span("request").end()

        requests(512)  # which the exporter takes, and hangs
        assert exporter.reached.wait(60)
        requests(1000)
        vm_of(chain(300))["main"](tensor(*X))
        assert not RelaxVMInstrumentor().force_flush(1.0)
        requests(1000)
        exporter.go.set()
        assert RelaxVMInstrumentor().force_flush()
        assert application.provider.force_flush()
        expected = {"application": 2512, "relax_trace": 1, "relax_trace.ops": 302}
        assert exporter.counts == expected


def test_many_that_want_no_span_leave_room_for_one_that_does() -> None:
    """They have a queue of their own, and all of them add to the metrics."""
    reader = InMemoryMetricReader()
    settings = {"ops": "slow", "slow_percentile": 0.0, "queue": 10}

    def boom(_: Any) -> None:
        raise OwnError("no", 3)

    with live({**settings, "meter_provider": MeterProvider([reader])}) as application:
        vm = vm_of(small())
        RelaxVMInstrumentor().instrument_vm(vm, name="pressure")
        for _ in range(150):
            vm["identity"](tensor(*X))
        with callback(boom), pytest.raises(RuntimeError):
            vm["call"](tensor(*X))
        assert len(application.ops) == 3
        key = of_op("pressure", "vm.builtin.match_shape", "builtin")
        assert collected(reader)["tvm.op.calls"][1][key].value == 151


def test_a_thread_that_cant_be_had(monkeypatch: pytest.MonkeyPatch) -> None:
    """The ops are counted as dropped; the next invocation has its own again."""
    start = threading.Thread.start

    def refuse(thread: threading.Thread) -> None:
        if thread.name == "relax_trace.otel":
            raise RuntimeError("can't start new thread")
        start(thread)

    with live() as application:
        vm = vm_of(small())
        before = RelaxVMInstrumentor().dropped["queue"]
        with monkeypatch.context() as patch:
            patch.setattr(threading.Thread, "start", refuse)
            vm["main"](tensor(*X))
        assert application.ops == []
        assert RelaxVMInstrumentor().dropped["queue"] - before == 8
        assert attributes(application.named("main"))["tvm.vm.op.dropped"] == (int, 8)
        vm["inner"](tensor(*X))
        assert len(application.ops) == 3


def test_an_invocation_that_outlives_the_instrumentation() -> None:
    """Its span says that its ops are not there; whoever comes next has its own."""
    application = Live()
    instrumentor = RelaxVMInstrumentor()
    vm = vm_of(small())
    before = instrumentor.dropped["shutdown"]

    def change(_: Any) -> None:
        instrumentor.uninstrument()
        instrumentor.instrument(tracer_provider=application.provider)

    instrumentor.instrument(tracer_provider=application.provider)
    try:
        with callback(change):
            vm["call"](tensor(*X))
        vm["inner"](tensor(*X))
        said = attributes(application.named("call"))
        assert said["tvm.vm.op.dropped"] == said["tvm.vm.op.count"]
        assert instrumentor.dropped["shutdown"] - before == said["tvm.vm.op.count"][1] > 0
        assert len(application.ops) == 3
    finally:
        instrumentor.uninstrument()


def test_ctrl_c_before_the_call_leaves_nothing_behind(monkeypatch: pytest.MonkeyPatch) -> None:
    """The next invocation is nobody's child, and nothing is recorded for the one that never ran."""

    def interrupt(*_: Any) -> None:
        raise KeyboardInterrupt

    with live() as application:
        vm = vm_of(small())
        with monkeypatch.context() as patch:
            patch.setattr(metrics.Metrics, "begin", interrupt)
            with pytest.raises(KeyboardInterrupt):
                vm["main"](tensor(*X))
        assert not get_current_span(contexts.get_current()).get_span_context().is_valid
        vm["inner"](tensor(*X))
        first, second = application.spans
        assert (first.name, first.status.is_ok, second.parent) == ("main", False, None)
        assert len(application.ops) == 3


def test_a_name_that_protobuf_cant_hold(caplog: pytest.LogCaptureFixture) -> None:
    """The application's spans of the same request are exported all the same."""
    with live() as application:
        vm = vm_of(small())
        request = application.tracer.start_as_current_span("request")
        with request, pytest.raises(ValueError, match=r"nonexistent|surrogates"):
            vm.invoke_stateful("nonexistent\udce9")
        sent = encode_spans(application.spans).resource_spans[0].scope_spans
        assert {span.name for scope in sent for span in scope.spans} == {
            "nonexistent\N{REPLACEMENT CHARACTER}",
            "request",
        }
    assert caplog.messages == []
