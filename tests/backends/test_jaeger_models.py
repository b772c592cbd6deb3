"""Real models, recorded and sent: every op of a run is in the real Jaeger, once and right."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import models
from backends import service
from backends.laptop import Laptop
from backends.otlp_json import by_id
from integration.plain_instrument import record_as_seen, recorded_ops
from relax_trace import Trace
from relax_trace.trace import KINDS

MODELS = (models.silero, models.magika, models.decoder)

# What a span is called, and when it was, in ns.
Place = tuple[str, int, int]
# An op's own, its kind, arguments and device, and that of the call or invocation around it.
Op = tuple[Place, str, str, str | None, Place]


@pytest.mark.parametrize("model", MODELS, ids=lambda model: model.__wrapped__.__name__)
def test_every_op_of_a_model_is_there_once(
    model: Callable[[], models.Model], laptop: Laptop, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As it was recorded, which is as a plain Python instrument sees it."""
    compiled = model()
    trace = record_as_seen(compiled.vm, compiled.run)
    monkeypatch.setenv("OTEL_SERVICE_NAME", compiled.name)
    endpoint = f"http://127.0.0.1:{laptop.collector.grpc}"
    sent = trace.send(endpoint=endpoint, protocol="grpc")
    assert sent.accepted == len(trace) + len(trace.invocations)
    found = service.eventually(
        lambda: laptop.jaeger.spans(compiled.name), lambda spans: len(spans) >= sent.accepted
    )
    assert len(found) == sent.accepted
    resources = [
        resource
        for trace_id in {span["traceID"] for span in found.values()}
        for resource in laptop.jaeger.trace(trace_id)
    ]
    ops, invocations = arrived(resources)
    assert ops == Counter(recorded(trace))
    assert invocations == Counter(places(trace.invocations, trace.invocations.function, trace))


def recorded(trace: Trace) -> list[Op]:
    """The ops of a trace."""
    ops, own = recorded_ops(trace), places(trace, trace.name, trace)
    invocations = places(trace.invocations, trace.invocations.function, trace)
    return [
        (
            place,
            KINDS[trace.kinds[name]],
            op.arguments,
            op.device,
            own[op.parent] if op.parent >= 0 else invocations[op.invocation],
        )
        for op, place, name in zip(ops, own, trace.name.tolist(), strict=True)
    ]


def places(rows: Any, names: np.ndarray, trace: Trace) -> list[Place]:
    """Those of ops or invocations."""
    columns = (names.tolist(), rows.start.tolist(), rows.end.tolist())
    return [(trace.names[name], start, end) for name, start, end in zip(*columns, strict=True)]


def arrived(resources: list[dict[str, Any]]) -> tuple[Counter[Op], Counter[Place]]:
    """The ops, and the places of invocations, in OTLP's JSON."""
    spans = by_id(resources, str)
    ops: Counter[Op] = Counter()
    invocations: Counter[Place] = Counter()
    for span, (scope, _) in spans.values():
        if scope == "relax_trace":
            invocations[place_of(span)] += 1
            continue
        assert scope == "relax_trace.ops"
        around, _ = spans[span["parentSpanId"]]
        ops[(place_of(span), *described(span), place_of(around))] += 1
    return ops, invocations


def described(span: dict[str, Any]) -> tuple[str, str, str]:
    """Kind, arguments and device of an op, from attributes of the right types."""
    said = span["attributes"]
    assert said["tvm.op.name"] == {"stringValue": span["name"]}
    arguments = json.loads(said.get("tvm.op.argument_shapes", {"stringValue": "[]"})["stringValue"])
    device = said["tvm.device.type"]["stringValue"] + said["tvm.device.id"]["intValue"]
    return said["tvm.op.kind"]["stringValue"], ", ".join(arguments), device


def place_of(span: dict[str, Any]) -> Place:
    """Where a span is."""
    return span["name"], int(span["startTimeUnixNano"]), int(span["endTimeUnixNano"])
