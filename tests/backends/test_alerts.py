"""Every alert rule speaks when what it warns of happens, and only then."""

from __future__ import annotations

import subprocess
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
import yaml

from backends import prometheus_backend, service
from backends.application import application
from backends.collector import CONFIGURATIONS, configured
from backends.prometheus_backend import Prometheus
from integration.small_vms import callback, chain, small, tensor, vm_of
from relax_trace.otel import RelaxVMInstrumentor

X = (1, 2, 3, 4)


def rules() -> dict[str, str]:
    """The alerts of alerts.yaml and their expressions."""
    groups = yaml.safe_load((CONFIGURATIONS / "alerts.yaml").read_text())["groups"]
    return {rule["alert"]: rule["expr"] for group in groups for rule in group["rules"]}


def speaking(asked: Prometheus) -> dict[str, list[dict[str, str]]]:
    """The alerts whose expression holds now, each with the labels for which it does."""
    found = {name: [dict(one) for one in asked.query(expr)] for name, expr in rules().items()}
    return {name: where for name, where in found.items() if where}


def test_promtool_accepts_the_rules(promtool: Path) -> None:
    """Also what they say in words."""
    file = CONFIGURATIONS / "alerts.yaml"
    said = subprocess.run(
        [promtool, "check", "rules", file], capture_output=True, text=True, check=False
    )
    assert said.returncode == 0, said.stderr
    assert f"SUCCESS: {len(rules())} rules found" in said.stdout


def test_each_alert(otelcol: Path, prometheus: Path, tmp_path: Path) -> None:
    """No gateway behind an agent with a small queue, and an application that is slow and fails."""
    (nobody,) = service.free_ports(1)
    settings = {
        "GATEWAY": f"127.0.0.1:{nobody}",
        "GATEWAY_INSECURE": "true",
        "SHORTEST_OP_NS": "0",
        "GIVE_UP_AFTER": "5s",
        "QUEUE_BYTES": "1000000",
    }
    with ExitStack() as until_down:
        agent = until_down.enter_context(configured(otelcol, "agent", tmp_path, **settings))
        targets = {"applications": agent.metrics, "collectors": agent.own_metrics}
        with prometheus_backend.running(prometheus, tmp_path, targets) as asked:
            assert speaking(asked) == {}
            with application(
                agent.grpc, "troubled", patience_seconds=1, queue=1, ops_per_second=100_000
            ) as made:
                vms = [vm_of(small()), vm_of(chain(250))]
                for vm in vms:
                    RelaxVMInstrumentor().instrument_vm(vm, name="alerts")
                spoke: dict[str, list[dict[str, str]]] = {}

                def look() -> None:
                    trouble(*vms)
                    made.flush_metrics()
                    spoke.update(speaking(asked))

                service.eventually(look, lambda _: len(spoke) >= 6)
            until_down.close()
            down = service.eventually(lambda: speaking(asked), lambda now: "CollectorDown" in now)
    of_model = {"job": "troubled", "tvm_model_name": "alerts"}
    of_agent = {"instance": f"127.0.0.1:{agent.own_metrics}"}
    of_exporter = {**of_agent, "exporter": "otlp_grpc/gateway"}
    assert spoke == {
        "RelaxInvocationsSlow": [{**of_model, "tvm_vm_function": "call"}],
        "RelaxInvocationsFail": [of_model],
        "RelaxOpsDropped": [{"job": "troubled", "reason": "queue"}],
        "CollectorRefusesSpans": [of_agent],
        "CollectorQueueFills": [of_exporter],
        "CollectorLosesSpans": [of_exporter],
    }
    (up,) = down["CollectorDown"]
    assert up.items() >= of_agent.items()
    assert rules().keys() == spoke.keys() | {"CollectorDown"}


def trouble(vm: Any, long: Any) -> None:
    """Have slow invocations, some that fail, and more ops than can be sent."""
    with callback(lambda _: time.sleep(0.6)):
        vm["call"](tensor(*X))
    with callback(fail), pytest.raises(ValueError, match="no"):
        vm["call"](tensor(*X))
    for _ in range(5):
        long["main"](tensor(*X))
        RelaxVMInstrumentor().force_flush()


def fail(_: object) -> None:
    """Stand for an op that throws."""
    raise ValueError("no")
