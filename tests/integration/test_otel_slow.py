"""``ops="slow"``: the ops of slow and failed invocations, as spans or in a file."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from opentelemetry.sdk.trace.sampling import ALWAYS_OFF, ALWAYS_ON, ParentBased

import relax_trace
from integration.live_spans import Live, attributes, live
from integration.small_vms import callback, small, tensor, vm_of
from integration.test_throw import OwnError
from relax_trace.otel import RelaxVMInstrumentor, slowness
from relax_trace.otel.settings import Settings

X = (1, 2, 3, 4)
SLOW = {"ops": "slow", "slow_percentile": 0.0, "slow_seconds": 0.2}


def wait(_: Any) -> None:
    """Be slow."""
    time.sleep(0.25)


def fail(_: Any) -> None:
    """Throw."""
    raise OwnError("no", 3)


def reasons(application: Live) -> list[Any]:
    """Why the ops of each invocation became spans, if they did."""
    return [(span.attributes or {}).get("tvm.capture.reason") for span in application.spans]


def call(vm: Any, inside: Callable[[Any], None]) -> None:
    """Invoke ``call``, which calls ``inside``, whatever it raises."""
    with callback(inside):
        try:
            vm["call"](tensor(*X))
        except RuntimeError:
            assert inside is fail


def test_of_sampled_invocations_the_slow_and_the_failed_have_op_spans() -> None:
    """All of them say how many ops they had."""
    with live(SLOW) as application:
        vm = vm_of(small())
        for inside in (lambda _: None, wait, lambda _: None, fail):
            call(vm, inside)
        assert reasons(application) == [None, "slow", None, "failed"]
        parents = {span.parent.span_id for span in application.ops if span.parent}
        assert parents == {application.spans[i].context.span_id for i in (1, 3)}
        assert len(application.ops) == 4 + 3  # the last of the failed one's was not reached
        said = [attributes(span) for span in application.spans]
        assert [one["tvm.vm.op.count"] for one in said] == [(int, 4)] * 3 + [(int, 3)]
        assert [one["tvm.vm.op.dropped"] for one in said] == [(int, 0)] * 4


@pytest.mark.parametrize("folder", ["slow", ""])
def test_of_others_they_go_to_a_file(
    folder: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Where a folder is given; one in ten seconds, and no span at all."""
    where = str(tmp_path / folder) if folder else ""
    sampler = ParentBased(ALWAYS_OFF)
    with live({**SLOW, "slow_folder": where}, sampler=sampler) as application:
        vm = vm_of(small())
        RelaxVMInstrumentor().instrument_vm(vm, name="encoder")
        with application.tracer.start_as_current_span("request") as span:
            request = f"{span.get_span_context().trace_id:032x}"
            for inside in (lambda _: None, fail, wait):
                call(vm, inside)
        assert application.ops == application.spans == []
    files = list(tmp_path.rglob("*.npz"))
    assert len(files) == bool(folder)
    for file in files:
        trace = relax_trace.load(file)
        assert trace.vms == ("encoder",)
        assert bytes(trace.invocations.trace_id[0]).hex() == request
        assert [trace.names[i] for i in trace.invocations.function.tolist()] == ["call"]
        aborted = trace.flags & relax_trace.trace.ABORTED > 0
        assert [trace.names[i] for i in trace.name[aborted].tolist()] == [
            "relax_trace_tests.callback"
        ]
        (said,) = [text for text in caplog.messages if str(file) in text]
        assert said == f"'call' of 'encoder' failed: see {file}"


def test_where_the_trace_is_sampled_no_file_is_written(tmp_path: Path) -> None:
    """The ops are in that trace."""
    settings = {**SLOW, "slow_folder": str(tmp_path)}
    with live(settings, sampler=ParentBased(ALWAYS_ON)) as application:
        call(vm_of(small()), fail)
        assert len(application.ops) == 3
    assert list(tmp_path.iterdir()) == []


def invocation(seconds: float, function: str = "main", error: str | None = None) -> slowness.Ended:
    """One that took so long."""
    end = 10**18 + round(seconds * 1e9)
    return slowness.Ended("vm", function, None, 10**18, end, error)  # type: ignore[arg-type]


def test_slow_against_the_earlier_ones() -> None:
    """Not before there are 200; brought up to date each 50; each function for itself."""
    known = slowness.Slowness(Settings(ops="slow", slow_percentile=90.0))
    for i in range(200):
        assert known.reason(invocation(0.001 * (i % 100 + 1))) is None
    # The 90th percentile of 1 to 100 ms, each twice, lies between 90 and 91 ms.
    assert known.reason(invocation(0.090)) is None
    assert known.reason(invocation(0.0911)) == "slow"
    assert known.reason(invocation(0.001, error="ValueError")) == "failed"
    assert known.reason(invocation(9, "other")) is None
    for _ in range(1200):
        known.reason(invocation(1.0))
    assert known.reason(invocation(1.0)) is None
    assert known.reason(invocation(1.0001)) == "slow"


def test_slow_against_a_threshold() -> None:
    """From the first one on."""
    known = slowness.Slowness(Settings(ops="slow", slow_seconds=0.05))
    assert [known.reason(invocation(seconds)) for seconds in (0.05, 0.051)] == [None, "slow"]
