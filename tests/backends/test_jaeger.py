"""Spans in the real Jaeger, by both roads: live ones, and a whole Trace that is sent."""

from __future__ import annotations

from collections import Counter

import pytest
from google.protobuf.json_format import MessageToDict
from opentelemetry.exporter.otlp.proto.common.trace_encoder import encode_spans

import relax_trace
from backends import service
from backends.laptop import ROUNDS, SERVICE, Laptop
from backends.otlp_json import by_id, from_base64
from integration.live_spans import is_child
from integration.small_vms import INNER, MAIN, callback, small, tensor, vm_of


def test_every_live_span_is_there_once_as_it_was_made(laptop: Laptop) -> None:
    """All fields, with the types of the attributes, against what the SDK's own encoder says."""
    made = encode_spans([*laptop.spans, *laptop.ops])
    expected = by_id(MessageToDict(made, use_integers_for_enums=True)["resourceSpans"], from_base64)
    traces = {span["traceId"] for span, _ in expected.values()}
    assert len(traces) == 2 * ROUNDS
    resources = [one for trace in traces for one in laptop.jaeger.trace(trace)]
    assert by_id(resources, str) == expected
    # The encoder is not asked what is right: an op under the invocation, that under the request.
    spans = {span.context.span_id: span for span in laptop.spans}
    for op in laptop.ops:
        if op.name in {"add", "inner", "multiply"}:
            assert op.parent is not None
            invocation = spans[op.parent.span_id]
            assert invocation.name == "main"
            assert invocation.parent is not None
            assert is_child(op, invocation)
            assert is_child(invocation, spans[invocation.parent.span_id])
    names = Counter(op.name for op in laptop.ops)
    assert names["subtract"] == names["inner"] == names["add"] == 2 * ROUNDS


def test_tags_of_an_op_have_their_types(laptop: Laptop) -> None:
    """As Jaeger's own API, which its UI reads, has them."""
    found = laptop.jaeger.spans(SERVICE, **{"tvm.op.name": "subtract"}).values()
    ops = [span for span in found if span["operationName"] == "subtract"]
    assert len(ops) == 2 * ROUNDS
    tags = {tag["key"]: (tag["type"], tag["value"]) for tag in ops[0]["tags"]}
    assert tags.pop("thread.id")[0] == "int64"
    assert tags.pop("otel.scope.version", ("string", ""))[0] == "string"  # where it is installed
    assert tags == {
        "otel.scope.name": ("string", "relax_trace.ops"),
        "span.kind": ("string", "internal"),
        "thread.name": ("string", "MainThread"),
        "tvm.device.id": ("int64", 0),
        "tvm.device.type": ("string", "cpu"),
        "tvm.op.argument_shapes": ("string", '["float32[4]","float32[4]"]'),
        "tvm.op.kind": ("string", "kernel"),
        "tvm.op.name": ("string", "subtract"),
    }


def test_a_search_for_errors_finds_what_failed(laptop: Laptop) -> None:
    """And nothing else: the traces in which an op threw, with that op marked."""
    found = laptop.jaeger.spans(SERVICE, error="true").values()
    roots = Counter(span["operationName"] for span in found if not span["references"])
    assert roots == {"failing request": ROUNDS}
    failed = Counter(
        span["operationName"]
        for span in found
        if {"key": "error", "type": "bool", "value": True} in span["tags"]
    )
    assert failed == {"call": ROUNDS, "relax_trace_tests.callback": ROUNDS}
    assert not laptop.jaeger.spans(SERVICE, **{"tvm.device.type": "cuda"})


def test_a_trace_that_is_sent(laptop: Laptop, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every call of every kind, in order, under its parent; the error too."""
    monkeypatch.setenv("OTEL_SERVICE_NAME", "sent")

    def fail(_: object) -> None:
        raise ValueError("no")

    vm = vm_of(small())
    with relax_trace.record(vm) as recording:
        vm["main"](tensor(1, 2, 3, 4))
        with callback(fail), pytest.raises(ValueError, match="no"):
            vm["call"](tensor(1, 2, 3, 4))
    endpoint = f"http://127.0.0.1:{laptop.collector.grpc}"
    sent = recording.trace.send(endpoint=endpoint, protocol="grpc")
    found = service.eventually(
        lambda: laptop.jaeger.spans("sent"), lambda spans: len(spans) >= sent.accepted
    )
    assert len(found) == sent.accepted == len(recording.trace) + 2
    (main,) = [span for span in found.values() if span["operationName"] == "main"]
    resources = laptop.jaeger.trace(main["traceID"])
    spans = {span["spanId"]: span for span, _ in by_id(resources, str).values()}
    in_order = sorted(spans.values(), key=lambda span: int(span["startTimeUnixNano"]))
    names = [span["name"].removeprefix("vm.builtin.") for span in in_order]
    assert names == ["main", *(name.strip() for name in MAIN)]
    parents = [spans[s["parentSpanId"]]["name"] for s in in_order if s["parentSpanId"]]
    assert Counter(parents) == {"main": len(MAIN) - len(INNER), "inner": len(INNER)}
    failed = laptop.jaeger.spans("sent", error="true").values()
    assert {span["operationName"] for span in failed if not span["references"]} == {"call"}
