"""Sending a Trace to real gRPC and HTTP servers: what arrives, and what is said of failures."""

from __future__ import annotations

import os
import re
import socket
import ssl
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, ExitStack, closing
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Literal

import grpc
import pytest
import trustme
from google.protobuf.any_pb2 import Any as AnyMessage
from google.rpc.error_details_pb2 import RetryInfo
from google.rpc.status_pb2 import Status

import relax_trace
from benchmarks.bench_chrome import made_up
from integration.otlp_receivers import (
    Answer,
    Receiver,
    grpc_receiver,
    http_receiver,
    partial,
)
from relax_trace import ExportError
from relax_trace.exporters.otlp import connection, protobuf
from relax_trace.exporters.otlp.batches import REQUEST_BYTES, requests
from relax_trace.exporters.otlp.sending import Sent
from unit.traces import Op, trace_of

Protocol = Literal["grpc", "http/protobuf"]
BOTH: list[tuple[Protocol, Callable[[], AbstractContextManager[Receiver]]]] = [
    ("grpc", grpc_receiver),
    ("http/protobuf", http_receiver),
]
SMALL = trace_of([Op("add", 1, 2, "float32[2]"), Op("mul", 2, 3)])


@pytest.fixture(autouse=True)
def environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """No setting of OpenTelemetry but those of a test."""
    for name in [name for name in os.environ if name.startswith("OTEL_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("OTEL_SERVICE_NAME", "test")


@pytest.fixture
def waits(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The waits between attempts, which then take no time: the clock is moved on by them."""
    seen: list[float] = []
    clock = SimpleNamespace(sleep=seen.append, monotonic=lambda: time.monotonic() + sum(seen))
    monkeypatch.setattr(connection, "time", clock)
    return seen


def abort(code: grpc.StatusCode, details: str, *metadata: tuple[str, Any]) -> Any:
    """A reply that ends the call with an error."""

    def reply(context: grpc.ServicerContext) -> None:
        context.set_trailing_metadata(metadata)
        context.abort(code, details)

    return reply


def after(seconds: int) -> RetryInfo:
    """The wish to be asked again after a while."""
    info = RetryInfo()
    info.retry_delay.seconds = seconds
    return info


def free_port() -> int:
    """A port where nothing listens."""
    with closing(socket.socket()) as listener:
        listener.bind(("127.0.0.1", 0))
        port: int = listener.getsockname()[1]
        return port


@pytest.mark.parametrize(("protocol", "receiver"), BOTH)
def test_everything_arrives_once_in_requests_of_bounded_size(
    protocol: Protocol, receiver: Callable[[], AbstractContextManager[Receiver]]
) -> None:
    """30,000 spans: all times in order, sizes below the limit, progress up to the end."""
    trace = made_up(30_000)
    told: list[tuple[int, int, str]] = []
    with receiver() as server:
        sent = trace.send(
            endpoint=server.endpoint, protocol=protocol, progress=lambda *args: told.append(args)
        )
    total = 30_000 + len(trace.invocations)
    where = server.endpoint if protocol != "grpc" else f"127.0.0.1:{server.port}"
    suffix = "/v1/traces" if protocol != "grpc" else ""
    assert sent == Sent(where + suffix, total, 0, len(server.requests), "")
    assert len(server.requests) >= 3
    assert max(server.sizes) < REQUEST_BYTES
    assert len(server.spans) == total
    ops = [span for span in server.spans if span.name != "main"]
    assert [span.start_time_unix_nano for span in ops] == trace.start.tolist()
    assert told[0] == (0, total, "")
    assert told[-1] == (total, total, "")
    assert [accepted for accepted, _, _ in told] == sorted(accepted for accepted, _, _ in told)


@pytest.mark.parametrize(("protocol", "receiver"), BOTH)
@pytest.mark.parametrize("signal", ["", "TRACES_"])
def test_the_exporters_variables_say_where_and_how(
    protocol: Protocol,
    receiver: Callable[[], AbstractContextManager[Receiver]],
    signal: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Endpoint, protocol, headers, compression: from the environment alone."""
    with receiver() as server:
        path = "/v1/traces" if signal and protocol != "grpc" else ""
        for name, value in {
            "ENDPOINT": server.endpoint + path,
            "PROTOCOL": protocol,
            "HEADERS": "x-tenant=team%20a,authorization=secret",
            "COMPRESSION": "gzip",
        }.items():
            monkeypatch.setenv(f"OTEL_EXPORTER_OTLP_{signal}{name}", value)
        trace = made_up(1_000)
        assert trace.send().accepted == 1_002
    (headers,) = server.headers
    assert headers["x-tenant"] == "team a"
    assert headers["authorization"] == "secret"
    assert headers["user-agent"].startswith("OTel-OTLP-Exporter-Python/")
    if protocol == "grpc":
        # The server hides its peer's grpc-encoding; the HTTP one shows what compression does.
        assert len(server.spans) == 1_002
    else:
        assert headers["content-encoding"] == "gzip"
        assert headers["content-type"] == "application/x-protobuf"
        (request,) = requests(trace, protobuf)
        assert server.sizes[0] < len(request.body) / 5
        assert server.path == "/v1/traces"
    assert len(server.spans) == 1_002


def test_a_base_url_gets_the_path_of_traces_once() -> None:
    """``endpoint`` is a base as OTEL_EXPORTER_OTLP_ENDPOINT is, unless it has the path."""
    for base, expected in [
        ("/otlp", "/otlp/v1/traces"),
        ("/otlp/", "/otlp/v1/traces"),
        ("/v1/traces", "/v1/traces"),
    ]:
        with http_receiver() as server:
            SMALL.send(endpoint=server.endpoint + base, protocol="http/protobuf")
        assert server.path == expected


def test_http_is_tried_again_until_it_works(waits: list[float]) -> None:
    """503 and its like: after what Retry-After says, else after longer and longer waits."""
    answers = [
        Answer(503, headers={"retry-after": "7"}),
        Answer(429),
        Answer(502, headers={"retry-after": "nonsense"}),
        Answer(504),
        Answer(),
    ]
    told: list[tuple[int, int, str]] = []
    with http_receiver(*answers) as server:
        sent = SMALL.send(
            endpoint=server.endpoint,
            protocol="http/protobuf",
            patience=60,
            progress=lambda *args: told.append(args),
        )
    assert (sent.accepted, sent.requests) == (3, 1)
    assert len(server.requests) == 5
    assert all(request == server.requests[0] for request in server.requests)
    assert waits[0] == 7
    for wait, least in zip(waits[1:], (2, 4, 8), strict=True):
        assert 0.8 * least <= wait <= 1.2 * least
    problems = [problem for _, _, problem in told if problem]
    assert [problem.split()[1] for problem in problems] == ["503", "429", "502", "504"]


def test_grpc_is_tried_again_until_it_works(waits: list[float]) -> None:
    """UNAVAILABLE and its like; RESOURCE_EXHAUSTED only where the receiver says when."""
    status = Status(details=[AnyMessage()])
    status.details[0].Pack(after(3))
    exhausted = grpc.StatusCode.RESOURCE_EXHAUSTED
    replies = [
        abort(grpc.StatusCode.UNAVAILABLE, "restarting"),
        abort(exhausted, "slow", ("grpc-status-details-bin", status.SerializeToString())),
        abort(exhausted, "slow", ("google.rpc.retryinfo-bin", after(5).SerializeToString())),
        partial(0, ""),
    ]
    with grpc_receiver(*replies) as server:
        sent = SMALL.send(endpoint=server.endpoint, protocol="grpc", patience=60)
    assert (sent.accepted, sent.requests) == (3, 1)
    assert len(server.requests) == 4
    assert waits[1:] == [3, 5]
    with (
        grpc_receiver(abort(exhausted, "too large")) as server,
        pytest.raises(ExportError, match="gRPC RESOURCE_EXHAUSTED: too large"),
    ):
        SMALL.send(endpoint=server.endpoint, protocol="grpc")
    assert len(server.requests) == 1


def test_trying_again_ends_with_the_patience(waits: list[float]) -> None:
    """A receiver that never works is asked for so many seconds, and its last word is the error."""
    with (
        http_receiver(Answer(503)) as server,
        pytest.raises(ExportError, match="took 0 of 3 spans, then failed: HTTP 503"),
    ):
        SMALL.send(endpoint=server.endpoint, protocol="http/protobuf", patience=100)
    assert 80 < sum(waits) < 100
    assert max(waits) <= 1.2 * 16
    assert len(server.requests) == len(waits) + 1


@pytest.mark.parametrize("protocol", ["grpc", "http/protobuf"])
def test_certificates_are_those_of_the_variables(
    protocol: Protocol, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """TLS on both sides: a server that wants a certificate of ours, and shows one of its own."""
    authority = trustme.CA()
    own, ours = authority.issue_cert("127.0.0.1"), authority.issue_cert("client")
    key, chain, root = (tmp_path / name for name in ("key.pem", "chain.pem", "root.pem"))
    key.write_bytes(ours.private_key_pem.bytes())
    chain.write_bytes(ours.cert_chain_pems[0].bytes())
    root.write_bytes(authority.cert_pem.bytes())
    with ExitStack() as servers:
        if protocol == "grpc":
            pair = (own.private_key_pem.bytes(), own.cert_chain_pems[0].bytes())
            credentials = grpc.ssl_server_credentials([pair], root.read_bytes(), True)
            server = servers.enter_context(grpc_receiver(credentials=credentials))
        else:
            tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            own.configure_cert(tls)
            authority.configure_trust(tls)
            tls.verify_mode = ssl.CERT_REQUIRED
            server = servers.enter_context(http_receiver(tls=tls))
        endpoint = f"https://127.0.0.1:{server.port}"
        with pytest.raises(ExportError, match="took 0 of 3"):
            SMALL.send(endpoint=endpoint, protocol=protocol, patience=0)
        for name, path in {
            "CERTIFICATE": root,
            "CLIENT_KEY": key,
            "CLIENT_CERTIFICATE": chain,
        }.items():
            monkeypatch.setenv(f"OTEL_EXPORTER_OTLP_{name}", str(path))
        assert SMALL.send(endpoint=endpoint, protocol=protocol).accepted == 3
    assert len(server.spans) == 3


@pytest.mark.parametrize(("protocol", "receiver"), BOTH)
def test_a_receiver_that_starts_late_is_waited_for(
    protocol: Protocol, receiver: Callable[..., AbstractContextManager[Receiver]]
) -> None:
    """Nothing listens at first; the next attempt finds the receiver that has started meanwhile."""
    port = free_port()
    problems: list[str] = []
    with ExitStack() as servers:

        def start(accepted: int, total: int, problem: str) -> None:
            if problem:
                problems.append(problem)
                if len(problems) == 1:
                    servers.enter_context(receiver(port=port))

        endpoint = f"http://127.0.0.1:{port}"
        sent = SMALL.send(endpoint=endpoint, protocol=protocol, progress=start)
    assert sent.accepted == 3
    assert "refused" in problems[0]


@pytest.mark.parametrize("protocol", ["grpc", "http/protobuf"])
def test_partial_success_is_counted(protocol: Protocol) -> None:
    """What the receiver rejects of each request is not accepted, whatever number it says."""
    answers = [partial(10, "no room"), partial(2**40, "none at all"), partial(-5, "")]
    trace = made_up(30_000)
    with ExitStack() as servers:
        if protocol == "grpc":
            server = servers.enter_context(grpc_receiver(*answers))
        else:
            bodies = [Answer(body=answer.SerializeToString()) for answer in answers]
            server = servers.enter_context(http_receiver(*bodies))
        sent = trace.send(endpoint=server.endpoint, protocol=protocol)
    second = sum(len(scope.spans) for scope in server.requests[1].resource_spans[0].scope_spans)
    assert sent.rejected == 10 + second
    assert sent.accepted == len(server.spans) - sent.rejected
    assert sent.message == "no room"


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        (Answer(302, headers={"location": "//x/"}), "302 Found: it redirects to //x/"),
        (Answer(400, Status(message="odd").SerializeToString()), "400 Bad Request: odd"),
        (Answer(401), "401 Unauthorized"),
        (Answer(404, b"<html>no such page</html>"), "404 Not Found"),
        (Answer(500), "500 Internal Server Error"),
        (Answer(200, b"<html>hello</html>"), "200 OK, with something that is no answer to OTLP"),
    ],
)
def test_what_will_not_pass_fails_at_once(answer: Answer, said: str) -> None:
    """Redirects, refusals and pages of something else: one request, and an error that says so."""
    with http_receiver(answer) as server, pytest.raises(ExportError) as raised:
        SMALL.send(endpoint=server.endpoint, protocol="http/protobuf")
    assert str(raised.value) == (
        f"{server.endpoint}/v1/traces took 0 of 3 spans, then failed: HTTP {said}"
    )
    assert len(server.requests) == 1


@pytest.mark.parametrize("body", [b"{}", b'{"partialSuccess": {"rejectedSpans": "2"}, "new": 1}'])
def test_an_answer_in_json_is_read(body: bytes) -> None:
    """Some receivers answer in JSON whatever they are sent."""
    answer = Answer(body=body, headers={"content-type": "application/json; charset=utf-8"})
    with http_receiver(answer) as server:
        sent = SMALL.send(endpoint=server.endpoint, protocol="http/protobuf")
    assert sent.rejected == (2 if len(body) > 2 else 0)


@pytest.mark.parametrize("protocol", ["grpc", "http/protobuf"])
def test_a_receiver_that_is_too_slow_times_out(
    protocol: Protocol, monkeypatch: pytest.MonkeyPatch
) -> None:
    """OTEL_EXPORTER_OTLP_TIMEOUT holds for an attempt, and patience for all of them."""
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_TIMEOUT", "0.2")
    with ExitStack() as servers:
        if protocol == "grpc":
            server = servers.enter_context(grpc_receiver(lambda _: time.sleep(1)))
        else:
            server = servers.enter_context(http_receiver(Answer(delay=1)))
        with pytest.raises(ExportError, match=r"no answer in time|DEADLINE_EXCEEDED"):
            SMALL.send(endpoint=server.endpoint, protocol=protocol, patience=0)


def test_what_was_accepted_before_a_failure_is_said() -> None:
    """The first request passes, the second is refused: the error counts the spans of the first."""
    trace = made_up(30_000)
    refusal = abort(grpc.StatusCode.PERMISSION_DENIED, "quota")
    with (
        grpc_receiver(partial(0, ""), refusal) as server,
        pytest.raises(ExportError) as raised,
    ):
        trace.send(endpoint=server.endpoint, protocol="grpc")
    first = sum(len(scope.spans) for scope in server.requests[0].resource_spans[0].scope_spans)
    assert 0 < first < 30_000
    assert str(raised.value) == (
        f"127.0.0.1:{server.port} took {first:,} of 30,060 spans, then failed: "
        "gRPC PERMISSION_DENIED: quota"
    )


@pytest.mark.parametrize(
    ("variable", "value", "said"),
    [
        (
            "PROTOCOL",
            "http/json",
            "no OTLP protocol 'http/json' here; there are grpc, http/protobuf",
        ),
        ("CERTIFICATE", "/x.pem", "OTLP_CERTIFICATE is '/x.pem', where there is no file"),
        ("TRACES_CLIENT_KEY", "/x", "OTLP_TRACES_CLIENT_KEY is '/x', where there is no file"),
        ("COMPRESSION", "brotli", 'settings are of no use: Invalid value "brotli" for compression'),
        ("TIMEOUT", "soon", "settings are of no use: could not convert string to float: 'soon'"),
    ],
)
def test_settings_that_make_no_sense_are_errors(
    variable: str, value: str, said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What the exporters would log, ignore or raise as they please."""
    monkeypatch.setenv(f"OTEL_EXPORTER_OTLP_{variable}", value)
    with pytest.raises(ExportError, match=re.escape(said)):
        SMALL.send()


def relax_trace_send(*arguments: str, folder: Path) -> subprocess.CompletedProcess[str]:
    """Run ``relax-trace send`` on a saved trace, in a process of its own."""
    SMALL.save(folder / "trace.npz")
    environment = {**os.environ, "PYTHONPATH": str(Path(relax_trace.__file__).parents[1])}
    return subprocess.run(
        [sys.executable, "-m", "relax_trace", "send", "trace.npz", *arguments],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )


def test_the_command_says_how_many_were_accepted(tmp_path: Path) -> None:
    """A line on stdout; the recorded process is in the resource."""
    with grpc_receiver(partial(0, "slow \x1b[2J down")) as server:
        ran = relax_trace_send("--endpoint", server.endpoint, folder=tmp_path)
    assert (ran.stderr, ran.returncode) == ("", 0)
    assert ran.stdout == (
        f"3 spans accepted by 127.0.0.1:{server.port}, which says: slow \\x1b[2J down\n"
    )
    assert [span.name for span in server.spans] == ["main", "add", "mul"]


def test_the_command_fails_in_one_line(tmp_path: Path) -> None:
    """Rejected spans, a redirect, nobody there: exit code 1, one line on stderr, no traceback."""
    with grpc_receiver(partial(1, "odd")) as server:
        ran = relax_trace_send("--endpoint", server.endpoint, folder=tmp_path)
    assert (ran.stdout, ran.returncode) == ("", 1)
    assert ran.stderr == (
        "relax-trace: error: 2 spans accepted, 1 rejected by "
        f"127.0.0.1:{server.port}, which says: odd\n"
    )
    options = ("--protocol", "http/protobuf", "--patience", "0")
    with http_receiver(Answer(301, headers={"location": "/x"})) as server:
        ran = relax_trace_send("--endpoint", server.endpoint, *options, folder=tmp_path)
    assert (ran.stdout, ran.returncode) == ("", 1)
    assert ran.stderr == (
        f"relax-trace: error: {server.endpoint}/v1/traces took 0 of 3 spans, then failed: "
        "HTTP 301 Moved Permanently: it redirects to /x\n"
    )
    nobody = f"http://user:password@127.0.0.1:{free_port()}"
    ran = relax_trace_send("--endpoint", nobody, *options, folder=tmp_path)
    assert (ran.stdout, ran.returncode) == ("", 1)
    assert ran.stderr.endswith("/v1/traces took 0 of 3 spans, then failed: Connection refused\n")
    assert "password" not in ran.stderr
    assert ran.stderr.count("\n") == 1
    ran = relax_trace_send("--endpoint", nobody, "--patience", "0", folder=tmp_path)
    assert ran.returncode == 1
    assert "gRPC UNAVAILABLE" in ran.stderr
    assert ran.stderr.count("\n") == 1


def test_an_instrumented_program_makes_no_spans_of_the_sending() -> None:
    """Instrumentations ask the context whether to leave a request out: during ours, they should."""
    from opentelemetry import context

    seen = []
    with http_receiver() as server:
        SMALL.send(
            endpoint=server.endpoint,
            protocol="http/protobuf",
            progress=lambda *_: seen.append(
                context.get_value(context._SUPPRESS_INSTRUMENTATION_KEY)
            ),
        )
    assert seen == [True, True]
    assert context.get_value(context._SUPPRESS_INSTRUMENTATION_KEY) is None
