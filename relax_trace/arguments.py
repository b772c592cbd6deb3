"""Arguments of a VM's function, as the VM takes them: here, or on the device behind RPC."""

from __future__ import annotations

import functools
import itertools
import weakref
from collections.abc import Sequence
from typing import Any

from .errors import ModelError
from .import_hook import after_import
from .remote.sessions import is_remote, session_of

_numbers = itertools.count()
_inputs: weakref.WeakKeyDictionary[Any, set[str]] = weakref.WeakKeyDictionary()


def arguments_of(vm: Any, values: Sequence[Any]) -> list[Any]:
    """What ``vm[function]`` takes for these values: tensors, numpy arrays, numbers, tuples of them.

    Behind RPC what isn't there yet is copied to the server's CPU. Raises ``ModelError`` for a tuple
    inside a tuple there: TVM has no way to make one.
    """
    converted: list[Any] = []
    for value in values:
        vm._convert(value, converted)
    if not is_remote(vm):
        return converted
    return [_there(vm, value) for value in converted]


def remote_tuple(vm: Any, values: Sequence[Any]) -> Any:
    """A tuple of tensors for a function of a VM behind RPC, which takes no Python tuple.

    ``vm.set_input("main", relax_trace.remote_tuple(vm, [a, b]))``. Arrays are copied to the
    server's CPU. Raises ``ModelError`` for a tuple inside: TVM has no way to make one there.
    """
    return _tuple(vm, arguments_of(vm, values))


def has_inputs(vm: Any, function: str) -> bool:
    """Whether ``vm.set_input`` was called for this function."""
    return function in _inputs.get(vm, ())


def _there(vm: Any, value: Any) -> Any:
    import tvm

    if isinstance(value, tuple | list):
        return _tuple(vm, [_there(vm, each) for each in value])
    if isinstance(value, tvm.runtime.Tensor) and not _is_there(value):
        session = session_of(vm)
        return tvm.runtime.tensor(value.numpy(), session.cpu())
    return value


def _is_there(value: Any) -> bool:
    from tvm.rpc.base import RPC_SESS_MASK

    return bool(value.device.dlpack_device_type() >= RPC_SESS_MASK)


def _tuple(vm: Any, values: Sequence[Any]) -> Any:
    """An array of tensors, by way of the server's cache of parameters; that is left as it was."""
    import tvm

    if not all(isinstance(value, tvm.runtime.Tensor) for value in values):
        raise ModelError("behind RPC a tuple holds tensors alone: TVM can't make another one there")
    session, prefix = session_of(vm), f"relax_trace.{next(_numbers)}"
    cache = "vm.builtin.tensor_cache."
    for i, value in enumerate(values):
        session.get_function(cache + "update")(f"{prefix}_{i}", value, True)
    made = session.get_function("vm.builtin.param_array_from_cache")(prefix, len(values))
    for i in range(len(values)):
        session.get_function(cache + "remove")(f"{prefix}_{i}")
    return made


def _watch(module: Any) -> None:
    """Remember for which functions there are inputs: a VM has no getter."""
    set_input = module.VirtualMachine.set_input

    @functools.wraps(set_input)
    def watched(vm: Any, func_name: str, *args: Any, **kwargs: Any) -> None:
        set_input(vm, func_name, *args, **kwargs)
        _inputs.setdefault(vm, set()).add(func_name)

    module.VirtualMachine.set_input = watched


after_import("tvm.runtime.vm", _watch)
