"""An application that is instrumented, and sends its spans and metrics to a collector."""

from __future__ import annotations

import math
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from opentelemetry.exporter.otlp.proto.grpc.metric_exporter import OTLPMetricExporter
from opentelemetry.exporter.otlp.proto.grpc.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import PeriodicExportingMetricReader
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace.export import BatchSpanProcessor

from integration.live_spans import Live, live
from relax_trace.otel import RelaxVMInstrumentor


class Application:
    """What it made is in ``live``; ``flush()`` returns when all of it is at the collector."""

    def __init__(self, live: Live, meters: MeterProvider) -> None:
        self.live = live
        self._meters = meters

    def flush(self) -> None:
        """Send what waits."""
        assert RelaxVMInstrumentor().force_flush()
        assert self.live.provider.force_flush()
        self.flush_metrics()

    def flush_metrics(self) -> None:
        """Send metrics. Nothing else does: exemplars are in the first request after their spans."""
        assert self._meters.force_flush()


@contextmanager
def application(
    port: int, name: str, patience_seconds: float = 10, **settings: Any
) -> Iterator[Application]:
    """A service of this name, which sends by gRPC to this port of the loopback."""
    resource = Resource({"service.name": name, "service.instance.id": str(uuid.uuid4())})
    endpoint = f"http://127.0.0.1:{port}"
    metrics = OTLPMetricExporter(endpoint=endpoint, insecure=True)
    reader = PeriodicExportingMetricReader(metrics, export_interval_millis=math.inf)
    meters = MeterProvider([reader], resource=resource, shutdown_on_exit=False)
    with live({"meter_provider": meters, **settings}, resource=resource) as made:
        spans = OTLPSpanExporter(endpoint=endpoint, insecure=True, timeout=patience_seconds)
        made.provider.add_span_processor(BatchSpanProcessor(spans, schedule_delay_millis=200))
        yield Application(made, meters)
        RelaxVMInstrumentor().force_flush()
        made.provider.shutdown()
        meters.shutdown()
