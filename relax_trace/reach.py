"""Every VirtualMachine of the process: those there are, and a word when there is one more.

TVM's class is told to report here as soon as it is imported. A VM that was made before that is
found among the objects of the garbage collector or, if these were frozen, once it is used.
"""

from __future__ import annotations

import functools
import gc
import logging
import sys
import weakref
from collections.abc import Callable
from types import ModuleType
from typing import Any

from .import_hook import after_import

_log = logging.getLogger("relax_trace")
# In the order in which they were made. Not a WeakSet, for it has none, and iterating over it fails
# where another thread makes a VM meanwhile.
_known: dict[weakref.ref[Any], None] = {}
_listeners: list[Callable[[Any], None]] = []
_made_before_us = "tvm.runtime.vm" in sys.modules


def listen(listener: Callable[[Any], None]) -> None:
    """Have ``listener(vm)`` called for every VM of the process, now and later."""
    _listeners.append(listener)
    for vm in every_vm():
        _try_to_tell(listener, vm)


def forget(listener: Callable[[Any], None]) -> None:
    """Undo :func:`listen`."""
    _listeners.remove(listener)


def every_vm() -> list[Any]:
    """The VMs of the process that are known of."""
    global _made_before_us  # noqa: PLW0603
    if _made_before_us:
        from tvm.runtime.vm import VirtualMachine

        found = [vm for vm in gc.get_objects() if issubclass(type(vm), VirtualMachine)]
        for vm in found:
            if "module" in vars(vm):
                _know(vm)
        _made_before_us = False
    return [vm for known in tuple(_known) if (vm := known()) is not None]


def vm_of_module(module: Any) -> Any | None:
    """The VirtualMachine around a VM's module, if there is one."""
    return next((vm for vm in every_vm() if vm.module.same_as(module)), None)


def _know(vm: Any) -> None:
    _known[weakref.ref(vm, _gone)] = None


def _gone(known: weakref.ref[Any]) -> None:
    _known.pop(known, None)


def _tell(vm: Any) -> None:
    _know(vm)
    for listener in tuple(_listeners):
        _try_to_tell(listener, vm)


def _try_to_tell(listener: Callable[[Any], None], vm: Any) -> None:
    try:
        listener(vm)
    except Exception:  # it is the user's own call that we are in
        _log.exception("a VirtualMachine could not be recorded")


def _watch(module: ModuleType) -> None:
    vm_class: Any = module.VirtualMachine
    make = vm_class.__init__

    @functools.wraps(make)
    def init(vm: Any, *args: Any, **kwargs: Any) -> None:
        make(vm, *args, **kwargs)
        _tell(vm)

    vm_class.__init__ = init
    for name in ("__getitem__", "invoke_closure", "invoke_stateful", "time_evaluator"):
        setattr(vm_class, name, _noticed(vm_class, name))


def _noticed(vm_class: Any, name: str) -> Callable[..., Any]:
    """The method of a VM that may not be known of yet."""
    method = getattr(vm_class, name)

    @functools.wraps(method)
    def call(vm: Any, *args: Any, **kwargs: Any) -> Any:
        if not _listeners or weakref.ref(vm) in _known:
            return method(vm, *args, **kwargs)
        before = type(vm)
        _tell(vm)
        if type(vm) is before:
            return method(vm, *args, **kwargs)
        # It is of another class by now: the first that was put over TVM's has its turn, after the
        # user's own.
        order = type(vm).__mro__
        over = [one for one in order[: order.index(vm_class)] if one not in before.__mro__]
        first = next((one for one in over if name in vars(one)), vm_class)
        return getattr(first, name)(vm, *args, **kwargs)

    return call


after_import("tvm.runtime.vm", _watch)
