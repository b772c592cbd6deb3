"""How one attempt to send a request ended, whatever the transport."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from google.protobuf.json_format import Parse, ParseError
from google.protobuf.message import DecodeError
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceResponse


@dataclass(frozen=True)
class Outcome:
    """``problem`` is empty where the request was accepted, if only in part."""

    problem: str = ""
    retry: bool = False  # whether the same may succeed later
    wait: float | None = None  # s, where the receiver says how long
    rejected: int = 0  # spans
    message: str = ""  # why, or a warning


class Transport(Protocol):
    """A connection to a receiver."""

    endpoint: str

    def attempt(self, body: bytes) -> Outcome:
        """Send a serialized request, once."""

    def close(self) -> None:
        """Give the connection up."""


def accepted(response: ExportTraceServiceResponse) -> Outcome:
    """What the receiver says of a request that it took."""
    partial = response.partial_success
    return Outcome(rejected=max(0, partial.rejected_spans), message=partial.error_message)


def parse_response(content: bytes, headers: Mapping[str, Any]) -> ExportTraceServiceResponse | None:
    """The receiver's answer, or None if this is no answer to OTLP."""
    answer = ExportTraceServiceResponse()
    try:
        if "json" in headers.get("content-type", ""):  # some do, though asked in protobuf
            Parse(content, answer, ignore_unknown_fields=True)
        else:
            answer.ParseFromString(content)
    except (DecodeError, ParseError, UnicodeDecodeError):
        return None
    return answer
