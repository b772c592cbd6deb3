"""Have every invocation of a VirtualMachine go through a function of ours; and undo that.

Meanwhile the VM object is of a subclass of its own class, made on the fly, below the one that
recordings put over it: both can come and go in any order.
"""

from __future__ import annotations

import functools
import weakref
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, SupportsIndex

import wrapt

from .. import attach

# Given what is invoked, its name, and its arguments: calls it, and returns its result.
Around = Callable[[str, Callable[..., Any], tuple[Any, ...], dict[str, Any]], Any]


@dataclass
class _Layer:
    """What is put around one VM, as long as that lives."""

    vm_class: type  # the VM's own
    around: Around | None = None  # None: it is taken off

    def call(
        self, name: str, function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        around = self.around
        return around(name, function, args, kwargs) if around else function(*args, **kwargs)


class _Function(wrapt.FunctionWrapper):  # type: ignore[type-arg]
    """A VM's function, of its own type as far as can be seen.

    It keeps the VM alive: whoever holds nothing else still has what is put around it, or not.
    """

    def __init__(self, vm: Any, name: str, function: Any) -> None:
        call = _layers[vm].call
        super().__init__(
            function, lambda function, _, args, kwargs: call(name, function, args, kwargs)
        )
        self._self_vm = vm

    def __eq__(self, other: object) -> bool:
        return bool(self.__wrapped__ == _bare(other))

    def __ne__(self, other: object) -> bool:
        return not self == other

    def __hash__(self) -> int:
        return hash(self.__wrapped__)

    def same_as(self, other: object) -> bool:
        """As TVM's own, which knows nothing of wrappers."""
        function: Any = self.__wrapped__
        return bool(function.same_as(_bare(other)))


def _bare(function: object) -> object:
    return function.__wrapped__ if type(function) is _Function else function


_layers: weakref.WeakKeyDictionary[Any, _Layer] = weakref.WeakKeyDictionary()


def wrap(vm: Any, around: Around) -> None:
    """Have ``around`` called for each invocation of ``vm`` from now on, in the place of another."""

    def put_over(vm_class: type) -> type:
        layer = _layers.setdefault(vm, _Layer(vm_class))
        if layer.around is None:
            layer.vm_class, vm_class = vm_class, _wrapped_class(vm_class)
        layer.around = around
        return vm_class

    attach.change_class(vm, put_over)


def unwrap(vm: Any) -> None:
    """Undo :func:`wrap`, for the functions taken meanwhile too; harmless where there is none."""

    def take_off(vm_class: type) -> type:
        layer = _layers.get(vm)
        if layer is None or layer.around is None:
            return vm_class
        layer.around = None
        return layer.vm_class

    attach.change_class(vm, take_off)


def wrapped_vms() -> list[Any]:
    """The VMs that are wrapped now."""
    known = [vm for known in _layers.keyrefs() if (vm := known()) is not None]
    return [vm for vm in known if _layers[vm].around]


@functools.cache
def _wrapped_class(vm_class: Any) -> type:
    """A subclass of the user's VM class; what that overrides comes first, and reaches ours."""
    from tvm.relax import VirtualMachine

    named = {name: getattr(vm_class, name) for name in ("__module__", "__qualname__", "__doc__")}
    if vm_class is not VirtualMachine:
        return type(vm_class.__name__, (vm_class, _wrapped_class(VirtualMachine)), named)

    class Wrapped(VirtualMachine):  # type: ignore[misc]
        @functools.wraps(VirtualMachine.__getitem__)
        def __getitem__(self, key: str) -> Any:
            function = super().__getitem__(key)
            return function if key in attach.NOT_INVOCATIONS else _Function(self, key, function)

        @functools.wraps(VirtualMachine.invoke_closure)
        def invoke_closure(self, *args: Any, **kwargs: Any) -> Any:
            return _layers[self].call("invoke_closure", super().invoke_closure, args, kwargs)

        @functools.wraps(VirtualMachine.invoke_stateful)
        def invoke_stateful(self, *args: Any, **kwargs: Any) -> Any:
            name = _first(args, kwargs, "invoke_stateful")
            return _layers[self].call(name, super().invoke_stateful, args, kwargs)

        @functools.wraps(VirtualMachine.time_evaluator)
        def time_evaluator(self, *args: Any, **kwargs: Any) -> Any:
            evaluator = super().time_evaluator(*args, **kwargs)
            return _Function(self, _first(args, kwargs, "time_evaluator"), evaluator)

        def __reduce_ex__(self, protocol: SupportsIndex) -> Any:
            """A copy of the VM is of the VM's own class: nothing would ever unwrap it."""
            own = _layers[self].vm_class
            ours = (type(self), _wrapped_class(own))
            return attach.reduced_as(own, super().__reduce_ex__(protocol), ours)

    for name, value in {**named, "__name__": vm_class.__name__}.items():
        setattr(Wrapped, name, value)
    return Wrapped


def _first(args: tuple[Any, ...], kwargs: dict[str, Any], otherwise: str) -> str:
    """The name of the function that TVM's method is asked for; its own error is TVM's to raise."""
    name = args[0] if args else kwargs.get("func_name")
    return name if isinstance(name, str) else otherwise
