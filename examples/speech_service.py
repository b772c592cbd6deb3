"""Answer HTTP requests with a model, and see in a request's trace which ops its time went to.

The service tells whether there is speech in 36 ms of sound, by the model of speech_detection.py. It
starts on a free port of this machine, asks itself some questions, and prints the trace of the last
one. Where OTEL_EXPORTER_OTLP_ENDPOINT names a receiver, all traces go there as well:

    OTEL_EXPORTER_OTLP_ENDPOINT=http://localhost:4317 python speech_service.py

collector-config/ has what it takes to see them in Jaeger.
"""

import json
import os
import threading
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import numpy as np
import tvm
from opentelemetry import propagate, trace
from opentelemetry.exporter.otlp.proto.grpc.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanKind
from tvm import relax

from relax_trace.otel import RelaxVMInstrumentor
from speech_detection import CONTEXT, NEW, RATE, compile_model

QUESTIONS = 3
PATH = "/speech"


class Detector:
    """The model, for one request at a time: a VM is not to be used by two threads at once."""

    def __init__(self) -> None:
        self._vm = relax.VirtualMachine(compile_model(), tvm.cpu())
        self._lock = threading.Lock()
        RelaxVMInstrumentor().instrument_vm(self._vm, name="silero")

    def probability(self, sound: np.ndarray) -> float:
        """That there is speech in these samples."""
        state = np.zeros((2, 1, 128), np.float32)
        arguments = [tvm.runtime.tensor(each) for each in (sound[None], np.array(RATE), state)]
        with self._lock:
            return float(self._vm["main"](*arguments)[0].numpy().item())


@contextmanager
def serving(tracer: trace.Tracer) -> Iterator[str]:
    """The service on a free port, until the end; its address."""
    detector = Detector()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            around = propagate.extract(dict(self.headers))  # of the caller's trace, if there is one
            with tracer.start_as_current_span(f"POST {PATH}", around, SpanKind.SERVER):
                with tracer.start_as_current_span("read sound"):
                    body = self.rfile.read(int(self.headers["Content-Length"]))
                    sound = np.frombuffer(body, "<f4")
                answer = json.dumps({"speech": detector.probability(sound)}).encode()
            self.send_response(200)
            self.end_headers()
            self.wfile.write(answer)

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}{PATH}"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def ask(url: str) -> float:
    """Whether there is speech in noise."""
    noise = np.random.default_rng(0).normal(0, 0.05, CONTEXT + NEW).astype("<f4")
    with urllib.request.urlopen(url, noise.tobytes()) as answer:
        return float(json.load(answer)["speech"])


def tree(spans: list[ReadableSpan], parent: int | None, indent: str = "") -> Iterator[str]:
    """A line a span, those inside below; times in us."""
    own = [s for s in spans if (s.parent.span_id if s.parent else None) == parent]
    for span in sorted(own, key=lambda span: span.start_time):
        duration = (span.end_time - span.start_time) / 1000
        yield f"{indent + span.name:52}{duration:10,.1f} us"
        yield from tree(spans, span.context.span_id, indent + "  ")


def main() -> None:
    """Instrument, serve, ask, show."""
    kept = InMemorySpanExporter()
    provider = TracerProvider(resource=Resource.create({"service.name": "speech-service"}))
    provider.add_span_processor(SimpleSpanProcessor(kept))
    if os.environ.get("OTEL_EXPORTER_OTLP_ENDPOINT"):
        provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter()))
    RelaxVMInstrumentor().instrument(tracer_provider=provider)
    with serving(provider.get_tracer("speech_service")) as url:
        for _ in range(QUESTIONS):
            print(f"speech: {ask(url):.1%}")
    RelaxVMInstrumentor().force_flush()  # first, for it makes the spans that the provider sends
    provider.shutdown()
    spans = kept.get_finished_spans()
    last = [span for span in spans if span.parent is None][-1].context.trace_id
    print()
    for line in tree([span for span in spans if span.context.trace_id == last], None):
        print(line)


if __name__ == "__main__":
    main()
