"""Spans in OTLP's JSON, as Jaeger and the SDK's encoder write it, in a form to compare."""

from __future__ import annotations

import base64
import json
from typing import Any

FIELDS = ("traceId", "spanId", "parentSpanId", "name", "kind", "status")


def by_id(resources: list[dict[str, Any]], as_id: Any) -> dict[str, Any]:
    """Spans of OTLP's JSON with scope and resource, by id, none twice; of attributes the order."""
    found: dict[str, Any] = {}
    for resource in resources:
        for scope in resource["scopeSpans"]:
            for span in scope["spans"]:
                own = {
                    key: as_id(span.get(key, "")) if "Id" in key else span[key] for key in FIELDS
                }
                own |= {key: span[key] for key in ("startTimeUnixNano", "endTimeUnixNano")}
                own["attributes"] = by_key(span)
                own["events"] = [
                    (event["timeUnixNano"], event["name"], by_key(event))
                    for event in span.get("events", [])
                ]
                assert own["spanId"] not in found
                found[own["spanId"]] = (own, (scope["scope"]["name"], by_key(resource["resource"])))
    return found


def by_key(element: dict[str, Any]) -> dict[str, dict[str, str]]:
    """Attributes as a mapping, none of them twice; Jaeger's storage keeps an array as its JSON."""
    mapping = {}
    for one in element.get("attributes", []):
        value = one["value"]
        if "arrayValue" in value:
            texts = [text["stringValue"] for text in value["arrayValue"]["values"]]
            value = {"stringValue": json.dumps(texts, separators=(",", ":"))}
        assert one["key"] not in mapping
        mapping[one["key"]] = value
    return mapping


def from_base64(text: str) -> str:
    """An id as protobuf's JSON has it, in hexadecimal digits as OTLP's has."""
    return base64.b64decode(text).hex()
