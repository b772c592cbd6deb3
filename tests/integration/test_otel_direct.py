"""``road="direct"``: op spans that don't pass through the SDK, and are the same."""

from __future__ import annotations

import logging
import os
from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest
import tvm
from opentelemetry.exporter.otlp.proto.common.trace_encoder import encode_spans
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.trace.v1.trace_pb2 import Span
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace.sampling import ALWAYS_OFF, ParentBased
from opentelemetry.trace import SpanContext, TraceFlags, TraceState

import models
from integration.live_spans import Live, live
from integration.otlp_receivers import Answer, Receiver, grpc_receiver, http_receiver, partial
from integration.small_vms import callback, small, tensor, vm_of
from integration.test_throw import OwnError
from relax_trace.otel import RelaxVMInstrumentor, batch

X = (1, 2, 3, 4)
WIDE = dict.fromkeys(("ops_per_invocation", "ops_per_trace", "ops_per_second"), 1_000_000)
RESOURCE = Resource.create({"service.name": "shop", "list": ["a", "b"], "weight": 0.5})


@pytest.fixture(params=["grpc", "http/protobuf"])
def receiver(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[Receiver]:
    """Where the environment says that spans are sent to."""
    grpc = request.param == "grpc"
    with grpc_receiver() if grpc else http_receiver() as found:
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_PROTOCOL", request.param)
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", found.endpoint)
        yield found


def run(application: Live, vm: Any) -> None:
    """Three requests: nested functions, an op that throws, one of a vendor's trace."""

    def boom(_: Any) -> None:
        raise OwnError("no", 3)

    with application.tracer.start_as_current_span("request"):
        vm["main"](tensor(*X))
    with callback(boom), pytest.raises(RuntimeError):
        vm["nested_call"](tensor(*X))
    state = TraceState([("vendor", "x")])
    vendors = SpanContext(1 << 100, 1 << 60, True, TraceFlags(TraceFlags.SAMPLED), state)
    with batch(parent=vendors):
        vm["inner"](tensor(*X))
    assert RelaxVMInstrumentor().force_flush()


def said(request: ExportTraceServiceRequest) -> list[Any]:
    """All that is said of each span, but for times; its parent by its place among these."""
    found = []
    (resource_spans,) = request.resource_spans
    resource = {one.key: one.value for one in resource_spans.resource.attributes}
    (scope,) = resource_spans.scope_spans
    spans = sorted(scope.spans, key=lambda span: span.start_time_unix_nano)
    order = {span.span_id: i for i, span in enumerate(spans)}
    for span in spans:
        kept = Span()
        kept.CopyFrom(span)
        for name in ("trace_id", "span_id", "parent_span_id", "attributes"):
            kept.ClearField(name)
        kept.start_time_unix_nano = kept.end_time_unix_nano = 0
        attributes = {one.key: one.value for one in span.attributes}
        assert len(attributes) == len(span.attributes)
        found.append((kept, attributes, order.get(span.parent_span_id), scope.scope.name, resource))
    return found


def test_they_are_what_the_sdk_would_send(receiver: Receiver) -> None:
    """Every field and attribute, under the invocation's own span, in its trace, within its time."""
    vm = vm_of(small())
    with live(WIDE, resource=RESOURCE) as application:
        run(application, vm)
        by_sdk = encode_spans(application.ops)
    assert receiver.requests == []
    with live({**WIDE, "road": "direct"}, resource=RESOURCE) as application:
        run(application, vm)
        assert application.ops == []
        invocations = application.spans
    merged = ExportTraceServiceRequest()
    merged.CopyFrom(receiver.requests[0])
    for request in receiver.requests[1:]:
        merged.resource_spans[0].scope_spans[0].spans.extend(
            request.resource_spans[0].scope_spans[0].spans
        )
    assert said(merged) == said(by_sdk)
    around: dict[bytes, Any] = {
        span.context.span_id.to_bytes(8, "big"): span for span in invocations
    }
    ops = {span.span_id: span for span in receiver.spans}
    assert len(ops) == len(receiver.spans) == len(by_sdk.resource_spans[0].scope_spans[0].spans)
    for span in receiver.spans:
        parent = around.get(span.parent_span_id)
        if parent:
            trace = parent.context.trace_id.to_bytes(16, "big")
            begin, end = parent.start_time, parent.end_time
        else:
            outer = ops[span.parent_span_id]
            trace, begin, end = (
                outer.trace_id,
                outer.start_time_unix_nano,
                outer.end_time_unix_nano,
            )
        assert span.trace_id == trace
        assert begin <= span.start_time_unix_nano <= span.end_time_unix_nano <= end


def test_a_real_model(receiver: Receiver) -> None:
    """Its ops, and all runs of an evaluation under one span."""
    made = models.squeezenet()
    with live({**WIDE, "road": "direct"}) as application:
        made.check(made.run())
        small_vm = vm_of(small())
        small_vm.time_evaluator("identity", tvm.cpu(), number=3)(tensor(*X))
        assert RelaxVMInstrumentor().force_flush()
        counts = {
            span.context.span_id.to_bytes(8, "big"): (span.attributes or {})["tvm.vm.op.count"]
            for span in application.spans
        }
    ids = {span.span_id for span in receiver.spans}
    children = Counter(
        span.parent_span_id for span in receiver.spans if span.parent_span_id not in ids
    )
    assert children == counts
    assert sum(counts.values()) == len(ids) > 40  # type: ignore[arg-type]


def test_what_is_not_sampled_is_not_sent(receiver: Receiver) -> None:
    """Nobody would see its trace."""
    settings = {**WIDE, "road": "direct", "ops": "all"}
    with live(settings, sampler=ParentBased(ALWAYS_OFF)) as application:
        vm_of(small())["main"](tensor(*X))
        assert application.ops == application.spans == []
    assert receiver.requests == []


def dropped() -> int:
    """Op spans that did not arrive."""
    return RelaxVMInstrumentor().dropped["export"]


def test_a_receiver_that_refuses(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """What it doesn't take is counted, and said once; what it takes later arrives."""
    body = partial(5, "too many").SerializeToString()
    with http_receiver(Answer(400), Answer(body=body), Answer()) as receiver:
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_PROTOCOL", "http/protobuf")
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", receiver.endpoint)
        before, counts = dropped(), []
        with (
            caplog.at_level(logging.WARNING, "relax_trace"),
            live({**WIDE, "road": "direct"}),
        ):
            vm = vm_of(small())
            for _ in range(3):
                vm["main"](tensor(*X))
                assert RelaxVMInstrumentor().force_flush()
                counts.append(dropped() - before)
        assert counts == [8, 13, 13]
    assert [text for text in caplog.messages if "sent" in text and "be sent:" in text] == [
        f"op spans could not be sent: {receiver.endpoint}/v1/traces: HTTP 400 Bad Request; "
        "this is said only once"
    ]


def test_settings_of_no_use(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The application goes on; its op spans are counted as lost."""
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_PROTOCOL", "pigeon")
    before = dropped()
    with caplog.at_level(logging.WARNING, "relax_trace"), live({**WIDE, "road": "direct"}) as made:
        vm_of(small())["main"](tensor(*X))
        assert RelaxVMInstrumentor().force_flush()
        assert [span.name for span in made.spans] == ["main"]
    assert dropped() - before == 8
    assert any("no OTLP protocol 'pigeon'" in text for text in caplog.messages)


def test_in_a_child_process(receiver: Receiver) -> None:
    """It has a connection of its own, and ids that no other has."""
    with live({**WIDE, "road": "direct"}):
        vm = vm_of(small())
        vm["main"](tensor(*X))
        assert RelaxVMInstrumentor().force_flush()
        children = []
        for _ in range(2):
            child = os.fork()
            if not child:
                vm["main"](tensor(*X))
                os._exit(not RelaxVMInstrumentor().force_flush())
            children.append(child)
        assert [os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children] == [0, 0]
    ids = {span.span_id for span in receiver.spans}
    assert len(ids) == len(receiver.spans) == 24
    assert len({span.trace_id for span in receiver.spans}) == 3
