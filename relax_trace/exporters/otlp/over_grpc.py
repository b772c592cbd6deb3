"""OTLP over gRPC: our bytes through the official exporter, with its settings.

It has no public way for that. What is overridden here is the same from 1.42 to 1.45: the methods
that translate and count what is exported, and the client that the exporter calls. Ours sends bytes,
once, and keeps the outcome; to the exporter it succeeds in any case: retries are our own.
"""

from __future__ import annotations

from typing import Any

import grpc
from google.protobuf.message import DecodeError
from google.rpc.error_details_pb2 import RetryInfo
from google.rpc.status_pb2 import Status
from opentelemetry.exporter.otlp.proto.grpc.trace_exporter import OTLPSpanExporter
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceResponse

from .outcome import Outcome, accepted

_METHOD = "/opentelemetry.proto.collector.trace.v1.TraceService/Export"
_RETRIED = frozenset(  # as OTLP's specification says
    {
        grpc.StatusCode.CANCELLED,
        grpc.StatusCode.DEADLINE_EXCEEDED,
        grpc.StatusCode.ABORTED,
        grpc.StatusCode.OUT_OF_RANGE,
        grpc.StatusCode.UNAVAILABLE,
        grpc.StatusCode.DATA_LOSS,
    }
)


class GrpcTransport:
    """A receiver at ``endpoint``; without one where the environment says."""

    def __init__(self, endpoint: str | None) -> None:
        self._exporter = _Exporter(endpoint=endpoint)
        self.endpoint: str = self._exporter._endpoint

    def attempt(self, body: bytes) -> Outcome:
        """Send a serialized request, once."""
        self._exporter.outcome = Outcome("the exporter did not send it")
        self._exporter.export(body)
        return self._exporter.outcome

    def close(self) -> None:
        """Close the channel."""
        self._exporter.shutdown()


class _Exporter(OTLPSpanExporter):  # type: ignore[misc]
    outcome = Outcome()

    def _initialize_channel_and_stub(self) -> None:
        super()._initialize_channel_and_stub()
        self._send = self._channel.unary_unary(
            _METHOD,
            request_serializer=None,
            response_deserializer=ExportTraceServiceResponse.FromString,
        )
        self._client = self

    def Export(  # noqa: N802 - as the exporter calls it
        self, request: bytes, metadata: Any = None, timeout: float | None = None
    ) -> None:
        """Send bytes, once."""
        try:
            self.outcome = accepted(self._send(request, metadata=metadata, timeout=timeout))
        except grpc.RpcError as error:
            self.outcome = _outcome(error)
            if error.code() == grpc.StatusCode.UNAVAILABLE:
                # A new channel connects at once; this one would wait, and fail until then.
                self._channel.close()
                self._initialize_channel_and_stub()
        except ValueError as error:  # metadata that HTTP/2 can't hold
            self.outcome = Outcome(str(error))

    def _translate_data(self, data: bytes) -> bytes:
        return data

    def _count_data(self, data: bytes) -> int:
        return 0  # for metrics of the exporter, which only sees bytes


def _outcome(error: Any) -> Outcome:
    wait = _wait(dict(error.trailing_metadata() or ()))
    exhausted = error.code() == grpc.StatusCode.RESOURCE_EXHAUSTED
    problem = f"gRPC {error.code().name}"
    if error.details():
        problem += f": {error.details()[:500]}"
    retry = error.code() in _RETRIED or (exhausted and wait is not None)
    return Outcome(problem, retry, wait)


def _wait(metadata: dict[str, Any]) -> float | None:
    """Seconds, from ``RetryInfo``: among the status's details, or as Python's exporter reads it."""
    info = RetryInfo()
    try:
        if (found := metadata.get("google.rpc.retryinfo-bin")) is not None:
            info.ParseFromString(found)
            return _seconds(info)
        status = Status.FromString(metadata.get("grpc-status-details-bin", b""))
        for detail in status.details:
            if detail.Unpack(info):
                return _seconds(info)
    except DecodeError:
        pass
    return None


def _seconds(info: RetryInfo) -> float:
    seconds: float = info.retry_delay.seconds + info.retry_delay.nanos / 1e9
    return max(0.0, seconds)
