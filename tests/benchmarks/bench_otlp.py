"""What OTLP costs: a span of ours against the SDK's span and its encoder, in one run.

Run: python tests/benchmarks/bench_otlp.py
"""

from __future__ import annotations

import time
from collections.abc import Callable

from bench_chrome import made_up
from opentelemetry.exporter.otlp.proto.common.trace_encoder import encode_spans
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import (
    SimpleSpanProcessor,
    SpanExporter,
    SpanExportResult,
)
from opentelemetry.trace import set_span_in_context

from relax_trace import Trace
from relax_trace.exporters.otlp import protobuf
from relax_trace.exporters.otlp.batches import requests
from relax_trace.trace import KINDS

SPANS_OF_THE_SDK = 10_000
RUNS = 3


class _Kept(SpanExporter):
    def __init__(self) -> None:
        self.spans: list[ReadableSpan] = []

    def export(self, spans: list[ReadableSpan]) -> SpanExportResult:
        self.spans += spans
        return SpanExportResult.SUCCESS


def seconds(action: Callable[[], object]) -> float:
    """Processor time of a run: what other programs do meanwhile counts little."""
    begin = time.process_time()
    action()
    return time.process_time() - begin


def through_the_sdk(trace: Trace) -> None:
    """Make the spans of the ops with the same attributes in the SDK, and serialize them."""
    kept = _Kept()
    provider = TracerProvider(shutdown_on_exit=False)
    provider.add_span_processor(SimpleSpanProcessor(kept))
    tracer = provider.get_tracer("relax_trace.ops")
    root = set_span_in_context(tracer.start_span("main"))
    thread = trace.threads[0]
    texts = [text.decode() for text in trace.signatures.texts]
    rows = zip(
        *(column.tolist() for column in (trace.name, trace.signature, trace.start, trace.end)),
        strict=True,
    )
    for name, signature, start, end in rows:
        attributes = {
            "tvm.op.name": trace.names[name],
            "tvm.op.kind": KINDS[trace.kinds[name]],
            "tvm.device.type": "cpu",
            "tvm.device.id": 0,
            "tvm.op.argument_shapes": texts[signature].split("], "),
            "thread.id": thread.tid,
            "thread.name": thread.name,
        }
        span = tracer.start_span(
            trace.names[name], context=root, start_time=start, attributes=attributes
        )
        span.end(end)
    encode_spans(kept.spans).SerializeToString()


def ours(trace: Trace) -> tuple[int, int]:
    """Encode all spans: how many, and how many bytes."""
    found = [(request.spans, len(request.body)) for request in requests(trace, protobuf)]
    return sum(spans for spans, _ in found), sum(size for _, size in found)


def against_the_sdk(what: str, bound: str, *, every_second_shape_new: bool) -> None:
    """Print a span's cost beside the SDK's; ours over a million ops, for it is far cheaper."""
    mine, theirs = [], []
    for _ in range(RUNS):
        # A trace keeps the texts of its signatures: a fresh one each time pays for them.
        trace = made_up(10**6, every_second_shape_new=every_second_shape_new)
        mine.append(
            seconds(lambda trace=trace: ours(trace)) / (len(trace) + len(trace.invocations))
        )
        small = made_up(SPANS_OF_THE_SDK, every_second_shape_new=every_second_shape_new)
        theirs.append(seconds(lambda small=small: through_the_sdk(small)) / SPANS_OF_THE_SDK)
    spans, size = ours(trace)
    print(
        f"{what}: {min(mine) * 1e9:.0f} ns a span ({size / spans:.0f} bytes); the SDK's span and "
        f"encoder {min(theirs) * 1e9:,.0f} ns: {min(theirs) / min(mine):.0f} x as fast   "
        f"[bound: {bound}]"
    )


def growth() -> None:
    """Print the cost of a span for longer and longer traces."""
    costs = {}
    for ops in (10**5, 10**6, 5 * 10**6):
        trace = made_up(ops)
        runs = max(2, 2 * 10**6 // ops)
        costs[ops] = min(seconds(lambda trace=trace: ours(trace)) for _ in range(runs)) / ops
    text = ", ".join(f"{ops:,} ops {cost * 1e9:.0f} ns" for ops, cost in costs.items())
    spread = max(costs.values()) / min(costs.values())
    print(f"an op's share as traces grow: {text}: within {spread:.2f} x   [bound: 1.5 x]")


def main() -> None:
    """Print each figure beside its bound."""
    against_the_sdk("1,000 templates", "50 x", every_second_shape_new=False)
    against_the_sdk("every second op with new shapes", "10 x", every_second_shape_new=True)
    growth()


if __name__ == "__main__":
    main()
