"""Metrics, as a reader collects them."""

from __future__ import annotations

import threading
from typing import Any

import pytest
from opentelemetry.sdk.metrics import Counter, Histogram, MeterProvider, ObservableCounter
from opentelemetry.sdk.metrics.export import AggregationTemporality, InMemoryMetricReader
from opentelemetry.sdk.trace.sampling import ALWAYS_OFF, ParentBased

from integration.live_spans import live
from integration.small_vms import callback, run_alone, small, tensor, vm_of
from integration.test_throw import OwnError
from relax_trace.otel import RelaxVMInstrumentor

X = (1, 2, 3, 4)
DELTA = dict.fromkeys((Counter, Histogram, ObservableCounter), AggregationTemporality.DELTA)


def collected(reader: InMemoryMetricReader) -> dict[str, tuple[str, dict[Any, Any]]]:
    """For each metric its unit, and its points by their attributes."""
    assert RelaxVMInstrumentor().force_flush()
    data = reader.get_metrics_data()
    found = {}
    for resource in data.resource_metrics if data else ():
        for scope in resource.scope_metrics:
            assert scope.scope.name == "relax_trace"
            for metric in scope.metrics:
                points = {
                    tuple(sorted((point.attributes or {}).items())): point
                    for point in metric.data.data_points
                }
                found[metric.name] = (metric.unit or "", points)
    return found


def of(model: str, **more: str) -> tuple[tuple[str, str], ...]:
    """Attributes as they stand in what was collected."""
    names = {"function": "tvm.vm.function", "error": "error.type"}
    return tuple(
        sorted({"tvm.model.name": model, **{names[k]: v for k, v in more.items()}}.items())
    )


def of_op(model: str, name: str, kind: str) -> tuple[tuple[str, str | int], ...]:
    """The same of an op on the CPU."""
    found = {"tvm.model.name": model, "tvm.op.name": name, "tvm.op.kind": kind}
    return tuple(sorted({**found, "tvm.device.type": "cpu", "tvm.device.id": 0}.items()))


def test_invocations() -> None:
    """How long each took, by model, function and error, with a span to look at; how many run."""
    reader = InMemoryMetricReader()
    active = []

    def look(_: Any) -> None:
        (point,) = collected(reader)["tvm.vm.active_invocations"][1].items()
        active.append((point[0], point[1].value))

    def boom(_: Any) -> None:
        raise OwnError("no", 3)

    with live({"meter_provider": MeterProvider([reader])}) as application:
        vm = vm_of(small())
        RelaxVMInstrumentor().instrument_vm(vm, name="metrics1")
        with callback(look):
            vm["call"](tensor(*X))
        vm["main"](tensor(*X))
        vm["main"](tensor(*X))
        with callback(boom), pytest.raises(RuntimeError):
            vm["call"](tensor(*X))
        found = collected(reader)
        spans = {span.context.span_id for span in application.spans if span.name == "main"}
    assert active == [(of("metrics1"), 1)]
    assert found["tvm.vm.active_invocations"][0] == "{invocation}"
    assert found["tvm.vm.active_invocations"][1][of("metrics1")].value == 0
    unit, points = found["tvm.vm.invocation.duration"]
    assert unit == "s"
    assert {key: point.count for key, point in points.items()} == {
        of("metrics1", function="main"): 2,
        of("metrics1", function="call"): 1,
        of("metrics1", function="call", error="RuntimeError"): 1,
    }
    main = points[of("metrics1", function="main")]
    assert 0 < main.sum < 10
    assert main.explicit_bounds[0] == 0.0001
    assert {exemplar.span_id for exemplar in main.exemplars} <= spans
    assert main.exemplars


@pytest.mark.parametrize("delta", [False, True])
def test_ops(delta: bool) -> None:
    """Calls and own time of each op, also of those that have no span; right for both readers."""
    reader = InMemoryMetricReader(preferred_temporality=DELTA if delta else {})
    provider = MeterProvider([reader])
    model = f"metrics2{delta}"
    for i in range(2):  # instrumented again with the same provider
        with live({"meter_provider": provider, "ops_per_invocation": 1}) as application:
            vm = vm_of(small())
            RelaxVMInstrumentor().instrument_vm(vm, name=model)
            vm["main"](tensor(*X))
            found = collected(reader)
            (span,) = application.spans
        units = [found[name][0] for name in ("tvm.op.calls", "tvm.op.time")]
        assert units == ["{call}", "s"]
        points = {
            k: p for k, p in found["tvm.op.calls"][1].items() if ("tvm.model.name", model) in k
        }
        times = 1 if delta else i + 1
        expected = {"add": 1, "subtract": 1, "multiply": 1, "vm.builtin.match_shape": 2}
        kinds = {"vm.builtin.match_shape": "builtin"}
        for name, count in expected.items():
            key = of_op(model, name, kinds.get(name, "kernel"))
            assert points[key].value == count * times, name
        assert sum(point.value for point in points.values()) == 19 * times
        took = [p for k, p in found["tvm.op.time"][1].items() if ("tvm.model.name", model) in k]
        if delta or not i:
            said = (span.attributes or {})["tvm.vm.op.time"]
            assert sum(point.value for point in took) == pytest.approx(said, abs=19e-9)
    dropped = found["tvm.trace.dropped"]
    assert dropped[0] == "{record}"
    assert {key[0][1] for key in dropped[1]} == {
        "ring",
        "queue",
        "rate",
        "export",
        "shutdown",
    }


def test_ops_of_unsampled_invocations_count_if_asked_for() -> None:
    """With ``ops="all"``; otherwise there are invocations alone."""
    for ops, calls in (("sampled", 0), ("all", 19)):
        reader = InMemoryMetricReader()
        settings = {"meter_provider": MeterProvider([reader]), "ops": ops}
        model = f"metrics3{ops}"
        with live(settings, sampler=ParentBased(ALWAYS_OFF)):
            vm = vm_of(small())
            RelaxVMInstrumentor().instrument_vm(vm, name=model)
            vm["main"](tensor(*X))
            found = collected(reader)
        points = found.get("tvm.op.calls", ("", {}))[1]
        mine = [point.value for key, point in points.items() if ("tvm.model.name", model) in key]
        assert sum(mine) == calls
        key = of(model, function="main")
        assert found["tvm.vm.invocation.duration"][1][key].count == 1


def test_many_threads() -> None:
    """No invocation is lost or counted twice."""
    reader = InMemoryMetricReader()
    with live({"meter_provider": MeterProvider([reader]), "queue": 1000}):
        vms = [vm_of(small()) for _ in range(4)]
        for vm in vms:
            RelaxVMInstrumentor().instrument_vm(vm, name="metrics4")

        def run(vm: Any) -> None:
            for _ in range(50):
                vm["identity"](tensor(*X))

        threads = [threading.Thread(target=run, args=(vm,)) for vm in vms]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        found = collected(reader)
    assert found["tvm.vm.active_invocations"][1][of("metrics4")].value == 0
    assert found["tvm.vm.invocation.duration"][1][of("metrics4", function="identity")].count == 200
    key = of_op("metrics4", "vm.builtin.match_shape", "builtin")
    assert found["tvm.op.calls"][1][key].value == 200


def test_another_provider_begins_anew() -> None:
    """Each has what ran while it was in use, and goes on when it is used again."""
    readers = InMemoryMetricReader(), InMemoryMetricReader()
    providers = [MeterProvider([reader]) for reader in readers]
    before = RelaxVMInstrumentor().dropped["rate"]
    vm = vm_of(small())
    found = []
    for used in (0, 1, 0):
        with live({"meter_provider": providers[used], "ops_per_invocation": 1}):
            RelaxVMInstrumentor().instrument_vm(vm, name="metrics5")
            vm["main"](tensor(*X))
            for reader in readers[: len(found) + 1]:
                seen = collected(reader)
                calls = sum(point.value for point in seen["tvm.op.calls"][1].values())
                duration = seen["tvm.vm.invocation.duration"][1]
                count = duration[of("metrics5", function="main")].count
                dropped = seen["tvm.trace.dropped"][1][(("reason", "rate"),)].value
                found.append((used, calls, count, dropped))
    assert found == [
        *[(0, 19, 1, 7)],
        *[(1, 19, 1, 7), (1, 19, 1, 7)],
        *[(0, 38, 2, 14), (0, 19, 1, 7)],
    ]
    assert RelaxVMInstrumentor().dropped["rate"] - before == 21


def test_a_provider_of_a_child_process() -> None:
    """It has nothing of what ran in the parent, whose warning isn't said again."""
    ended = run_alone(
        """
import os, warnings
warnings.filterwarnings("ignore", ".* multi-threaded, use of fork", DeprecationWarning)
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from integration.live_spans import live
from integration.small_vms import small, tensor, vm_of
from integration.test_otel_metrics import collected, of, of_op
from relax_trace.otel import RelaxVMInstrumentor

def look(reader):
    found = collected(reader)
    calls = found["tvm.op.calls"][1][of_op("vm", "vm.builtin.match_shape", "builtin")].value
    duration = found["tvm.vm.invocation.duration"][1][of("vm", function="identity")]
    return calls, duration.count, found["tvm.trace.dropped"][1][(("reason", "rate"),)].value

readers = [InMemoryMetricReader(), InMemoryMetricReader()]
with live({"meter_provider": MeterProvider([readers[0]]), "ops_per_invocation": 1}):
    vm = vm_of(small())
    for _ in range(3):
        vm["identity"](tensor(1, 2, 3, 4))
    assert look(readers[0]) == (3, 3, 3), look(readers[0])
    pid = os.fork()
    if not pid:
        RelaxVMInstrumentor().uninstrument()
        with live({"meter_provider": MeterProvider([readers[1]]), "ops_per_invocation": 1}):
            vm["identity"](tensor(1, 2, 3, 4))
            os._exit(look(readers[1]) != (1, 1, 1))
    assert os.waitpid(pid, 0)[1] == 0
    assert look(readers[0]) == (3, 3, 3), look(readers[0])
"""
    )
    assert ended.returncode == 0, ended
    (said,) = ended.stderr.splitlines()
    assert said.startswith("op spans are left out: there were more than `ops_per_invocation`")


def test_a_fork() -> None:
    """A child counts on from its parent, as the SDK's own instruments do; what runs is its own."""
    ended = run_alone(
        """
import os, threading, warnings
warnings.filterwarnings("ignore", ".* multi-threaded, use of fork", DeprecationWarning)
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from integration.live_spans import live
from integration.small_vms import callback, run_alone, small, tensor, vm_of
from integration.test_otel_metrics import DELTA, collected, of, of_op
readers = [InMemoryMetricReader(), InMemoryMetricReader(preferred_temporality=DELTA)]
key = of_op("vm", "vm.builtin.match_shape", "builtin")
begun, go = threading.Event(), threading.Event()

def look():
    found = [collected(reader) for reader in readers]
    calls = [one["tvm.op.calls"][1][key].value for one in found]
    return calls, found[0]["tvm.vm.active_invocations"][1][of("vm")].value

with live({"meter_provider": MeterProvider(readers)}):
    vm = vm_of(small())
    vm["identity"](tensor(1, 2, 3, 4))
    assert look() == ([1, 1], 0), look()
    with callback(lambda _: (begun.set(), go.wait(60))):
        other = threading.Thread(target=vm["call"], args=(tensor(1, 2, 3, 4),))
        other.start()
        assert begun.wait(60)
        pid = os.fork()
        if not pid:
            vm["identity"](tensor(1, 2, 3, 4))
            vm["identity"](tensor(1, 2, 3, 4))
            os._exit(look() != ([3, 2], 0))
        assert os.waitpid(pid, 0)[1] == 0
        vm["identity"](tensor(1, 2, 3, 4))
        assert look() == ([2, 1], 1), look()
        go.set()
        other.join()
    assert look() == ([3, 1], 0), look()
"""
    )
    assert (ended.returncode, ended.stderr) == (0, "")
