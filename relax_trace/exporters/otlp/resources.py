"""What the spans come from: the resource, as OpenTelemetry's SDK makes it, and the scopes."""

from __future__ import annotations

import os
import socket
from collections.abc import Mapping
from typing import Any

from opentelemetry.sdk.resources import Resource

from ...otel import conventions as names
from ...trace import Trace
from .templates import Value, integer, text


def resource_of(trace: Trace) -> dict[str, Value]:
    """Attributes from ``OTEL_SERVICE_NAME`` and ``OTEL_RESOURCE_ATTRIBUTES``, and of the process.

    That is the recorded one, which may have run elsewhere: its host is known only if it is this
    process, its id only if all threads agree.
    """
    own: dict[str, str | int] = {}
    processes = {thread.pid for thread in trace.threads}
    if len(processes) == 1:
        own[names.PROCESS_ID] = integer(*processes)
    if processes == {os.getpid()}:
        own[names.HOST_NAME] = socket.gethostname()
    return cleaned(Resource.create(own).attributes)


def cleaned(attributes: Mapping[str, Any]) -> dict[str, Value]:
    """A resource's attributes as what can be sent."""
    return {text(key): _clean(value) for key, value in attributes.items()}


def _clean(value: Any) -> Value:
    if isinstance(value, str):
        return text(value)
    return value if isinstance(value, bool | int | float) else [*map(_clean, value)]
