"""OTLP files: JSON as the collector's file exporter writes it, and protobuf.

``.otlp.json`` has a ``TracesData`` a line, each below 1 MB. ``.otlp.pb`` has requests laid end to
end, which protobuf reads as one message: an ``ExportTraceServiceRequest``, or ``TracesData``.
"""

from __future__ import annotations

from typing import BinaryIO

from ...trace import Trace
from . import batches, json_lines, protobuf

# The collector's otlpjsonfilereceiver takes lines of 1 MiB unless told otherwise.
_LINE_BYTES = 1_000_000


def write_json(trace: Trace, stream: BinaryIO) -> None:
    """Write ``trace`` as lines of JSON."""
    batches.write(trace, json_lines, stream, limit=_LINE_BYTES)


def write_protobuf(trace: Trace, stream: BinaryIO) -> None:
    """Write ``trace`` as one message."""
    batches.write(trace, protobuf, stream)
