"""Many spans through the real OpenTelemetry Collector with its defaults: a Trace, and live ones."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

from backends.application import application
from backends.collector import running
from benchmarks.bench_chrome import made_up
from integration.small_vms import chain, tensor, vm_of
from relax_trace import concatenate
from relax_trace.exporters.otlp import batches, json_lines
from relax_trace.exporters.otlp.spans import Identity, new_identity
from relax_trace.otel import RelaxVMInstrumentor
from unit.random_traces import random_trace

SPANS = 20_000


@pytest.mark.parametrize("compression", ["none", "gzip"])
@pytest.mark.parametrize("protocol", ["grpc", "http/protobuf"])
def test_everything_comes_out_of_the_collector_as_our_own_json_says_it(
    protocol: str, compression: str, otelcol: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """20,000 spans, hostile ones among them: none lost, twice there, or changed in any field.

    The collector reads our protobuf and writes its JSON, which has to be the JSON that we write.
    """
    trace = concatenate([made_up(19_620), random_trace(1)])
    identity = new_identity(trace)
    expected = by_id(
        resource
        for request in batches.requests(trace, json_lines, identity=identity)
        for resource in json.loads(request.body)["resourceSpans"]
    )
    assert len(expected) == SPANS

    def same(_: object) -> Identity:
        return identity

    monkeypatch.setattr(batches, "joined_identity", same)
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_COMPRESSION", compression)
    if protocol == "grpc" and compression == "none":
        monkeypatch.delenv("OTEL_EXPORTER_OTLP_COMPRESSION")  # the gRPC exporter has no such word
    with running(otelcol, tmp_path) as collector:
        port = collector.grpc if protocol == "grpc" else collector.http
        sent = trace.send(endpoint=f"http://127.0.0.1:{port}", protocol=protocol)
    assert (sent.accepted, sent.rejected, sent.message) == (SPANS, 0, "")
    assert sent.requests > 1
    assert by_id(collector.resources()) == expected


def test_a_burst_of_live_ops_arrives_whole(otelcol: Path, tmp_path: Path) -> None:
    """20,000 op spans through the application's own processor, which has room for 2,048."""
    budgets = {f"ops_per_{what}": 10**6 for what in ("invocation", "trace", "second")}
    vm = vm_of(chain(250))
    before = RelaxVMInstrumentor().dropped
    with (
        running(otelcol, tmp_path) as collector,
        application(collector.grpc, "burst", queue=1000, **budgets) as made,
    ):
        RelaxVMInstrumentor().instrument_vm(vm, name="burst")
        for _ in range(SPANS // 250):
            with made.live.tracer.start_as_current_span("request"):
                vm["main"](tensor(1, 2, 3, 4))
    spans = [*made.live.spans, *made.live.ops]
    names = Counter(span.name for span in spans)
    assert (names["add"], names["main"], names["request"]) == (SPANS, 80, 80)
    assert by_id(collector.resources()).keys() == {f"{s.context.span_id:016x}" for s in spans}
    assert RelaxVMInstrumentor().dropped == before


def by_id(resources: Iterable[dict[str, Any]]) -> dict[str, Any]:
    """Every span with its scope and resource; attributes by name, since their order is free."""
    found: dict[str, Any] = {}
    for resource in resources:
        for scope in resource["scopeSpans"]:
            for span in scope["spans"]:
                assert span["spanId"] not in found
                own = span | {"attributes": by_key(span.get("attributes", []))}
                about = (by_key(resource["resource"]["attributes"]), scope["scope"])
                found[span["spanId"]] = (own, about)
    return found


def by_key(attributes: list[dict[str, Any]]) -> dict[str, Any]:
    """Attributes as a mapping, none of them twice."""
    mapping = {attribute["key"]: attribute["value"] for attribute in attributes}
    assert len(mapping) == len(attributes)
    return mapping
