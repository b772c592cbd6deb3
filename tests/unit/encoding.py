"""A slow and obvious twin of the recorder's encoder: a call's arguments as words, text and device.

It takes the values themselves, as a Python instrument gets them. The words are described in
relax_trace/signature.py; how much of a call is shown, in recorder/encode.h and names.h.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import tvm_ffi

WORDS_MOST = 2048  # more are cut off, behind one ELLIPSIS
TUPLE_DEPTH_MOST = 8  # deeper tuples only say how many elements they have
TENSOR, SHAPE, TUPLE, INT, DTYPE, RESULT, ELLIPSIS, OBJECT = range(1, 9)

SHOW_SCALARS = {"vm.builtin.alloc_storage", "vm.builtin.alloc_tensor"}
SHOW_RESULT = {"vm.builtin.alloc_tensor", "vm.builtin.to_device"}
HIDE_TUPLES = {"vm.builtin.tuple_getitem"}


def words_of(name: str, arguments: Sequence[Any], result: Any = None) -> list[int]:
    """The words that the recorder writes for a call."""
    encoder = _Encoder(name in SHOW_SCALARS, name in HIDE_TUPLES)
    for argument in arguments:
        encoder.value(argument, 0)
    if name in SHOW_RESULT and result is not None:
        encoder.scalars = False
        encoder.put(_tag(RESULT))
        encoder.value(result, 0)
    return encoder.words


def text_of(name: str, arguments: Sequence[Any]) -> str:
    """Classic spelling of a call whose words were not cut off."""
    spelt = [_spelt(name, argument, 0) for argument in arguments]
    shown = [(tensor, text) for tensor, text in spelt if text]
    if any(tensor for tensor, _ in shown):
        shown = [(tensor, text) for tensor, text in shown if tensor]
    return ", ".join(text for _, text in shown)


def device_of(name: str, arguments: Sequence[Any], result: Any = None) -> str | None:
    """Where the last tensor argument lies, or else the result, as ``"cpu0"``."""
    hidden = name in HIDE_TUPLES
    tensors = [tensor for argument in arguments for tensor in _tensors(argument, hidden, 0)]
    if not tensors and name in SHOW_RESULT:
        tensors = _tensors(result, hidden, 0)
    return device_name(tensors[-1]) if tensors else None


def device_name(tensor: Any) -> str:
    """The device of a tensor, as ``"cpu0"``."""
    return str(tensor.device).replace(":", "")


def _is_tuple(value: Any) -> bool:
    return isinstance(value, tuple | list | tvm_ffi.Array | tvm_ffi.List) and not isinstance(
        value, tvm_ffi.Shape
    )


def _tensors(value: Any, hidden: bool, depth: int) -> list[Any]:
    if isinstance(value, tvm_ffi.Tensor):
        return [value]
    if not _is_tuple(value) or hidden or depth >= TUPLE_DEPTH_MOST:
        return []
    return [tensor for element in value for tensor in _tensors(element, hidden, depth + 1)]


def _spelt(name: str, value: Any, depth: int) -> tuple[bool, str]:
    """Whether the value has a tensor, and its text; none if it is not shown."""
    if isinstance(value, tvm_ffi.Tensor):
        return True, f"{value.dtype}[{', '.join(map(str, value.shape))}]"
    if isinstance(value, tvm_ffi.Shape):
        return False, f"shape[{', '.join(map(str, value))}]"
    if _is_tuple(value):
        if name in HIDE_TUPLES or depth >= TUPLE_DEPTH_MOST:
            return False, f"({len(value)} elements)"
        elements = [_spelt(name, element, depth + 1) for element in value]
        text = ", ".join(text or "object" for _, text in elements)
        return any(tensor for tensor, _ in elements), f"({text})"
    return False, str(int(value)) if name in SHOW_SCALARS and isinstance(value, int) else ""


def _tag(kind: int, count: int = 0, info: int = 0) -> int:
    return kind << 56 | count << 32 | info


class _Encoder:
    """Writes words until there is no room for the next value."""

    def __init__(self, scalars: bool, hide_tuples: bool) -> None:
        self.scalars, self.hide_tuples = scalars, hide_tuples
        self.words: list[int] = []
        self.full = False

    def put(self, *words: int, room: int = 0) -> None:
        """Append ``words`` if there is room for them, or for ``room`` words; else an ellipsis."""
        if self.full:
            return
        if len(self.words) + max(len(words), room) > WORDS_MOST:
            self.full, words = True, (_tag(ELLIPSIS),)
        self.words += [word % 2**64 for word in words]

    def value(self, value: Any, depth: int) -> None:
        """Append a value, if it is one that is shown."""
        if isinstance(value, tvm_ffi.Tensor):
            dtype, device = value.dtype, value.device
            info = dtype.type_code | dtype.bits << 8 | dtype.lanes << 16
            where = device.dlpack_device_type() << 32 | device.index
            self.put(_tag(TENSOR, len(value.shape), info), where, *value.shape)
        elif isinstance(value, tvm_ffi.Shape):
            self.put(_tag(SHAPE, len(value)), *value)
        elif _is_tuple(value):
            self.tuple(value, depth)
        elif self.scalars and isinstance(value, int):
            self.put(_tag(INT), int(value))

    def tuple(self, value: Any, depth: int) -> None:
        """Append a tuple; every element has its place, also one that is not shown."""
        self.put(_tag(TUPLE, len(value)), room=2)
        if self.hide_tuples or depth >= TUPLE_DEPTH_MOST:
            self.put(_tag(ELLIPSIS))
            return
        for element in value:
            filled = len(self.words)
            self.value(element, depth + 1)
            if len(self.words) == filled:
                self.put(_tag(OBJECT))
