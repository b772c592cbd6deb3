"""Invocation spans, as the application's own exporter gets them."""

from __future__ import annotations

import asyncio
import copy
import gc
import itertools
import logging
import pickle
import re
import threading
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import tvm
import tvm_ffi
from opentelemetry import context as contexts
from opentelemetry.instrumentation.utils import suppress_instrumentation
from opentelemetry.sdk.trace import ReadableSpan, Span, SpanProcessor
from opentelemetry.sdk.trace.sampling import ALWAYS_OFF, ParentBased
from opentelemetry.trace import SpanKind, StatusCode, set_span_in_context
from tvm import relax

import relax_trace
from integration.live_spans import Live, attributes, is_child, live
from integration.small_vms import MAIN, callback, calls, small, tensor, vm_of
from relax_trace.otel import RelaxVMInstrumentor, batch

VM = relax.VirtualMachine
X = (1, 2, 3, 4)
RESULT = [1, 9, 25, 49]


@pytest.fixture
def application() -> Iterator[Live]:
    """The process, instrumented."""
    with live({"ops": "none"}) as made:
        yield made


def of_invocation(function: str, model: str = "vm") -> dict[str, Any]:
    """The attributes of an invocation that returned."""
    return {
        "tvm.model.name": (str, model),
        "tvm.vm.function": (str, function),
        "thread.id": (int, threading.get_ident()),
        "thread.name": (str, "MainThread"),
    }


def test_an_invocation_is_a_span(application: Live) -> None:
    """A child of the current one; without one, the root of a trace."""
    vm = vm_of(small())
    with application.tracer.start_as_current_span("request"):
        assert vm["main"](tensor(*X)).numpy().tolist() == RESULT
        span = application.named("main")
    assert is_child(span, application.named("request"))
    assert attributes(span) == of_invocation("main")
    assert span.kind is SpanKind.INTERNAL
    assert span.status.status_code is StatusCode.UNSET
    assert span.instrumentation_scope is not None
    assert span.instrumentation_scope.name == "relax_trace"
    assert (span.events, span.links) == ((), ())
    vm["identity"](tensor(*X))
    assert application.named("identity").parent is None


def test_every_way_into_a_vm(application: Live) -> None:
    """Each is one span, named as the function that was asked for."""
    vm = vm_of(small())
    x = tensor(*X)
    vm.save_function("main", "saved", x)
    vm["saved"]()
    vm.set_input("inner", x)
    vm.invoke_stateful("inner")
    assert vm.get_outputs("inner").numpy().tolist() == [0, 1, 2, 3]
    closure = vm["make"](x)
    assert vm.invoke_closure(closure, x).numpy().tolist() == [2, 4, 6, 8]
    vm.time_evaluator("identity", tvm.cpu(), number=3)(x)
    expected = ["saved", "inner", "make", "invoke_closure", "identity"]
    assert [span.name for span in application.spans] == expected
    for span in application.spans:
        assert attributes(span) == of_invocation(span.name)


def test_an_invocation_inside_another(application: Live) -> None:
    """It is a child of the one that it was called from."""
    vm, other = vm_of(small()), vm_of(small())
    RelaxVMInstrumentor().instrument_vm(other, name="other")
    with callback(other["main"]):
        vm["nested_call"](tensor(*X))
    outer = application.named("nested_call")
    assert is_child(application.named("main"), outer)
    assert attributes(application.named("main")) == of_invocation("main", "other")
    assert len(application.spans) == 2


@tvm_ffi.register_error
class OwnError(Exception):
    """The user's own, which TVM raises as it is."""


def test_an_error_is_the_users_own(application: Live) -> None:
    """It arrives as without us, and the span says what it was."""
    vm = vm_of(small())
    error = OwnError("no <b>")

    def boom(_: Any) -> None:
        raise error

    with callback(boom), pytest.raises(OwnError) as raised:
        vm["call"](tensor(*X))
    span = application.named("call")
    assert (type(raised.value), raised.value.args) == (OwnError, error.args)
    kind = f"{__name__}.OwnError"
    assert attributes(span) == {**of_invocation("call"), "error.type": (str, kind)}
    assert (span.status.status_code, span.status.description) == (
        StatusCode.ERROR,
        "OwnError: no <b>",
    )
    (event,) = span.events
    assert event.timestamp == span.end_time
    assert event.name == "exception"
    assert event.attributes is not None
    assert event.attributes["exception.type"] == kind
    with pytest.raises(tvm.error.InternalError, match="expects 1 arg"):
        vm["main"]()
    assert (application.named("main").attributes or {})["error.type"] == "tvm.error.InternalError"


class Own(VM):  # type: ignore[misc]
    """A VM of the user's own class."""

    def __getitem__(self, key: str) -> Any:
        """The function, by another name."""
        return super().__getitem__(key.removeprefix("my_"))


ORDERS = list(itertools.product(*[list(itertools.permutations(("record", "spans")))] * 2))


@pytest.mark.parametrize(("begin", "end"), ORDERS)
@pytest.mark.parametrize("subclass", [False, True])
def test_recordings_and_spans_come_and_go_in_any_order(
    begin: tuple[str, str], end: tuple[str, str], subclass: bool
) -> None:
    """Each has what ran while it was there; at the end the VM is as it was."""
    own = Own if subclass else VM
    made = Live()
    vm = own(small(), tvm.cpu())
    instrumentor = RelaxVMInstrumentor()
    recordings: list[relax_trace.Recording] = []
    x = tensor(*X)

    def change(what: str, begins: bool) -> None:
        if what == "spans":
            (instrumentor.instrument_vm if begins else instrumentor.uninstrument_vm)(vm)
        elif begins:
            recordings.append(relax_trace.record(vm))
        else:
            recordings[0].stop()

    instrumentor.instrument(tracer_provider=made.provider)
    instrumentor.uninstrument()  # the provider stays
    running: set[str] = set()
    expected = {"record": 0, "spans": 0}
    for steps, begins in ((begin, True), (end, False)):
        for step in steps:
            change(step, begins)
            running ^= {step}
            assert vm["my_main" if subclass else "main"](x).numpy().tolist() == RESULT
            expected = {name: count + (name in running) for name, count in expected.items()}
    assert type(vm) is own
    assert [span.name for span in made.spans] == ["main"] * expected["spans"]
    trace = recordings[0].trace
    assert [calls(trace, i) for i in range(len(trace.invocations))] == [MAIN] * expected["record"]


def test_a_function_that_was_taken_stays_a_function(application: Live) -> None:
    """It can go wherever TVM takes one, and makes no spans once the VM is left alone."""
    vm = vm_of(small())
    function = vm["main"]
    assert isinstance(function, tvm_ffi.Function)
    tvm_ffi.register_global_func("relax_trace_tests.main", function, override=True)
    tvm_ffi.get_global_func("relax_trace_tests.main")(tensor(*X))
    tvm_ffi.registry.remove_global_func("relax_trace_tests.main")  # it keeps the VM
    assert [span.name for span in application.spans] == ["main"]
    holder = type("Holder", (), {"run": function})()
    holder.run(tensor(*X))
    assert len(application.spans) == 2
    RelaxVMInstrumentor().uninstrument_vm(vm)
    assert type(vm) is VM
    assert function(tensor(*X)).numpy().tolist() == RESULT
    assert len(application.spans) == 2
    with pytest.raises(AttributeError) as bare:
        vm["no_such_function"]
    RelaxVMInstrumentor().instrument_vm(vm)
    with pytest.raises(AttributeError, match=re.escape(str(bare.value))):
        vm["no_such_function"]
    assert vm["get_function_arity"]("main") == 1
    assert len(application.spans) == 2


def test_a_function_whose_vm_nobody_keeps() -> None:
    """It has spans, with its ops, while there is an instrumentation, and only then."""
    with live() as application:
        function = vm_of(small())["main"]
        gc.collect()
        function(tensor(*X))
        assert (len(application.spans), len(application.ops)) == (1, 8)
        RelaxVMInstrumentor().uninstrument()
        assert function(tensor(*X)).numpy().tolist() == RESULT
        assert (len(application.spans), len(application.ops)) == (1, 8)
        RelaxVMInstrumentor().instrument(tracer_provider=application.provider)
        function(tensor(*X))
        assert (len(application.spans), len(application.ops)) == (2, 16)
        assert attributes(application.spans[1])["tvm.vm.op.count"] == (int, 8)
    made = weakref.ref(function._self_vm)
    assert type(made()) is VM
    del function
    gc.collect()
    assert made() is None


def test_a_function_equals_itself() -> None:
    """However often it was taken, as TVM's own functions do; and no other."""
    with live():  # ops are recorded: the VM gives the same function each time
        vm = vm_of(small())
        function, again, other = vm["main"], vm["main"], vm["inner"]
    assert function is not again
    assert [function == one for one in (function, again, other, 3)] == [True, True, False, False]
    assert [function != one for one in (function, again, other, 3)] == [False, False, True, True]
    assert [function.same_as(one) for one in (function, again, other)] == [True, True, False]
    assert {function, again, other} == {function, other}
    assert function == function.__wrapped__


def test_a_copy_of_an_instrumented_vm(application: Live) -> None:
    """It is a VM as before, whatever else is put over the original."""
    vm = vm_of(small())
    assert type(copy.copy(vm)) is VM
    with relax_trace.record(vm):
        assert type(copy.copy(vm)) is VM
    with pytest.raises((TypeError, pickle.PicklingError, AttributeError, RuntimeError)):
        pickle.dumps(vm)


@pytest.mark.parametrize("how", ["suppressed", "switched off", "unsampled"])
def test_where_no_span_is_wanted(how: str) -> None:
    """The invocation runs as it would."""
    sampler = ParentBased(ALWAYS_OFF) if how == "unsampled" else None
    with live(sampler=sampler) as application:
        vm = vm_of(small())
        if how == "suppressed":
            with suppress_instrumentation():
                assert vm["main"](tensor(*X)).numpy().tolist() == RESULT
        else:
            RelaxVMInstrumentor().enabled = how != "switched off"
            assert vm["main"](tensor(*X)).numpy().tolist() == RESULT
        assert application.spans == []
        RelaxVMInstrumentor().enabled = True
        vm["main"](tensor(*X))
        assert len(application.spans) == (0 if how == "unsampled" else 1)


class Broken(SpanProcessor):
    """Fails at one end of a span."""

    def __init__(self, where: str) -> None:
        self.where = where

    def on_start(self, span: Span, parent_context: contexts.Context | None = None) -> None:
        """Fail, perhaps."""
        if self.where == "start":
            raise OSError("no space left")

    def on_end(self, span: ReadableSpan) -> None:
        """Fail, perhaps."""
        if self.where == "end":
            raise OSError("no space left")


@pytest.mark.parametrize("where", ["start", "end"])
def test_what_fails_in_a_span_is_not_the_callers(
    where: str, caplog: pytest.LogCaptureFixture
) -> None:
    """The call goes on, and the user is told once; the context is as it was."""
    with live({"ops": "none"}) as application, caplog.at_level(logging.ERROR, "relax_trace"):
        application.provider.add_span_processor(Broken(where))
        vm = vm_of(small())
        before = contexts.get_current()
        for _ in range(3):
            assert vm["main"](tensor(*X)).numpy().tolist() == RESULT
        assert contexts.get_current() == before
    assert caplog.messages == [
        "spans of VirtualMachines are missing from your traces; this is said only once"
    ]


def test_a_batch_links_to_the_requests_it_serves(application: Live) -> None:
    """Its invocations are children of what it says, and what they call has no links of its own."""
    vm, other = vm_of(small()), vm_of(small())
    requests = [application.tracer.start_span(f"request{i}") for i in range(3)]
    parent = application.tracer.start_span("batch")
    with (
        batch(parent=parent, links=[requests[0], requests[1].get_span_context(), requests[2]]),
        callback(other["main"]),
    ):
        vm["call"](tensor(*X))
        vm["call"](tensor(*X))
    first, second = (span for span in application.spans if span.name == "call")
    for span in (first, second):
        assert span.parent == parent.get_span_context()
        assert [link.context for link in span.links] == [it.get_span_context() for it in requests]
    for span in (span for span in application.spans if span.name == "main"):
        assert span.links == ()
    for kind in (set_span_in_context(parent), parent.get_span_context()):
        with batch(parent=kind):
            vm["identity"](tensor(*X))
        assert application.spans[-1].parent == parent.get_span_context()
    with application.tracer.start_as_current_span("current") as current, batch():
        vm["inner"](tensor(*X))
    assert application.named("inner").parent == current.get_span_context()
    wrong: Any = "00-span"
    with pytest.raises(TypeError, match="parent is a Context, a Span or a SpanContext, not a str"):
        batch(parent=wrong).__enter__()
    with pytest.raises(TypeError, match="links has Spans or SpanContexts, no str"):
        batch(links=[wrong]).__enter__()


def test_contexts_of_tasks_and_threads(application: Live) -> None:
    """Concurrent requests keep apart; each thread's invocation is under its own request."""
    vms = [vm_of(small()) for _ in range(4)]

    def run(vm: VM) -> int:
        vm["main"](tensor(*X))
        return threading.get_ident()

    async def request(number: int) -> int:
        with application.tracer.start_as_current_span(f"request{number}"):
            await asyncio.sleep(0)
            return await asyncio.to_thread(run, vms[number])

    async def serve() -> list[int]:
        return await asyncio.gather(*map(request, range(4)))

    threads = asyncio.run(serve())
    invocations = [span for span in application.spans if span.name == "main"]
    assert len(invocations) == 4
    for number, thread in enumerate(threads):
        parent = application.named(f"request{number}")
        (span,) = [span for span in invocations if span.parent == parent.context]
        assert is_child(span, parent)
        assert (span.attributes or {})["thread.id"] == thread


@pytest.mark.parametrize("target", ["module", "object"])
def test_one_vm_alone(target: str) -> None:
    """Without instrument(), by its object or its module; others have no spans."""
    made = Live()
    instrumentor = RelaxVMInstrumentor()
    instrumentor.instrument(tracer_provider=made.provider, ops="none")
    instrumentor.uninstrument()
    vm, other = vm_of(small()), vm_of(small())
    named: Callable[[], Any] = {"module": lambda: vm.module, "object": lambda: vm}[target]
    instrumentor.instrument_vm(named(), name="detector")
    instrumentor.instrument_vm(named(), name="renamed")
    vm["main"](tensor(*X))
    other["main"](tensor(*X))
    (span,) = made.spans
    assert attributes(span) == of_invocation("main", "renamed")
    instrumentor.uninstrument_vm(named())
    instrumentor.uninstrument_vm(named())
    assert type(vm) is type(other) is VM
    wrong: Any = 3
    with pytest.raises(TypeError, match=r"only a tvm.relax.VirtualMachine has spans, not a int"):
        instrumentor.instrument_vm(wrong)
