"""Load the native recorder into this process and give its functions their Python names."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from ..errors import RecorderError
from .dumps import VERSION

LIBRARY = Path(__file__).with_name("librelax_trace_recorder.so")


@dataclass(frozen=True)
class Native:
    """The recorder's functions, as recorder.c lists them; ticks are those of the op clock."""

    now: Callable[[], int]
    set_limit: Callable[[int, bool], None]
    begin: Callable[[], None]
    open: Callable[[], int]
    wrap: Callable[[int, Any, str], Any]
    want: Callable[[int, Any, int, int, int, int, int, int, int, str], None]
    unwant: Callable[[int, Any, int], None]
    set_filter: Callable[..., None]
    set_notify: Callable[[int], None]
    set_context_hook: Callable[[Callable[[], bytes] | None], None]
    tag: Callable[[int, int, int, int], bytes]
    state: Callable[[int], int]
    dump: Callable[[int, int, int, bool], bytes]


@cache
def load() -> Native:
    """The recorder of this process, loaded at the first call.

    Raises ``RecorderError`` if the library is missing, was built for another machine, or does not
    belong to this version of relax_trace.
    """
    import tvm_ffi  # its library has to be there before ours can be linked against it

    _open_library(LIBRARY)
    functions = {
        name: tvm_ffi.get_global_func(f"relax_trace.recorder.{name}")
        for name in ("version", *Native.__dataclass_fields__)
    }
    version = functions.pop("version")()
    if version != VERSION:
        raise RecorderError(
            f"the recorder {LIBRARY} writes format {version}, this relax_trace reads {VERSION}: "
            "install relax-trace anew"
        )
    return Native(**functions)


def _open_library(path: Path) -> None:
    if not path.exists():
        raise RecorderError(
            f"the native recorder is missing: no file {path}; "
            "install relax-trace with pip, which builds it (a C compiler is all it needs)"
        )
    try:
        ctypes.CDLL(str(path))
    except OSError as error:
        raise RecorderError(
            f"the native recorder can't be loaded ({error}); was it built for another machine? "
            "Install relax-trace anew on this one"
        ) from None
