"""OTLP: every span exactly as the official parsers see it."""

from __future__ import annotations

import json
import subprocess
import sys
from base64 import b64encode
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from google.protobuf.json_format import Parse
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.common.v1.common_pb2 import AnyValue
from opentelemetry.proto.trace.v1.trace_pb2 import Span, TracesData

import relax_trace
from benchmarks.bench_chrome import made_up
from relax_trace import Device, Losses, Thread, Trace, TraceFileError, load
from relax_trace.announce import next_steps
from relax_trace.exporters.otlp import json_lines, protobuf
from relax_trace.exporters.otlp.arguments import split_arguments
from relax_trace.exporters.otlp.batches import Request, requests
from relax_trace.exporters.otlp.spans import new_identity
from relax_trace.ragged import Ragged
from relax_trace.signature import RESULT, Signatures
from relax_trace.trace import ABORTED, FAILED, IMPLICIT, OPEN, SIGNATURE_LOST, SYNCHRONIZED
from unit.random_traces import HOSTILE, random_trace
from unit.traces import Call, Op, trace_of, words

_BASE = 1_764_576_000_123_456_789  # ns since the epoch: more digits than a double holds


@pytest.fixture(autouse=True)
def service(monkeypatch: pytest.MonkeyPatch) -> None:
    """A service name from the environment, and nothing else there."""
    monkeypatch.setenv("OTEL_RESOURCE_ATTRIBUTES", "service.name=unused,deployment=test")
    monkeypatch.setenv("OTEL_SERVICE_NAME", "speech")


def value_of(value: AnyValue) -> Any:
    """An attribute's value as ``(kind, value)``: 1, 1.0 and True are not the same."""
    kind = value.WhichOneof("value")
    if kind == "array_value":
        return kind, [value_of(element) for element in value.array_value.values]
    return kind, getattr(value, kind)


def text(value: str) -> tuple[str, str]:
    """A string as :func:`value_of` gives it."""
    return "string_value", value


def texts(*values: str) -> tuple[str, list[Any]]:
    """Some strings as :func:`value_of` gives them."""
    return "array_value", [text(value) for value in values]


def number(value: int) -> tuple[str, int]:
    """An integer as :func:`value_of` gives it."""
    return "int_value", value


def attributes_of(holder: Any) -> dict[str, Any]:
    """The attributes of a span or a resource, none of them twice."""
    found = {attribute.key: value_of(attribute.value) for attribute in holder.attributes}
    assert len(found) == len(holder.attributes)
    return found


def parsed(found: Iterator[Request]) -> list[tuple[str, Span]]:
    """All spans, each with its scope, as the official parser reads them."""
    spans = []
    for request in found:
        message = ExportTraceServiceRequest.FromString(request.body)
        own = [
            (scope.scope.name, span)
            for resource in message.resource_spans
            for scope in resource.scope_spans
            for span in scope.spans
        ]
        assert len(own) == request.spans
        spans += own
    return spans


def counting(first: int = 1) -> Any:
    """Made-up randomness: 16-byte ids that count, and span ids from ``first`` on."""

    def random(size: int) -> bytes:
        if size == 8:
            return ((first - 1) << 2).to_bytes(8, "big")
        return b"".join(i.to_bytes(16, "big") for i in range(1, 1 + size // 16))

    return random


def small() -> Trace:
    """Two threads, nested ops, an invocation inside another, ties, errors, a copy."""
    ops = [
        Op("alloc", 0, 0, "shape[64], 0", kind="builtin", device=None),
        Op("cond", 0, 9_000_000, kind="function"),
        Op("add", 1, 1_501, "float32[1, 64], (int64[], bool[2])", parent=1),
        Op("other", 500, 600, "float32[2]", "cuda1", invocation=1, thread=1, flags=ABORTED),
        Op("callback", 2_000, 3_000, kind="extern", flags=SIGNATURE_LOST | SYNCHRONIZED),
        Op("mul", 2_000, 2_500, "float32[3]", invocation=2, flags=ABORTED),
    ]
    calls = [
        Call(0, 9_000_000),
        Call(499, 1_000, "decode", thread=1, error=0, flags=FAILED | IMPLICIT),
        Call(2_000, 2_999, "inner", parent=0, flags=OPEN),
    ]
    return trace_of(
        [replace(op, start=op.start + _BASE, end=op.end + _BASE) for op in ops],
        [replace(call, start=call.start + _BASE, end=call.end + _BASE) for call in calls],
        threads=(Thread(7, 7, "MainThread"), Thread(7, 8, 'a "worker"')),
        vms=("model",),
        errors=("ValueError: bad\nshape",),
        losses=Losses(ops=3),
    )


def test_spans_are_exactly_these() -> None:
    """Ids, parents, times, names, attributes and their types, status and flags of every span."""
    trace = small()
    identity = new_identity(trace, random=counting(100))
    spans = parsed(requests(trace, protobuf, identity=identity))
    main = {"thread.id": number(7), "thread.name": text("MainThread")}
    worker = {"thread.id": number(8), "thread.name": text('a "worker"')}
    cpu = {"tvm.device.type": text("cpu"), "tvm.device.id": number(0)}
    model = {"tvm.model.name": text("model")}

    def op(name: str, kind: str, *more: dict[str, Any], shapes: tuple[str, ...] = ()) -> Any:
        found = {"tvm.op.name": text(name), "tvm.op.kind": text(kind)}
        if shapes:
            found["tvm.op.argument_shapes"] = texts(*shapes)
        for some in more:
            found |= some
        return found

    def call(function: str, count: int, seconds: float, timing: str, *more: Any) -> Any:
        found = model | {
            "tvm.vm.function": text(function),
            "tvm.vm.op.count": number(count),
            "tvm.vm.op.time": ("double_value", seconds),
            "tvm.timing": text(timing),
        }
        for some in more:
            found |= some
        return found

    # By id: invocations 100 to 102, ops 103 to 108. Each: trace, parent, start, end, …
    dropped = {"tvm.vm.op.dropped": number(3)}
    failed = {"error.type": text("ValueError")}
    cuda = {"tvm.device.type": text("cuda"), "tvm.device.id": number(1)}
    pair = ("float32[1, 64]", "(int64[], bool[2])")
    expected = {
        100: (1, 0, 0, 9_000_000, "main", call("main", 4, 0.009001, "synchronized", main, dropped)),
        101: (
            *(2, 0, 499, 1_000, "decode"),
            call(
                *("decode", 1, 1e-7, "host"),
                *(worker, dropped, failed, {"tvm.capture.unseen": texts("start")}),
            ),
        ),
        102: (
            *(1, 100, 2_000, 2_999, "inner"),
            call("inner", 1, 5e-7, "host", main, {"tvm.capture.unseen": texts("end")}),
        ),
        103: (
            *(1, 100, 0, 0, "alloc"),
            op("alloc", "builtin", main, shapes=("shape[64]", "0")),
        ),
        104: (1, 100, 0, 9_000_000, "cond", op("cond", "function", main, cpu)),
        105: (1, 104, 1, 1_501, "add", op("add", "kernel", main, cpu, shapes=pair)),
        106: (
            *(2, 101, 500, 600, "other"),
            op("other", "kernel", worker, cuda, failed, shapes=("float32[2]",)),
        ),
        107: (1, 100, 2_000, 3_000, "callback", op("callback", "extern", main, cpu)),
        108: (
            *(1, 102, 2_000, 2_500, "mul"),
            op("mul", "kernel", main, cpu, {"error.type": text("_OTHER")}, shapes=("float32[3]",)),
        ),
    }
    found = {}
    for _, span in spans:
        identifier = int.from_bytes(span.span_id, "big")
        assert len(span.span_id) == 8
        assert len(span.trace_id) == 16
        assert len(span.parent_span_id) == (0 if identifier in (100, 101) else 8)
        found[identifier] = (
            int.from_bytes(span.trace_id, "big"),
            int.from_bytes(span.parent_span_id, "big"),
            span.start_time_unix_nano - _BASE,
            span.end_time_unix_nano - _BASE,
            span.name,
            attributes_of(span),
        )
    assert found == expected
    assert len(spans) == 9
    by_id = {int.from_bytes(span.span_id, "big"): (scope, span) for scope, span in spans}
    scopes = {identifier: scope for identifier, (scope, _) in by_id.items()}
    assert scopes == {i: "relax_trace" if i < 103 else "relax_trace.ops" for i in expected}
    assert {span.kind for _, span in spans} == {Span.SPAN_KIND_INTERNAL}
    assert {span.flags for _, span in spans} == {0x100}
    status = {i: (span.status.code, span.status.message) for i, (_, span) in by_id.items()}
    failures = {101: (2, "ValueError: bad\nshape"), 106: (2, ""), 108: (2, "")}
    assert status == dict.fromkeys(expected, (0, "")) | failures
    lost = {i for i, (_, span) in by_id.items() if span.dropped_attributes_count == 1}
    assert lost == {107}


def test_a_copy_says_where_from_and_where_to() -> None:
    """The device of a copy is its result's, and the source its argument's."""
    signature = [*words("float32[2]"), RESULT << 56, *words("float32[2]", "cuda3")]
    trace = trace_of([Op("to_device", 0, 1, "float32[2]")])
    trace = replace(trace, signatures=Signatures.from_lists([signature]))
    found = attributes_of(parsed(requests(trace, protobuf))[1][1])
    assert {key: value for key, value in found.items() if "device" in key} == {
        "tvm.device.type": text("cuda"),
        "tvm.device.id": number(3),
        "tvm.device.source.type": text("cpu"),
        "tvm.device.source.id": number(0),
    }


def test_the_resource_is_the_sdks_and_the_recorded_process() -> None:
    """From the environment and the SDK; the process is that of the trace, here not this one."""
    (request,) = requests(small(), protobuf)
    (resource,) = ExportTraceServiceRequest.FromString(request.body).resource_spans
    found = attributes_of(resource.resource)
    assert found["service.name"] == text("speech")
    assert found["deployment"] == text("test")
    assert found["telemetry.sdk.language"] == text("python")
    assert found["process.pid"] == number(7)
    assert "host.name" not in found


def test_a_trace_under_spans_that_are_there_already() -> None:
    """Given a trace and a parent, an outermost invocation and all inside it belong to them."""
    trace = small()
    trace_ids, parents = np.zeros((3, 16), np.uint8), np.zeros(3, np.uint64)
    trace_ids[0], parents[0] = 0xAB, 2**64 - 1
    identity = new_identity(trace, trace_ids=trace_ids, parents=parents)
    spans = {span.name: span for _, span in parsed(requests(trace, protobuf, identity=identity))}
    joined = {name for name, span in spans.items() if span.trace_id == b"\xab" * 16}
    assert joined == set(spans) - {"decode", "other"}
    assert spans["main"].parent_span_id == b"\xff" * 8
    assert spans["inner"].parent_span_id == spans["main"].span_id
    assert spans["decode"].parent_span_id == b""


def well_formed(value: str) -> str:
    """What UTF-8 can hold of ``value``: a lone surrogate is shown as U+FFFD."""
    joined = json.loads(json.dumps(value))  # two surrogates side by side are one character
    return "".join(
        "\ufffd" if "\ud800" <= character <= "\udfff" else character for character in joined
    )


def test_hostile_texts_stay_texts(tmp_path: Path) -> None:
    """Quotes, markup, NUL, lone surrogates: valid UTF-8, in protobuf as in JSON."""
    ops = [Op(name, i, i + 1) for i, name in enumerate(HOSTILE)]
    for hostile in HOSTILE:
        trace = trace_of(
            ops, [Call(0, 9, hostile, error=0, flags=FAILED)], threads=(Thread(7, 7, hostile),),
            vms=(hostile,), errors=(hostile,),
        )  # fmt: skip
        expected = well_formed(hostile)
        spans = [span for _, span in parsed(requests(trace, protobuf))]
        assert [span.name for span in spans] == [expected, *map(well_formed, HOSTILE)]
        attributes = attributes_of(spans[0])
        for name in ("tvm.model.name", "tvm.vm.function", "thread.name"):
            assert attributes[name] == text(expected)
        assert attributes["error.type"] == text("_OTHER")
        assert spans[0].status.message == expected
        trace.save(tmp_path / "trace.otlp.json")
        raw = (tmp_path / "trace.otlp.json").read_bytes()
        assert raw.isascii()
        assert (
            TracesData.FromString(merged_json(raw)).resource_spans[0].scope_spans[0].spans[0].name
            == expected
        )


def merged_json(raw: bytes) -> bytes:
    """Lines of OTLP JSON as protobuf, through the official JSON parser.

    Its ids are base64, OTLP's are hexadecimal: the one difference, which is undone here.
    """
    merged = TracesData()
    for line in raw.splitlines():
        document = json.loads(line)
        assert list(document) == ["resourceSpans"]
        for resource in document["resourceSpans"]:
            for span in (span for scope in resource["scopeSpans"] for span in scope["spans"]):
                assert isinstance(span["startTimeUnixNano"], str)
                for key in {"traceId", "spanId", "parentSpanId"} & set(span):
                    identifier = bytes.fromhex(span[key])
                    assert identifier.hex() == span[key]
                    span[key] = b64encode(identifier).decode()
        merged.MergeFrom(Parse(json.dumps(document), TracesData()))
    return merged.SerializeToString()


def spans_of(data: TracesData) -> list[Span]:
    """All spans of a message."""
    return [
        span
        for resource in data.resource_spans
        for scope in resource.scope_spans
        for span in scope.spans
    ]


@pytest.mark.parametrize("seed", range(5))
def test_both_forms_say_the_same_of_any_trace(seed: int) -> None:
    """Random traces, in requests of any size: JSON and protobuf parse to the same spans."""
    trace = random_trace(seed)
    identity = new_identity(trace)
    sent = parsed(requests(trace, protobuf, identity=identity))
    assert len(sent) == len(trace) + len(trace.invocations)
    assert len({span.span_id for _, span in sent}) == len(sent)
    lines = [
        request.body for request in requests(trace, json_lines, limit=9_000, identity=identity)
    ]
    assert len(lines) > 5
    written = spans_of(TracesData.FromString(merged_json(b"".join(lines))))
    by_id = {span.span_id: span for span in written}
    for span in written:
        span.attributes.sort(key=lambda attribute: attribute.key)
    for _, span in sent:
        span.attributes.sort(key=lambda attribute: attribute.key)
        assert by_id[span.span_id] == span
    assert len(written) == len(sent)


@pytest.mark.parametrize("seed", range(3))
def test_random_traces_keep_times_names_and_parents(seed: int) -> None:
    """Every row of a trace is a span with its own times and name, under its own parent."""
    trace = random_trace(seed)
    identity = new_identity(trace, random=counting(1))
    calls = len(trace.invocations)
    spans = {
        int.from_bytes(span.span_id, "big") - 1: span
        for _, span in parsed(requests(trace, protobuf, identity=identity))
    }
    for row in range(len(trace)):
        span = spans[calls + row]
        parent = int.from_bytes(span.parent_span_id, "big") - 1
        inside = trace.parent[row] + calls if trace.parent[row] >= 0 else trace.invocation[row]
        assert parent == inside
        assert span.trace_id == spans[int(trace.invocation[row])].trace_id
        assert span.start_time_unix_nano == trace.start[row]
        assert span.end_time_unix_nano == trace.end[row]
        assert span.name == well_formed(trace.names[trace.name[row]])
    for row in range(calls):
        around = int(trace.invocations.parent[row])
        assert (spans[row].parent_span_id == b"") == (around < 0)
        if around >= 0:
            assert spans[row].trace_id == spans[around].trace_id
        assert spans[row].end_time_unix_nano == trace.invocations.end[row]
    roots = (trace.invocations.parent < 0).sum()
    assert len({span.trace_id for span in spans.values()}) == roots


def test_times_and_numbers_at_the_edges() -> None:
    """The latest time an int64 holds, one before 1970, and ids that no int64 holds."""
    ops = [Op("a", -5, 2**63 - 1), Op("b", 0, 0)]
    trace = trace_of(ops, threads=(Thread(2**70, 2**64, "t"),))
    trace = replace(trace, devices=(Device(1, 2**80),))
    (_, call), (_, first), (_, second) = parsed(requests(trace, protobuf))
    assert (first.start_time_unix_nano, first.end_time_unix_nano) == (0, 2**63 - 1)
    assert (second.start_time_unix_nano, second.end_time_unix_nano) == (0, 0)
    assert attributes_of(call)["tvm.vm.op.time"] == ("double_value", 2**63 / 1e9)
    assert attributes_of(first)["thread.id"] == number(2**63 - 1)
    assert attributes_of(first)["tvm.device.id"] == number(2**63 - 1)


@pytest.mark.parametrize("limit", [3_500_000, 100_000, 5_000, 1])
def test_no_request_exceeds_the_limit(limit: int) -> None:
    """Requests are below the limit, and hold every span once; one span alone may exceed it."""
    trace = made_up(20_000 if limit > 1 else 50, every_second_shape_new=True)
    found = list(requests(trace, protobuf, limit=limit))
    assert all(len(request.body) < limit or request.spans == 1 for request in found)
    ops = [span for scope, span in parsed(iter(found)) if scope == "relax_trace.ops"]
    assert [span.start_time_unix_nano for span in ops] == trace.start.tolist()
    assert sum(request.spans for request in found) == len(trace) + len(trace.invocations)
    if limit > 100_000:
        assert len(found) < 6


def test_long_texts_are_cut() -> None:
    """A name of 10 MB and a call with 2,000 arguments leave every request small."""
    ops = [Op("é" * 5_000_000, i, i + 1, ", ".join(["int64[2]"] * 2_000)) for i in range(100)]
    found = list(requests(trace_of(ops), protobuf))
    assert max(len(request.body) for request in found) < 3_500_000
    spans = parsed(iter(found))
    assert {span.name for _, span in spans[1:]} == {"é" * 4096 + "... (5,000,000 characters)"}
    _, shapes = attributes_of(spans[1][1])["tvm.op.argument_shapes"]
    assert shapes[:400] == [text("int64[2]")] * 400
    assert shapes[-1][1].endswith("... (19,998 characters)")
    assert len(shapes) == 410


def test_arguments_are_taken_apart_at_the_outer_commas() -> None:
    """Commas inside shapes and tuples, nested ones too, are not between arguments."""
    whole = ["", "a[1, 2], (b[], (c[3, 4], d[])), 7", "(1000 elements)", "", "x[]", ""]
    pieces, first = split_arguments(Ragged.from_bytes([text.encode() for text in whole]))
    split = [b"a[1, 2]", b"(b[], (c[3, 4], d[]))", b"7", b"(1000 elements)", b"x[]"]
    assert list(pieces) == split
    assert first.tolist() == [0, 0, 3, 4, 4, 5, 5]


def test_files_are_what_other_programs_read(tmp_path: Path) -> None:
    """Protobuf is one message however long; JSON has a short line a request; neither is loaded."""
    ops = [Op(f"op{i % 7}", i, i + 1, "float32[1, 64]") for i in range(20_000)]
    trace = trace_of(ops)
    trace.save(tmp_path / "trace.otlp.pb")
    trace.save(tmp_path / "TRACE.OTLP.JSON")
    data = (tmp_path / "trace.otlp.pb").read_bytes()
    assert len(data) > 3_500_000
    lines = (tmp_path / "TRACE.OTLP.JSON").read_bytes().splitlines(keepends=True)
    assert max(map(len, lines)) < 1_000_000
    spans = spans_of(TracesData.FromString(data))
    assert [span.start_time_unix_nano for span in spans[1:]] == list(range(20_000))
    written = [
        int(span["startTimeUnixNano"])
        for line in lines
        for scope in json.loads(line)["resourceSpans"][0]["scopeSpans"]
        for span in scope["spans"]
    ]
    assert written[1:] == list(range(20_000))
    for name in ("trace.otlp.pb", "TRACE.OTLP.JSON"):
        assert next_steps(name).startswith("it holds OTLP")
        with pytest.raises(TraceFileError, match="OTLP files are for other programs"):
            load(tmp_path / name)


def test_an_empty_trace_is_an_empty_message(tmp_path: Path) -> None:
    """No request to send; files that say nothing of spans."""
    trace = trace_of([], [Call(0, 0)]).take_invocations(np.zeros(1, bool))
    assert list(requests(trace, protobuf)) == []
    trace.save(tmp_path / "trace.otlp.pb")
    trace.save(tmp_path / "trace.otlp.json")
    assert spans_of(TracesData.FromString((tmp_path / "trace.otlp.pb").read_bytes())) == []
    (line,) = (tmp_path / "trace.otlp.json").read_bytes().splitlines()
    assert json.loads(line)["resourceSpans"][0]["scopeSpans"] == []


def test_without_opentelemetry_one_line_says_what_to_install(tmp_path: Path) -> None:
    """relax_trace and its conventions import without it; an OTLP file says what is missing."""
    program = """
import sys
sys.modules["opentelemetry"] = None
import relax_trace, relax_trace.otel.conventions
try:
    relax_trace.load(sys.argv[1]).save(sys.argv[2])
except relax_trace.ExportError as error:
    print(error)
"""
    small().save(tmp_path / "trace.npz")
    ran = subprocess.run(
        [sys.executable, "-c", program, tmp_path / "trace.npz", tmp_path / "trace.otlp.json"],
        env={"PYTHONPATH": str(Path(relax_trace.__file__).parents[1])},
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert ran.stdout == (
        "OTLP needs OpenTelemetry (no module opentelemetry.sdk): pip install 'relax-trace[otel]'\n"
    )
    assert [path.name for path in tmp_path.iterdir()] == ["trace.npz"]
