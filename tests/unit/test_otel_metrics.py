"""How many series the metrics have at most."""

from __future__ import annotations

import numpy as np
from opentelemetry.context import Context
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader

from relax_trace.otel.finished import Ended
from relax_trace.otel.losses import Losses
from relax_trace.otel.metrics import metrics_of
from unit.traces import Op, trace_of

OTHERS = "(others)"


def points(reader: InMemoryMetricReader, name: str) -> dict[object, object]:
    """Values of a metric by their model's names."""
    data = reader.get_metrics_data()
    assert data is not None
    (metric,) = (
        metric
        for resource in data.resource_metrics
        for scope in resource.scope_metrics
        for metric in scope.metrics
        if metric.name == name
    )
    found = metric.data.data_points
    by_name = {(point.attributes or {})["tvm.model.name"]: point for point in found}
    assert len(by_name) == len(found)
    return {model: getattr(point, "value", None) for model, point in by_name.items()}


def test_models_without_end() -> None:
    """The first 1,000 have series of their own, all others one; no end of an invocation is lost."""
    reader = InMemoryMetricReader()
    provider = MeterProvider([reader])
    metrics = metrics_of(provider, None, Losses())
    models = [f"m{i}" for i in range(1500)]
    known = dict.fromkeys(models[:1000], 1)
    trace = trace_of([Op("add", 0, 5)])
    for _ in range(2):
        for model in models:
            metrics.begin(model)
        assert points(reader, "tvm.vm.active_invocations") == {**known, OTHERS: 500}
        for model in models:
            metrics.end(Ended(model, "main", Context(), 0, 1, None))
        idle = dict.fromkeys([*known, OTHERS], 0)
        assert points(reader, "tvm.vm.active_invocations") == idle
    for model in [*models, "m0", "m1499"]:
        metrics.totals.add(trace, np.array([0], np.int32), [model])
    assert points(reader, "tvm.op.calls") == {**known, "m0": 2, OTHERS: 501}
    times = points(reader, "tvm.op.time")
    assert times == {**dict.fromkeys(known, 5e-9), "m0": 10e-9, OTHERS: 501 * 5e-9}
