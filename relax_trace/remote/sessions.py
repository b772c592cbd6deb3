"""The RPC sessions of this process: which one a remote VirtualMachine belongs to, and its address.

TVM's class is told to report here as soon as it is imported; a session that was made before that
is found among the objects of the garbage collector.
"""

from __future__ import annotations

import functools
import gc
import weakref
from types import ModuleType
from typing import Any

from ..errors import RecorderError
from ..import_hook import after_import

_known: weakref.WeakValueDictionary[int, Any] = weakref.WeakValueDictionary()  # by TVM's number
_addresses: dict[int, str] = {}
# A VM holds its connection, but not the session that stands for it: the program may have let it go.
_of_vm: weakref.WeakKeyDictionary[Any, Any] = weakref.WeakKeyDictionary()


def is_remote(vm: Any) -> bool:
    """Whether this VirtualMachine runs behind RPC."""
    return bool(vm.module.kind == "rpc")


def session_of(vm: Any) -> Any:
    """The ``tvm.rpc.RPCSession`` behind which a VM runs.

    Raises ``RecorderError`` where it is gone: TVM has no other way to its server.
    """
    from tvm.rpc import client

    if vm in _of_vm:
        return _of_vm[vm]
    number = int(client._ffi_api.SessTableIndex(vm.module))
    session = _known.get(number)
    if session is None:
        for found in gc.get_objects():
            if issubclass(type(found), client.RPCSession):
                _known[found._tbl_index] = found
        session = _known.get(number)
    if session is None:
        raise RecorderError(
            "the RPC session of this VirtualMachine is gone: keep what rpc.connect() returned"
        )
    return session


def name_of(session: Any) -> str:
    """``host:port`` of its server; where that isn't known, a name by its number."""
    return _addresses.get(session._tbl_index) or f"rpc{session._tbl_index}"


def _watch_vms(module: ModuleType) -> None:
    vm_class: Any = module.VirtualMachine
    make = vm_class.__init__

    @functools.wraps(make)
    def init(vm: Any, rt_mod: Any, device: Any, *args: Any, **kwargs: Any) -> None:
        for each in device if isinstance(device, list | tuple) else (device,):
            session = getattr(each, "_rpc_sess", None)
            if session is not None:
                _of_vm[vm] = session
        make(vm, rt_mod, device, *args, **kwargs)

    vm_class.__init__ = init


def _watch(module: ModuleType) -> None:
    client: Any = module
    make, connect = client.RPCSession.__init__, client._ffi_api.Connect

    @functools.wraps(make)
    def init(session: Any, *args: Any, **kwargs: Any) -> None:
        make(session, *args, **kwargs)
        _known[session._tbl_index] = session

    def connected(host: str, port: int, *args: Any) -> Any:
        made = connect(host, port, *args)
        _addresses[client._ffi_api.SessTableIndex(made)] = f"{host}:{port}"
        return made

    client.RPCSession.__init__ = init
    client._ffi_api.Connect = connected


after_import("tvm.rpc.client", _watch)
after_import("tvm.runtime.vm", _watch_vms)
