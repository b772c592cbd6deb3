"""OTLP receivers to send to: real gRPC and HTTP servers that answer as they are told."""

from __future__ import annotations

import gzip
import ssl
import threading
import time
import zlib
from collections.abc import Callable, Iterator
from concurrent import futures
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import grpc
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import (
    ExportTraceServiceRequest,
    ExportTraceServiceResponse,
)
from opentelemetry.proto.collector.trace.v1.trace_service_pb2_grpc import (
    TraceServiceServicer,
    add_TraceServiceServicer_to_server,
)
from opentelemetry.proto.trace.v1.trace_pb2 import Span

EMPTY = ExportTraceServiceResponse().SerializeToString()


@dataclass
class Receiver:
    """What came in, and where it listens; ``headers`` are lower-case."""

    port: int
    requests: list[ExportTraceServiceRequest] = field(default_factory=list)
    headers: list[dict[str, str]] = field(default_factory=list)
    sizes: list[int] = field(default_factory=list)
    path: str = ""

    @property
    def endpoint(self) -> str:
        """Its base URL."""
        return f"http://127.0.0.1:{self.port}"

    @property
    def spans(self) -> list[Span]:
        """All spans, in the order in which they came."""
        return [
            span
            for request in self.requests
            for resource in request.resource_spans
            for scope in resource.scope_spans
            for span in scope.spans
        ]


@dataclass(frozen=True)
class Answer:
    """What an HTTP receiver says to one request, after ``delay`` seconds."""

    code: int = 200
    body: bytes = EMPTY
    headers: dict[str, str] = field(default_factory=dict)
    delay: float = 0


def partial(rejected: int, message: str) -> ExportTraceServiceResponse:
    """An answer that takes all spans but some."""
    response = ExportTraceServiceResponse()
    response.partial_success.rejected_spans = rejected
    response.partial_success.error_message = message
    return response


@contextmanager
def http_receiver(
    *answers: Answer, port: int = 0, tls: ssl.SSLContext | None = None
) -> Iterator[Receiver]:
    """A receiver that gives these answers in turn, and then the last one again and again."""
    answers = answers or (Answer(),)
    decode: dict[str, Callable[[bytes], bytes]] = {
        "gzip": gzip.decompress,
        "deflate": zlib.decompress,
        "": bytes,
    }

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["content-length"]))
            receiver.sizes.append(len(body))
            body = decode[self.headers.get("content-encoding", "")](body)
            receiver.path = self.path
            receiver.headers.append({key.lower(): value for key, value in self.headers.items()})
            answer = answers[min(len(receiver.requests), len(answers) - 1)]
            receiver.requests.append(ExportTraceServiceRequest.FromString(body))
            time.sleep(answer.delay)
            self.send_response(answer.code)
            for key, value in answer.headers.items():
                self.send_header(key, value)
            self.send_header("content-length", str(len(answer.body)))
            self.end_headers()
            self.wfile.write(answer.body)

        def log_message(self, *_: Any) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", port), Handler)
    if tls is not None:
        server.socket = tls.wrap_socket(server.socket, server_side=True)
    server.handle_error = lambda *_: None  # type: ignore[method-assign]  # a client that gave up
    receiver = Receiver(server.server_address[1])
    thread = threading.Thread(target=server.serve_forever, args=(0.02,))
    thread.start()
    try:
        yield receiver
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


# What a gRPC receiver does with one request: an answer, or what ends the call.
Reply = ExportTraceServiceResponse | Callable[[grpc.ServicerContext], None]


@contextmanager
def grpc_receiver(*replies: Reply, port: int = 0, credentials: Any = None) -> Iterator[Receiver]:
    """A receiver that gives these replies in turn, and then the last one again and again."""
    replies = replies or (ExportTraceServiceResponse(),)

    class Servicer(TraceServiceServicer):  # type: ignore[misc]
        def Export(self, request: Any, context: grpc.ServicerContext) -> ExportTraceServiceResponse:  # noqa: N802
            receiver.headers.append(dict(context.invocation_metadata()))
            reply = replies[min(len(receiver.requests), len(replies) - 1)]
            receiver.requests.append(request)
            receiver.sizes.append(request.ByteSize())
            if not isinstance(reply, ExportTraceServiceResponse):
                reply(context)
                return ExportTraceServiceResponse()
            return reply

    server = grpc.server(futures.ThreadPoolExecutor(2))
    add_TraceServiceServicer_to_server(Servicer(), server)
    receiver = Receiver(0)
    if credentials is None:
        receiver.port = server.add_insecure_port(f"127.0.0.1:{port}")
    else:
        receiver.port = server.add_secure_port(f"127.0.0.1:{port}", credentials)
    server.start()
    try:
        yield receiver
    finally:
        server.stop(0).wait()
