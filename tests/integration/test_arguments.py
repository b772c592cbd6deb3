"""The recorder's encoding of arguments, word by word against its twin in Python."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from math import prod
from typing import Any

import numpy as np
import pytest
import tvm
import tvm_ffi
from tvm import relax
from tvm.script import ir as I  # noqa: N812
from tvm.script import relax as R  # noqa: N812

import relax_trace
from relax_trace import Trace
from unit.encoding import TUPLE_DEPTH_MOST, WORDS_MOST, device_of, text_of, words_of

ARGUMENTS_MOST = 4
DTYPES = (
    "bfloat16 bool boolx4 float16 float32 float32x8 float64 int1 int3 int4 int8 int8x4 int16 int32 "
    "int64 uint4 uint8 uint16x2 uint32 uint64 handle float4_e2m1fn float4_e2m1fnx2 float6_e2m3fn "
    "float6_e3m2fn float8_e3m4 float8_e4m3 float8_e4m3b11fnuz float8_e4m3fn float8_e4m3fnuz "
    "float8_e5m2 float8_e5m2fnuz float8_e8m0fnu"
).split()
EXTREMES = (0, 1, -1, 2**31, 2**32, 2**62, 2**63 - 1, -(2**63))


@I.ir_module
class Sinks:
    """Functions that hand so many arguments on to the global function ``test.sink``."""

    @R.function(pure=False)
    def sink0() -> R.Object:
        return R.call_packed("test.sink", ty_args=(R.Object,))

    @R.function(pure=False)
    def sink1(a: R.Object) -> R.Object:
        return R.call_packed("test.sink", a, ty_args=(R.Object,))

    @R.function(pure=False)
    def sink2(a: R.Object, b: R.Object) -> R.Object:
        return R.call_packed("test.sink", a, b, ty_args=(R.Object,))

    @R.function(pure=False)
    def sink3(a: R.Object, b: R.Object, c: R.Object) -> R.Object:
        return R.call_packed("test.sink", a, b, c, ty_args=(R.Object,))

    @R.function(pure=False)
    def sink4(a: R.Object, b: R.Object, c: R.Object, d: R.Object) -> R.Object:
        return R.call_packed("test.sink", a, b, c, d, ty_args=(R.Object,))


@contextmanager
def global_function(name: str, function: Any) -> Iterator[None]:
    """Have ``function`` in TVM's global registry meanwhile."""
    tvm_ffi.register_global_func(name, function)
    try:
        yield
    finally:
        tvm_ffi.registry.remove_global_func(name)


@pytest.fixture(scope="module")
def vm() -> Iterator[relax.VirtualMachine]:
    """A VM of ``Sinks``."""
    with global_function("test.sink", lambda *arguments: None):
        yield relax.VirtualMachine(tvm.compile(Sinks, target="llvm"), tvm.cpu())


def recorded(vm: relax.VirtualMachine, calls: Sequence[Sequence[Any]]) -> Trace:
    """The calls of ``test.sink`` with each of these argument lists."""
    with relax_trace.record(vm) as recording:
        for arguments in calls:
            vm[f"sink{len(arguments)}"](*arguments)
    trace = recording.trace
    assert trace.losses == relax_trace.Losses()
    sinks = trace.filter(name="test.sink")
    assert len(sinks) == len(calls)
    return sinks


def words_by_call(trace: Trace) -> list[list[int]]:
    """The words of each call's signature."""
    signatures = trace.signatures
    bounds = signatures.offsets
    return [signatures.words[bounds[i] : bounds[i + 1]].tolist() for i in trace.signature.tolist()]


def texts_by_call(trace: Trace) -> list[str]:
    """The text of each call's signature."""
    texts = [text.decode() for text in trace.signatures.texts]
    return [texts[i] for i in trace.signature.tolist()]


class Values:
    """Random arguments, the same for the same seed."""

    def __init__(self, seed: int) -> None:
        self.chance = random.Random(seed)

    def tensor(self) -> Any:
        """A tensor of rank 0 to 8, small or without elements but of huge dimensions."""
        dtype, device = self.chance.choice(DTYPES), tvm.cpu(self.chance.randrange(4))
        shape = self.chance.choices((1, 1, 2, 3, 5, 64), k=self.chance.randrange(9))
        if self.chance.random() < 0.3 or prod(shape) > 4096:
            shape = [self.chance.choice((1, 7, 2**20, 2**33, 2**62)) for _ in shape] + [0]
            self.chance.shuffle(shape)
            shape = shape[:8] if 0 in shape[:8] else [0]
        return tvm.runtime.empty(shape, dtype, device)

    def shape(self) -> tvm_ffi.Shape:
        """A shape with the largest and smallest numbers in it."""
        return tvm_ffi.Shape(self.chance.choices(EXTREMES, k=self.chance.randrange(10)))

    def other(self) -> Any:
        """A value that is neither tensor, shape nor tuple."""
        others = ("", "short", "a longer text than fits", None, 7, -1, True, 2.5, {"a": 1})
        return self.chance.choice([*others, tvm.cpu(2)])

    def tuple(self, depth: int) -> Any:
        """A tuple, now and then as the list type that can be changed."""
        values = [self.value(depth + 1) for _ in range(self.chance.randrange(5))]
        return self.chance.choice((tuple, tuple, tuple, tvm_ffi.List))(values)

    def value(self, depth: int = 0) -> Any:
        """Any of these."""
        makers = [self.tensor, self.tensor, self.shape, self.other]
        if depth < 12:
            makers += [lambda: self.tuple(depth)] * 2
        return self.chance.choice(makers)()

    def nested(self) -> Any:
        """A tuple in a tuple in a tuple, up to twelve of them, with something beside each."""
        value = self.value()
        for _ in range(self.chance.randrange(13)):
            elements = [value, *(self.value(11) for _ in range(self.chance.randrange(3)))]
            self.chance.shuffle(elements)
            value = tuple(elements)
        return value

    def arguments(self) -> list[Any]:
        """A list of arguments."""
        count = self.chance.randrange(ARGUMENTS_MOST + 1)
        return [self.chance.choice((self.value, self.nested))() for _ in range(count)]


def test_random_arguments_are_encoded_as_the_twin_does(vm: relax.VirtualMachine) -> None:
    """Six hundred random calls, with repetitions, have the twin's words, texts and devices."""
    values = Values(seed=3)
    calls = [values.arguments() for _ in range(400)]
    calls += values.chance.choices(calls, k=200)
    trace = recorded(vm, calls)
    expected = [words_of("test.sink", arguments) for arguments in calls]
    assert words_by_call(trace) == expected
    assert len(trace.signatures) == len({(), *map(tuple, expected)})  # each is kept once
    assert texts_by_call(trace) == [text_of("test.sink", arguments) for arguments in calls]
    devices = [str(trace.devices[i]) if i >= 0 else None for i in trace.device.tolist()]
    assert devices == [device_of("test.sink", arguments) for arguments in calls]
    assert 300 < len(trace.signatures)
    assert max(map(len, expected)) < WORDS_MOST


def test_every_dtype_has_its_code_and_tvms_name(vm: relax.VirtualMachine) -> None:
    """Each dtype that TVM can make, and numpy's complex ones, alone and in a tuple."""
    tensors = [tvm.runtime.empty((2, 3), dtype) for dtype in DTYPES]
    tensors += [tvm_ffi.from_dlpack(np.zeros((2, 3), dtype)) for dtype in ("complex64", "complex128")]
    trace = recorded(vm, [[tensor, (tensor,)] for tensor in tensors])
    assert texts_by_call(trace) == [f"{dtype}[2, 3], ({dtype}[2, 3])" for dtype in (*DTYPES, "complex64", "complex128")]
    assert words_by_call(trace) == [words_of("", [tensor, (tensor,)]) for tensor in tensors]


def test_tuples_are_followed_for_eight_levels(vm: relax.VirtualMachine) -> None:
    """The ninth level says only how many elements it has, whatever they are."""
    value: Any = tvm.runtime.empty((2,), "int8")
    calls = []
    for depth in range(1, 13):
        value = (value, None)
        calls.append([value])
    trace = recorded(vm, calls)
    assert words_by_call(trace) == [words_of("", arguments) for arguments in calls]
    deepest = "(" * TUPLE_DEPTH_MOST + "{}" + ", object)" * TUPLE_DEPTH_MOST
    texts = texts_by_call(trace)
    assert texts[7:] == [deepest.format("int8[2]")] + [deepest.format("(2 elements)")] * 4


def test_what_does_not_fit_is_cut_off_behind_an_ellipsis(vm: relax.VirtualMachine) -> None:
    """Arguments that just fit, and that just don't, alone and after and before others."""
    tensor = tvm.runtime.empty((1,), "float32")
    room = WORDS_MOST
    ones = [tvm.runtime.empty((1,) * rank, "int8") for rank in (room - 2, room - 1, room + 500)]
    shapes = [tvm_ffi.Shape([5] * size) for size in (room - 1, room, room + 1, 3 * room)]
    nothings = [(None,) * count for count in (room - 2, room - 1, room, 5000, 70_000)]
    tensors = [(tensor,) * count for count in (682, 683, 5000)]
    mixed = [((tensor, None, "a", (3, shapes[0]), tensor),) * 100, (tensors[0], tensors[1], tensor)]
    calls = [[value] for value in [*ones, *shapes, *nothings, *tensors, *mixed]]
    calls += [[tensor, *arguments] for arguments in calls]
    calls += [[*arguments, tensor, (tensor, None)] for arguments in calls]
    trace = recorded(vm, calls)
    expected = [words_of("", arguments) for arguments in calls]
    assert words_by_call(trace) == expected
    assert {len(words) for words in expected} >= {room, room + 1}
    assert max(map(len, expected)) == room + 1
    texts = [text.replace("float32[1], " * 680, "680 x float32[1], ") for text in texts_by_call(trace)]
    assert texts[12:15] == []
