"""Op spans: which there are, what they say, and that they leave the application alone."""

from __future__ import annotations

import logging
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import tvm
from opentelemetry.context import Context
from opentelemetry.sdk.trace import ReadableSpan, SpanProcessor
from opentelemetry.sdk.trace.sampling import (
    ALWAYS_OFF,
    ALWAYS_ON,
    Decision,
    ParentBased,
    Sampler,
    SamplingResult,
)
from opentelemetry.trace import SpanKind, StatusCode

import models
import relax_trace
from integration.live_spans import Live, attributes, is_child, live
from integration.small_vms import callback, chain, small, tensor, vm_of
from integration.test_throw import OwnError
from relax_trace import attach
from relax_trace.otel import RelaxVMInstrumentor
from relax_trace.recorder.native import load

X = (1, 2, 3, 4)
VECTOR = "float32[4]"
# The calls of `main` with a tensor among their arguments, each with that of which it is a child.
MAIN = [
    ("vm.builtin.check_tensor_info", "main"),
    ("vm.builtin.match_shape", "main"),
    ("add", "main"),
    ("inner", "main"),
    ("vm.builtin.check_tensor_info", "inner"),
    ("vm.builtin.match_shape", "inner"),
    ("subtract", "inner"),
    ("multiply", "main"),
]


@pytest.fixture
def application() -> Iterator[Live]:
    """The process, instrumented, with as many op spans as there are ops."""
    with live({"ops_per_second": 1_000_000, "queue": 1000}) as made:
        yield made


def with_parents(application: Live) -> list[tuple[str, str]]:
    """Name and parent's name of each op span, which lies inside that."""
    ops = application.ops
    known = {span.context.span_id: span for span in (*application.spans, *ops)}
    found = []
    for span in ops:
        assert span.parent is not None
        parent = known[span.parent.span_id]
        assert is_child(span, parent)
        found.append((span.name, parent.name))
    return found


def test_the_ops_of_an_invocation(application: Live) -> None:
    """Exact names, attributes and types, parents; times inside the parent's."""
    vm = vm_of(small())
    with application.tracer.start_as_current_span("request"):
        vm["main"](tensor(*X))
    assert with_parents(application) == MAIN
    add = application.ops[2]
    assert attributes(add) == {
        "tvm.op.name": (str, "add"),
        "tvm.op.kind": (str, "kernel"),
        "tvm.op.argument_shapes": (tuple, (VECTOR, VECTOR, VECTOR)),
        "tvm.device.type": (str, "cpu"),
        "tvm.device.id": (int, 0),
        "thread.id": (int, threading.get_ident()),
        "thread.name": (str, "MainThread"),
    }
    assert (add.kind, add.status.status_code) == (SpanKind.INTERNAL, StatusCode.UNSET)
    kinds = [(span.attributes or {})["tvm.op.kind"] for span in application.ops[:4]]
    assert kinds == ["builtin", "builtin", "kernel", "function"]
    invocation = attributes(application.named("main"))
    kind, seconds = invocation.pop("tvm.vm.op.time")
    outermost = [0, 1, 2, 3, 7]
    took = sum(application.ops[i].end_time - application.ops[i].start_time for i in outermost)  # type: ignore[operator]
    assert kind is float
    assert took <= seconds * 1e9 + len(outermost)
    assert invocation == {
        "tvm.model.name": (str, "vm"),
        "tvm.vm.function": (str, "main"),
        "tvm.vm.op.count": (int, 8),
        "tvm.vm.op.dropped": (int, 0),
        "tvm.capture.reason": (str, "sampled"),
        "tvm.timing": (str, "host"),
        "thread.id": (int, threading.get_ident()),
        "thread.name": (str, "MainThread"),
    }


@pytest.mark.parametrize("model", [models.silero, models.squeezenet, models.decoder])
def test_the_ops_of_a_real_model(model: Callable[[], models.Model], application: Live) -> None:
    """Every one that a recording of the same invocations has, and the recording is whole."""
    made = model()
    instrumentor = RelaxVMInstrumentor()
    instrumentor.uninstrument()
    instrumentor.instrument(
        tracer_provider=application.provider,
        ops_per_invocation=100_000,
        ops_per_trace=100_000,
        ops_per_second=100_000,
    )
    with relax_trace.record(made.vm) as recording:
        made.check(made.run())
    trace = recording.trace
    listed = np.flatnonzero(trace.signatures.has_tensor[trace.signature])
    expected = Counter(
        (trace.names[trace.name[i]], trace.signatures.texts[trace.signature[i]].decode())
        for i in listed.tolist()
    )
    found = Counter(
        (span.name, ", ".join((span.attributes or {})["tvm.op.argument_shapes"]))  # type: ignore[arg-type]
        for span in application.ops
    )
    assert found == expected
    assert len(with_parents(application)) == len(listed) > 20
    counts = [(span.attributes or {})["tvm.vm.op.count"] for span in application.spans]
    assert sum(counts) == len(listed)  # type: ignore[arg-type]
    assert len(counts) == len(trace.invocations)


def test_every_call_if_asked_for() -> None:
    """Also those without a tensor, which have no shapes."""
    with live({"calls": "all"}) as application:
        vm_of(small())["unchecked"]()
        names = ["alloc_storage", "alloc_tensor", "null_value"]
        assert [span.name for span in application.ops] == [
            *(f"vm.builtin.{name}" for name in names),
            "divide",
        ]
        assert "tvm.op.argument_shapes" not in attributes(application.ops[2])
        assert attributes(application.named("unchecked"))["tvm.vm.op.count"] == (int, 4)


def test_beyond_the_budget_the_longest_are_kept() -> None:
    """The invocation says how many are left out, and the process counts them."""
    settings = {"ops_per_invocation": 2, "ops_per_trace": 5}
    with live(settings) as application:
        before = RelaxVMInstrumentor().dropped
        vm = vm_of(small())
        with application.tracer.start_as_current_span("request"), callback(lambda _: None):
            for _ in range(3):
                vm["nested_call"](tensor(*X))
        found = with_parents(application)
        assert found == [("call", "nested_call"), ("relax_trace_tests.callback", "call")] * 2 + [
            ("call", "nested_call")
        ]
        said = [attributes(span) for span in application.spans if span.name != "request"]
        assert [one["tvm.vm.op.count"] for one in said] == [(int, 9)] * 3
        assert [one["tvm.vm.op.dropped"] for one in said] == [(int, 7), (int, 7), (int, 8)]
        after = RelaxVMInstrumentor().dropped
        assert {name: after[name] - before[name] for name in after} == {
            "ring": 0,
            "queue": 0,
            "rate": 22,
            "shutdown": 0,
            "export": 0,
        }


def test_an_op_that_throws_is_kept() -> None:
    """With what was around it, before any that took longer."""
    with live({"ops_per_invocation": 2}) as application:

        def boom(_: Any) -> None:
            raise OwnError("no", 3)

        vm = vm_of(small())
        with callback(boom), pytest.raises(RuntimeError):
            vm["nested_call"](tensor(*X))
        assert with_parents(application) == [
            ("call", "nested_call"),
            ("relax_trace_tests.callback", "call"),
        ]
        for span in application.ops:
            assert span.status.status_code is StatusCode.ERROR
            assert attributes(span)["error.type"] == (str, "RuntimeError")


def test_an_invocation_inside_an_op(application: Live) -> None:
    """Each has its own ops, and its own counts."""
    vm, other = vm_of(small()), vm_of(small())
    with callback(other["main"]):
        vm["call"](tensor(*X))
    counts = [attributes(span)["tvm.vm.op.count"][1] for span in application.spans]
    assert counts == [8, 4]
    inner = [pair for pair in with_parents(application) if pair[1] in ("main", "inner")]
    assert inner == MAIN
    assert len(application.ops) == 12


def test_many_threads_at_a_time(application: Live) -> None:
    """Every invocation has its own ops, while recordings come and go."""
    vms = [vm_of(chain(20 + i)) for i in range(4)]
    done = threading.Event()

    def run(vm: Any) -> None:
        for _ in range(50):
            vm["main"](tensor(*X))

    def record() -> None:
        while not done.is_set():
            with relax_trace.record(vms[0]) as recording:
                done.wait(0.01)
            assert recording.trace.losses == relax_trace.Losses()

    recorder = threading.Thread(target=record)
    threads = [threading.Thread(target=run, args=(vm,)) for vm in vms]
    for thread in (recorder, *threads):
        thread.start()
    for thread in threads:
        thread.join()
    done.set()
    recorder.join()
    children = Counter(span.parent.span_id for span in application.ops if span.parent)
    counts = {span.context.span_id: attributes(span) for span in application.spans}
    assert children == {span: said["tvm.vm.op.count"][1] for span, said in counts.items()}
    assert Counter(children.values()) == {22: 50, 23: 50, 24: 50, 25: 50}
    assert all(said["tvm.vm.op.dropped"] == (int, 0) for said in counts.values())


def test_an_evaluation_has_the_ops_of_all_its_runs(application: Live) -> None:
    """They are under its one span."""
    vm_of(small()).time_evaluator("identity", tvm.cpu(), number=3)(tensor(*X))
    count = attributes(application.named("identity"))["tvm.vm.op.count"][1]
    assert count % 2 == 0
    assert count >= 6
    assert [span.name for span in application.ops] == [
        "vm.builtin.check_tensor_info",
        "vm.builtin.match_shape",
    ] * (count // 2)


@pytest.mark.parametrize("sampled", [False, True])
def test_what_is_not_sampled_runs_the_bare_vm(sampled: bool) -> None:
    """The instrument is in its slot for sampled invocations alone."""
    with live(sampler=ParentBased(ALWAYS_ON if sampled else ALWAYS_OFF)) as application:
        vm = vm_of(small())
        number = attach.attachment_of(vm).number
        states: list[int] = []
        with callback(lambda _: states.append(load().state(number) & 1)):
            vm["call"](tensor(*X))
        assert (states, load().state(number)) == ([int(sampled)], 0)
        assert len(application.ops) == 4 * sampled


class OnlyAdds(Sampler):
    """Samples nothing but spans of one name."""

    def should_sample(
        self,
        parent_context: Context | None,
        trace_id: int,
        name: str,
        kind: Any = None,
        attributes: Any = None,
        links: Any = None,
        trace_state: Any = None,
    ) -> SamplingResult:
        """By the name alone."""
        return SamplingResult(Decision.RECORD_AND_SAMPLE if name == "add" else Decision.DROP)

    def get_description(self) -> str:
        """Say what it is."""
        return "OnlyAdds"


@pytest.mark.parametrize(("ops", "expected"), [("all", 1), ("sampled", 0), ("none", 0)])
def test_ops_of_all_invocations(ops: str, expected: int) -> None:
    """The sampler decides on each op's span, even where it left the invocation's out."""
    with live({"ops": ops}, sampler=OnlyAdds()) as application:
        vm_of(small())["main"](tensor(*X))
        assert [span.name for span in application.ops] == ["add"] * expected


def test_an_instrument_of_the_applications_own(
    application: Live, caplog: pytest.LogCaptureFixture
) -> None:
    """It is left alone; the invocations have spans without ops, before and after."""
    seen: list[str] = []

    def instrument(_: Any, name: str, before: bool, *__: Any) -> None:
        if before:
            seen.append(name)

    vm = vm_of(small())
    vm["identity"](tensor(*X))
    with caplog.at_level(logging.WARNING, "relax_trace"):
        vm.set_instrument(instrument)
        vm["main"](tensor(*X))
    assert len(seen) == 19
    assert caplog.messages == [
        "a VirtualMachine was given an instrument: its invocations have no op spans"
    ]
    assert [span.name for span in application.spans] == ["identity", "main"]
    assert len(application.ops) == 2
    assert attributes(application.named("main"))["tvm.vm.op.count"] == (int, 0)


class Blocked(SpanProcessor):
    """Holds up whoever ends an op span until it is told to go on."""

    def __init__(self) -> None:
        self.entered = threading.Event()
        self.go = threading.Event()

    def on_end(self, span: ReadableSpan) -> None:
        """Wait."""
        if span.name == "add":
            self.entered.set()
            assert self.go.wait(60)


def test_too_many_that_wait(caplog: pytest.LogCaptureFixture) -> None:
    """The invocation waits for nothing; its ops are dropped, counted, and said once."""
    with (
        live({"queue": 2}) as application,
        caplog.at_level(logging.WARNING, "relax_trace"),
    ):
        blocked = Blocked()
        application.provider.add_span_processor(blocked)
        before = RelaxVMInstrumentor().dropped["queue"]
        vm = vm_of(small())
        vm["main"](tensor(*X))
        assert blocked.entered.wait(60)
        for _ in range(5):
            vm["main"](tensor(*X))
        said = [attributes(span)["tvm.vm.op.dropped"][1] for span in application.spans]
        assert said == [0, 0, 0, 8, 8, 8]
        assert RelaxVMInstrumentor().dropped["queue"] - before == 24
        assert not RelaxVMInstrumentor().force_flush(0.05)
        blocked.go.set()
        assert len(application.ops) == 24


class Broken(SpanProcessor):
    """Fails for one op."""

    def on_start(self, span: Any, parent_context: Context | None = None) -> None:
        """Fail."""
        if span.name == "add":
            raise OwnError("broken for the test", 3)


def test_a_broken_span_processor(caplog: pytest.LogCaptureFixture) -> None:
    """What it keeps from being made is counted; the invocations after it have their spans."""
    with live({"queue": 1000}) as application, caplog.at_level(logging.WARNING, "relax_trace"):
        application.provider.add_span_processor(Broken())
        before = RelaxVMInstrumentor().dropped["export"]
        vm = vm_of(small())
        for name in ("main", "identity", "main"):
            vm[name](tensor(*X))
        names = Counter(span.name for span in application.ops)
        assert names == {"vm.builtin.check_tensor_info": 3, "vm.builtin.match_shape": 3}
        assert RelaxVMInstrumentor().dropped["export"] - before == 2 * 6
    (said,) = [text for text in caplog.messages if "could not be made; this" in text]
    assert said == ("op spans could not be made; this is said only once")
