"""An agent and a gateway that trust each other's certificate, or don't."""

from __future__ import annotations

from pathlib import Path

import pytest
import trustme

from backends.application import application
from backends.collector import configured, running

RECEIVER = "yaml:receivers::otlp::protocols::grpc::tls"


@pytest.mark.parametrize("trusted", [True, False])
def test_the_agent_sends_to_a_gateway_that_it_trusts(
    trusted: bool, otelcol: Path, tmp_path: Path
) -> None:
    """As README.md says it: two files more for the gateway, one variable for the agent."""
    authorities = {True: trustme.CA(), False: trustme.CA()}
    certificate = authorities[True].issue_cert("127.0.0.1")
    key, chain, authority = (tmp_path / f"{name}.pem" for name in ("key", "chain", "authority"))
    certificate.private_key_pem.write_to_path(str(key))
    certificate.cert_chain_pems[0].write_to_path(str(chain))
    authorities[trusted].cert_pem.write_to_path(str(authority))
    with running(otelcol, tmp_path) as far:
        tls = [f"{RECEIVER}::cert_file: {chain}", f"{RECEIVER}::key_file: {key}"]
        to_far = {"TRACES": f"127.0.0.1:{far.grpc}", "TRACES_INSECURE": "true"}
        with configured(otelcol, "gateway", tmp_path, tls, REST_PERCENT="100", **to_far) as gateway:
            to_gateway = {"GATEWAY": f"127.0.0.1:{gateway.grpc}", "GATEWAY_CA": str(authority)}
            with (
                configured(otelcol, "agent", tmp_path, **to_gateway) as agent,
                application(agent.grpc, "secret") as made,
            ):
                made.live.tracer.start_span("one").end()
                made.flush()
    scopes = [scope for resource in far.resources() for scope in resource["scopeSpans"]]
    assert [s["name"] for scope in scopes for s in scope["spans"]] == ["one"] * trusted
    log = (tmp_path / "agent" / "agent.log").read_text()
    assert ("signed by unknown authority" in log) is not trusted
