"""Metrics of a real run in the real Prometheus, and every query of the dashboard."""

from __future__ import annotations

import json
import math
import re
import subprocess
from collections import Counter
from pathlib import Path

import pytest

from backends.collector import CONFIGURATIONS
from backends.laptop import MODEL, ROUNDS, SERVICE, Laptop
from backends.prometheus_backend import labels

DASHBOARD = json.loads((CONFIGURATIONS / "grafana/dashboards/relax_trace.json").read_text())
TARGETS = [
    (panel["title"], target["expr"], target["legendFormat"])
    for panel in DASHBOARD["panels"]
    for target in panel["targets"]
]


def filled_in(text: str) -> str:
    """What Grafana would ask, with ``SERVICE`` and ``MODEL`` chosen."""
    chosen = {"$__rate_interval": "1m", "$service": SERVICE, "$model": MODEL}
    for name, value in chosen.items():
        text = text.replace(name, value)
    assert "$" not in text
    return text


def answers(laptop: Laptop, title: str) -> list[dict[str, float]]:
    """For each query of a panel, its values by their legend."""
    found = []
    for panel, expr, legend in TARGETS:
        if panel == title:
            rows = laptop.prometheus.query(filled_in(expr))
            found.append({said(legend, dict(row)): value for row, value in rows.items()})
            assert len(found[-1]) == len(rows)
    return found


def said(legend: str, row: dict[str, str]) -> str:
    """The legend of a row, which has all labels that are in it."""
    return re.sub(r"\{\{(\w+)\}\}", lambda name: row[name[1]], legend)


@pytest.mark.parametrize("title", dict.fromkeys(title for title, _, _ in TARGETS))
def test_every_panel_shows_numbers(title: str, laptop: Laptop) -> None:
    """None of its queries is without an answer, and every row has its legend."""
    for answer in answers(laptop, title):
        assert answer
        for value in answer.values():
            assert math.isfinite(value)
            assert value >= 0


def test_panels_agree_with_what_ran(laptop: Laptop) -> None:
    """As far as it is known beforehand."""
    assert answers(laptop, "Share of invocations that fail") == [{MODEL: pytest.approx(1 / 3)}]
    assert answers(laptop, "Invocations running now") == [{MODEL: 0}]
    ((p50, p99),) = zip(
        *(a.values() for a in answers(laptop, "Duration of invocations: p50 and p99")), strict=True
    )
    assert 0 < p50 < p99
    (shares,) = answers(laptop, "Share of request time by op")
    assert shares.keys() >= {"add", "subtract", "multiply", "relax_trace_tests.callback"}
    assert sum(shares.values()) == pytest.approx(1)
    (dropped,) = answers(laptop, "Ops without a span")
    assert dropped == dict.fromkeys(["export", "queue", "rate", "ring", "shutdown"], 0)
    (calls,) = answers(laptop, "Calls by op")
    assert calls["add cpu"] == calls["subtract cpu"] == 2 * calls["relax_trace_tests.callback cpu"]


def test_variables_of_the_dashboard_offer_what_there_is(laptop: Laptop) -> None:
    """Services and models."""
    offered = {}
    for variable in DASHBOARD["templating"]["list"]:
        match = re.fullmatch(r"label_values\((.*), (\w+)\)", filled_in(variable["query"]))
        assert match
        rows = laptop.prometheus.query(f"count by ({match[2]}) ({match[1]})")
        offered[variable["name"]] = [dict(row)[match[2]] for row in rows]
    assert offered == {"service": [SERVICE], "model": [MODEL]}


def test_counts_are_exact(laptop: Laptop) -> None:
    """Invocations, calls of ops, and op spans: nothing is lost or counted twice on the way."""
    ask = laptop.prometheus.query
    of_model = f'job="{SERVICE}",tvm_model_name="{MODEL}"'
    counts = ask(
        "sum by (tvm_vm_function, error_type) "
        f"(tvm_vm_invocation_duration_seconds_count{{{of_model}}})"
    )
    assert counts == {
        labels({"tvm_vm_function": "main"}): 2 * ROUNDS,
        labels({"tvm_vm_function": "call", "error_type": "ValueError"}): ROUNDS,
    }
    calls = ask(f'tvm_op_calls_total{{{of_model},tvm_op_kind!="builtin"}}')
    on_cpu = {"tvm_device_type": "cpu", "tvm_device_id": "0"}
    found = {}
    for row, value in calls.items():
        row_labels = dict(row)
        assert row_labels.items() >= on_cpu.items()
        found[row_labels["tvm_op_name"], row_labels["tvm_op_kind"]] = value
    assert found == {
        ("add", "kernel"): 2 * ROUNDS,
        ("inner", "function"): 2 * ROUNDS,
        ("subtract", "kernel"): 2 * ROUNDS,
        ("multiply", "kernel"): 2 * ROUNDS,
        ("relax_trace_tests.callback", "extern"): ROUNDS,
    }
    time = laptop.prometheus.number(f"sum(tvm_op_time_seconds_total{{{of_model}}})")
    said_by_spans = [(span.attributes or {}).get("tvm.vm.op.time", 0) for span in laptop.spans]
    assert time == pytest.approx(sum(map(float, said_by_spans)), abs=1e-6)
    spans = ask(f'sum by (span_name) (traces_span_metrics_calls_total{{job="{SERVICE}"}})')
    assert {dict(row)["span_name"]: value for row, value in spans.items()} == Counter(
        span.name for span in laptop.ops
    )


@pytest.mark.parametrize("metric", ["tvm_vm_invocation", "traces_span_metrics"])
def test_exemplars_lead_to_traces(metric: str, laptop: Laptop) -> None:
    """From a bucket to a trace that Jaeger has."""
    found = laptop.prometheus.exemplars(f"{metric}_duration_seconds_bucket", *laptop.seconds)
    assert found
    made = {f"{span.context.trace_id:032x}" for span in laptop.spans}
    assert {exemplar["trace_id"] for exemplar in found} <= made
    assert laptop.jaeger.trace(found[0]["trace_id"])


def test_promtool_accepts_the_configuration(promtool: Path) -> None:
    """With the rules that it names."""
    command = [promtool, "check", "config", CONFIGURATIONS / "prometheus.yaml"]
    said = subprocess.run(command, capture_output=True, text=True, check=False)
    assert said.returncode == 0, said.stderr
    assert "SUCCESS: 1 rule files found" in said.stdout
