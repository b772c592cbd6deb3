"""Attach the recorder to a VirtualMachine: its calls become invocations; and take it off again.

While attached, the VM object is of a subclass of its own class, made on the fly: ``isinstance``
holds, and ``vm["main"]`` gives a native wrapper in place of the VM's own function.
"""

from __future__ import annotations

import functools
import inspect
import itertools
import os
import threading
import weakref
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, SupportsIndex

from .errors import InstrumentError
from .import_hook import after_import
from .reach import vm_of_module
from .recorder.native import load

# What vm[...] also finds, and is no call into the model.
NOT_INVOCATIONS = frozenset(
    {
        "get_function",
        "get_function_arity",
        "get_function_param_name",
        "get_output",
        "get_output_arity",
        "save_function",
        "set_input",
        "set_instrument",
        "vm_initialization",
        "vm_load_executable",
    }
)

_TAKEN = 2  # bit of the recorder's state()


@dataclass
class Attachment:
    """What is known of one VM for as long as it lives; the recorder knows it by ``number``."""

    number: int
    vm_class: Any
    name: str | None = None  # given by the user
    recordings: int = 0  # how many have it attached
    # Of those that give the VM up when the user sets an instrument of their own: how.
    yielding: list[Callable[[Any], None]] = field(default_factory=list)


class BareModule:
    """A VM's Module without a VirtualMachine around it: it holds the hook, and has no wrappers."""

    def __init__(self, module: Any) -> None:
        self.module = module


_lock = threading.RLock()

_attachments: weakref.WeakKeyDictionary[Any, Attachment] = weakref.WeakKeyDictionary()
# The wrappers of a VM's functions, by name: they hold the VM's module, so a recording must not.
_wrappers: weakref.WeakKeyDictionary[Any, dict[str, Any]] = weakref.WeakKeyDictionary()
_instrumented_by_user: weakref.WeakSet[Any] = weakref.WeakSet()
_bare_modules: weakref.WeakSet[BareModule] = weakref.WeakSet()
_evaluator_numbers = itertools.count()


def recordable(vm: Any) -> Any:
    """``vm``, or what stands for a VM's module; to be held by who attaches it.

    Raises ``TypeError`` for anything but a ``tvm.relax.VirtualMachine`` or its module,
    ``InstrumentError`` for a VM whose instrument the user set.
    """
    import tvm_ffi
    from tvm.relax import VirtualMachine

    if isinstance(vm, tvm_ffi.Module) and vm.kind == "relax.VirtualMachine":
        vm = vm_of_module(vm) or _bare(vm)
    if not isinstance(vm, VirtualMachine | BareModule):
        raise TypeError(f"record() takes a tvm.relax.VirtualMachine, not a {type(vm).__name__}")
    if vm.module.kind == "rpc":
        raise TypeError("this VirtualMachine lives behind RPC; only a local one can be recorded")
    if vm in _instrumented_by_user:
        raise InstrumentError(
            "this VirtualMachine has an instrument of your own, and a VM holds only one: "
            "call vm.set_instrument(None) before recording it"
        )
    return vm


def _bare(module: Any) -> BareModule:
    with _lock:
        known = next((bare for bare in _bare_modules if bare.module.same_as(module)), None)
        bare = known or BareModule(module)
        _bare_modules.add(bare)
        return bare


def attach(vm: Any, give_up: Callable[[Any], None] | None = None) -> Attachment:
    """Make what :func:`recordable` gave recordable; every call needs one :func:`detach`.

    ``give_up(vm)`` is called when the user sets an instrument; without it that is an error.
    """
    native = load()
    with _lock:
        attachment = _attachments.get(vm)
        if attachment is None:
            attachment = _attachments[vm] = Attachment(native.open(), type(vm))
        if attachment.recordings == 0 and not isinstance(vm, BareModule):
            attachment.vm_class = type(vm)
            vm._invoke_stateful = _wrapper(vm, attachment, "invoke_stateful")
            vm._invoke_closure = _wrapper(vm, attachment, "invoke_closure")
            vm.__class__ = _recorded_class(attachment.vm_class)
        attachment.recordings += 1
        if give_up:
            attachment.yielding.append(give_up)
        return attachment


def detach(vm: Any, give_up: Callable[[Any], None] | None = None) -> None:
    """Undo one :func:`attach`; the last one leaves ``vm`` as it was."""
    with _lock:
        attachment = _attachments[vm]
        attachment.recordings -= 1
        if give_up:
            attachment.yielding.remove(give_up)
        if attachment.recordings == 0 and not isinstance(vm, BareModule):
            vm.__class__ = attachment.vm_class
            vm._invoke_stateful = vm.module["invoke_stateful"]
            vm._invoke_closure = vm.module["invoke_closure"]


def change_class(vm: Any, make: Callable[[type], type]) -> None:
    """Give a VM the class ``make(its own)``, below the one that recordings put over that."""
    with _lock:
        attachment = _attachments.get(vm)
        if attachment and attachment.recordings:
            attachment.vm_class = make(attachment.vm_class)
            vm.__class__ = _recorded_class(attachment.vm_class)
        else:
            vm.__class__ = make(type(vm))


def want(vm: Any, attachment: Attachment, slot: int, wish: tuple[Any, ...]) -> None:
    """Record the invocations of ``vm`` that begin from now on; undone by :func:`unwant`."""
    load().want(attachment.number, vm.module, slot, *wish)


def unwant(vm: Any | None, attachment: Attachment, slot: int) -> None:
    """Undo one :func:`want`; an invocation that is running is still recorded to its end.

    ``vm`` is None where it is gone: a function of it may have been kept, and is recorded no more.
    """
    load().unwant(attachment.number, None if vm is None else vm.module, slot)


def attachment_of(vm: Any) -> Attachment:
    """What is known of a VM that was attached."""
    return _attachments[vm]


def instrument_was_taken(vm: Any) -> bool:
    """Whether somebody put another instrument in the place of ours, where it now stays."""
    taken = bool(load().state(_attachments[vm].number) & _TAKEN)
    if taken:
        _instrumented_by_user.add(vm)
    return taken


def _wrapper(vm: Any, attachment: Attachment, name: str) -> Any:
    wrappers = _wrappers.setdefault(vm, {})
    wrapper = wrappers.get(name)
    if wrapper is None:
        wrapper = wrappers[name] = load().wrap(attachment.number, vm.module, name)
    return wrapper


@functools.cache
def _recorded_class(vm_class: Any) -> type:
    """A subclass of the user's VM class whose entry points are recorded as invocations.

    What the user's own class overrides comes first, and reaches ours by ``super()``.
    """
    from tvm.relax import VirtualMachine

    named = {name: getattr(vm_class, name) for name in ("__module__", "__qualname__", "__doc__")}
    if vm_class is not VirtualMachine:
        return type(vm_class.__name__, (vm_class, _recorded_class(VirtualMachine)), named)
    methods = {
        "__getitem__": _getitem(vm_class),
        "__reduce_ex__": _reduce_ex,
        "save_function": _save_function(vm_class),
        "set_instrument": _set_instrument,
        "time_evaluator": _time_evaluator(vm_class),
    }
    return type(vm_class.__name__, (vm_class,), {**named, **methods})


def _getitem(vm_class: Any) -> Any:
    @functools.wraps(vm_class.__getitem__)
    def getitem(vm: Any, key: str) -> Any:
        wrappers = _wrappers[vm]
        if key in wrappers:
            return wrappers[key]
        function = vm_class.__getitem__(vm, key)  # raises what TVM raises for a missing name
        return function if key in NOT_INVOCATIONS else _wrapper(vm, _attachments[vm], key)

    return getitem


def _reduce_ex(vm: Any, protocol: SupportsIndex) -> Any:
    """A copy of the VM is of the VM's own class: nothing would ever detach it."""
    made = object.__reduce_ex__(vm, protocol)
    return reduced_as(_attachments[vm].vm_class, made, (type(vm),))


def reduced_as(own: type, made: Any, ours: tuple[type, ...]) -> Any:
    """What ``__reduce_ex__`` made, with ``own`` in the place of the classes that are ``ours``."""
    if isinstance(made, str):
        return made
    make, arguments, *rest = made
    kept = (own if any(it is each for each in ours) else it for it in arguments)
    return (make, tuple(kept), *rest)


def _save_function(vm_class: Any) -> Any:
    @functools.wraps(vm_class.save_function)
    def save_function(vm: Any, func_name: str, saved_name: str, *args: Any, **kwargs: Any) -> None:
        vm_class.save_function(vm, func_name, saved_name, *args, **kwargs)
        _wrappers[vm].pop(saved_name, None)  # it may stand for an older one

    return save_function


def _set_instrument(vm: Any, instrument: Any) -> None:
    attachment = _attachments[vm]
    if attachment.recordings > len(attachment.yielding):
        raise InstrumentError(
            "this VirtualMachine is being recorded, and a VM holds only one instrument: "
            "call set_instrument() before or after the recording"
        )
    if instrument is not None:
        for give_up in tuple(attachment.yielding):
            give_up(vm)
        vm.set_instrument(instrument)  # its class is its own again


def _time_evaluator(vm_class: Any) -> Any:
    """TVM's evaluator looks its function up by name: in the VM or, without one, in the globals."""
    signature = inspect.signature(vm_class.time_evaluator)
    getitem = _getitem(vm_class)

    @functools.wraps(vm_class.time_evaluator)
    def time_evaluator(vm: Any, *args: Any, **kwargs: Any) -> Any:
        import tvm_ffi

        try:
            arguments = signature.bind(vm, *args, **kwargs).arguments
            wrapper = getitem(arguments.pop("self"), arguments.pop("func_name"))
        except (AttributeError, TypeError):  # a global function, or TVM's own error
            return vm_class.time_evaluator(vm, *args, **kwargs)
        name = f"relax_trace.evaluated.{next(_evaluator_numbers)}"
        tvm_ffi.register_global_func(name, wrapper)
        try:
            return type(vm.module).time_evaluator(None, name, **arguments)
        finally:
            tvm_ffi.registry.remove_global_func(name)  # the evaluator holds the function itself

    return time_evaluator


def _watch_instruments(module: Any) -> None:
    """Remember which VMs have an instrument of the user's: the slot has no getter."""
    vm_class = module.VirtualMachine
    original = vm_class.set_instrument

    @functools.wraps(original)
    def set_instrument(vm: Any, instrument: Any) -> None:
        original(vm, instrument)
        (_instrumented_by_user.discard if instrument is None else _instrumented_by_user.add)(vm)

    vm_class.set_instrument = set_instrument


def _after_fork() -> None:
    """In a child process: a thread that the child lacks may have held the lock."""
    global _lock  # noqa: PLW0603
    _lock = threading.RLock()


os.register_at_fork(after_in_child=_after_fork)
after_import("tvm.runtime.vm", _watch_instruments)
