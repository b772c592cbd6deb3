"""OTLP over HTTP: our bytes through the official exporter, with its settings and public interface.

The exporter posts through a ``requests.Session`` that we hand it. Ours puts a body in place of the
exporter's, tries once, keeps the outcome, and reports success in any case: retries are our own.
"""

from __future__ import annotations

import gzip
import zlib
from email.utils import parsedate_to_datetime
from time import time
from typing import Any

import requests
from google.protobuf.message import DecodeError
from google.rpc.status_pb2 import Status
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter

from .outcome import Outcome, accepted, parse_response

_PATH = "/v1/traces"
_RETRIED = (429, 502, 503, 504)  # as OTLP's specification says


class HttpTransport:
    """A receiver at ``endpoint``, a base URL; without one where the environment says."""

    def __init__(self, endpoint: str | None) -> None:
        self._session = _Session()
        self._exporter = OTLPSpanExporter(endpoint=_full(endpoint), session=self._session)
        self.endpoint: str = self._exporter._endpoint

    def attempt(self, body: bytes) -> Outcome:
        """Send a serialized request, once."""
        self._session.body = body
        self._session.outcome = Outcome("the exporter did not send it")
        self._exporter.export([])
        return self._session.outcome

    def close(self) -> None:
        """Close the connection."""
        self._exporter.shutdown()


class _Session(requests.Session):  # type: ignore[misc]
    body = b""
    outcome = Outcome()

    def request(
        self, method: str, url: str, data: Any = None, headers: Any = None, **options: Any
    ) -> requests.Response:
        """Post ``body`` in place of the exporter's ``data``, compressed as the headers say."""
        sent = {key.lower(): value for key, value in {**self.headers, **(headers or {})}.items()}
        options["allow_redirects"] = False  # a POST would arrive as a GET
        if options.get("verify") is None and self.verify is not True:
            options["verify"] = self.verify  # or REQUESTS_CA_BUNDLE would outrank the exporter's
        try:
            body = _compressed(self.body, sent.get("content-encoding"))
            response = super().request(method, url, data=body, headers=headers, **options)
            self.outcome = _outcome(response)
        except requests.RequestException as error:
            self.outcome = Outcome(_reason(error), _may_pass(error))
        except (OSError, ValueError) as error:  # a certificate's file, a header
            self.outcome = Outcome(str(error))
        success = requests.Response()
        success.status_code = 200
        return success


def _full(endpoint: str | None) -> str | None:
    if endpoint is None or endpoint.partition("?")[0].endswith(_PATH):
        return endpoint
    return endpoint.rstrip("/") + _PATH


def _compressed(body: bytes, encoding: str | None) -> bytes:
    if encoding == "gzip":
        return gzip.compress(body, 6)
    return zlib.compress(body) if encoding == "deflate" else body


def _outcome(response: requests.Response) -> Outcome:
    code = response.status_code
    problem = f"HTTP {code} {response.reason or ''}".strip()
    if 200 <= code < 300:
        answer = parse_response(response.content, response.headers)
        if answer is None:
            return Outcome(f"{problem}, with something that is no answer to OTLP")
        return accepted(answer)
    if 300 <= code < 400:
        return Outcome(f"{problem}: it redirects to {response.headers.get('location')}")
    problem += _explanation(response)
    return Outcome(problem, code in _RETRIED, _wait(response.headers.get("retry-after")))


def _explanation(response: requests.Response) -> str:
    """What the body, a ``google.rpc.Status``, says."""
    try:
        message = Status.FromString(response.content).message
    except DecodeError:
        return ""
    return f": {message[:500]}" if message else ""


def _wait(header: str | None) -> float | None:
    """Seconds, from ``Retry-After``: a number, or a date."""
    try:
        if header is None or header.strip().isdecimal():
            return None if header is None else float(header)
        return max(0.0, parsedate_to_datetime(header).timestamp() - time())
    except (ValueError, OverflowError):
        return None


def _may_pass(error: requests.RequestException) -> bool:
    passing = (requests.ConnectionError, requests.Timeout, requests.exceptions.ChunkedEncodingError)
    return isinstance(error, passing) and not isinstance(error, requests.exceptions.SSLError)


def _reason(error: BaseException) -> str:
    """The system's word for it, as in "Connection refused", from below what requests made of it."""
    inner: BaseException | None = error
    while inner is not None:
        if isinstance(inner, OSError) and inner.strerror:
            return inner.strerror
        inner = inner.__cause__ or inner.__context__
    if isinstance(error, requests.Timeout):
        return "no answer in time"
    return f"{type(error).__name__}: {str(error)[:500]}"
