"""The recorder's encoding of arguments, word by word against its twin in Python."""
# ruff: noqa: N805, N812 - TVMScript's functions take tensors, and its customary names are I and R

from __future__ import annotations

import random
from collections.abc import Sequence
from math import prod
from typing import Any

import numpy as np
import pytest
import tvm
import tvm_ffi
from tvm import relax
from tvm.script import ir as I
from tvm.script import relax as R

import relax_trace
from relax_trace import Trace
from unit.encoding import TENSOR, TUPLE_DEPTH_MOST, WORDS_MOST, device_of, text_of, words_of

SINK = "relax_trace_tests.sink"
ARGUMENTS_MOST = 4
_FLOAT8 = ("e3m4", "e4m3", "e4m3b11fnuz", "e4m3fn", "e4m3fnuz", "e5m2", "e5m2fnuz", "e8m0fnu")
DTYPES = (
    *(f"{sign}int{bits}" for sign in ("", "u") for bits in (4, 8, 16, 32, 64)),
    *("int1", "int3", "bool", "handle", "bfloat16", "float16", "float32", "float64"),
    *(f"float8_{variant}" for variant in _FLOAT8),
    *("float6_e2m3fn", "float6_e3m2fn", "float4_e2m1fn"),
    *("int8x4", "uint16x2", "boolx4", "float32x8", "float4_e2m1fnx2"),
)
EXTREMES = (0, 1, -1, 2**31, 2**32, 2**62, 2**63 - 1, -(2**63))


@I.ir_module
class _Sinks:
    @R.function(pure=False)
    def sink0() -> R.Object:
        return R.call_packed("relax_trace_tests.sink", ty_args=(R.Object,))

    @R.function(pure=False)
    def sink1(a: R.Object) -> R.Object:
        return R.call_packed("relax_trace_tests.sink", a, ty_args=(R.Object,))

    @R.function(pure=False)
    def sink2(a: R.Object, b: R.Object) -> R.Object:
        return R.call_packed("relax_trace_tests.sink", a, b, ty_args=(R.Object,))

    @R.function(pure=False)
    def sink3(a: R.Object, b: R.Object, c: R.Object) -> R.Object:
        return R.call_packed("relax_trace_tests.sink", a, b, c, ty_args=(R.Object,))

    @R.function(pure=False)
    def sink4(a: R.Object, b: R.Object, c: R.Object, d: R.Object) -> R.Object:
        return R.call_packed("relax_trace_tests.sink", a, b, c, d, ty_args=(R.Object,))


@tvm_ffi.register_global_func(SINK, override=True)
def _sink(*arguments: Any) -> None:
    """Take anything, and keep nothing."""


@pytest.fixture(scope="module")
def vm() -> relax.VirtualMachine:
    """A VM whose functions ``sink0``, ``sink1``, … take so many arguments."""
    return relax.VirtualMachine(tvm.compile(_Sinks, target="llvm"), tvm.cpu())


def recorded(vm: relax.VirtualMachine, calls: Sequence[Sequence[Any]]) -> Trace:
    """The calls of ``SINK`` with each of these argument lists."""
    with relax_trace.record(vm) as recording:
        for arguments in calls:
            vm[f"sink{len(arguments)}"](*arguments)
    trace = recording.trace
    assert trace.losses == relax_trace.Losses()
    sinks = trace.filter(name=SINK)
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
    expected = [words_of(SINK, arguments) for arguments in calls]
    assert words_by_call(trace) == expected
    assert len(trace.signatures) == len({(), *map(tuple, expected)})  # each is kept once
    assert texts_by_call(trace) == [text_of(SINK, arguments) for arguments in calls]
    devices = [str(trace.devices[i]) if i >= 0 else None for i in trace.device.tolist()]
    assert devices == [device_of(SINK, arguments) for arguments in calls]
    assert 300 < len(trace.signatures)
    assert max(map(len, expected)) < WORDS_MOST


def test_every_dtype_has_its_code_and_tvms_name(vm: relax.VirtualMachine) -> None:
    """Each dtype that TVM can make, alone and in a tuple; and one of numpy's that it can't."""
    tensors = [tvm.runtime.empty((2, 3), dtype) for dtype in DTYPES]
    foreign = tvm_ffi.from_dlpack(np.zeros((2, 3), np.complex64))
    trace = recorded(vm, [*([tensor, (tensor,)] for tensor in tensors), [foreign]])
    texts = [f"{dtype}[2, 3], ({dtype}[2, 3])" for dtype in DTYPES]
    assert texts_by_call(trace) == [*texts, "complex64[2, 3]"]
    words = [words_of(SINK, [tensor, (tensor,)]) for tensor in tensors]
    complex64 = [TENSOR << 56 | 2 << 32 | 1 << 16 | 64 << 8 | 5, 1 << 32, 2, 3]
    assert words_by_call(trace) == [*words, complex64]


def test_tuples_are_followed_for_eight_levels(vm: relax.VirtualMachine) -> None:
    """The ninth level says only how many elements it has, whatever they are."""
    value: Any = tvm.runtime.empty((2,), "int8")
    calls = []
    for _ in range(12):
        value = (value, None)
        calls.append([value])
    trace = recorded(vm, calls)
    assert words_by_call(trace) == [words_of(SINK, arguments) for arguments in calls]
    deepest = "(" * TUPLE_DEPTH_MOST + "{}" + ", object)" * TUPLE_DEPTH_MOST
    texts = texts_by_call(trace)
    assert texts[7:] == [deepest.format("int8[2]")] + [deepest.format("(2 elements)")] * 4


def test_what_does_not_fit_is_cut_off_behind_an_ellipsis(vm: relax.VirtualMachine) -> None:
    """Arguments that just fit, and that just don't, alone and after and before others."""
    tensor = tvm.runtime.empty((1,), "float32")
    ranks = (WORDS_MOST - 2, WORDS_MOST - 1, WORDS_MOST + 500)
    sizes = (WORDS_MOST - 2, WORDS_MOST - 1, WORDS_MOST, 70_000)
    shape = tvm_ffi.Shape([5] * sizes[1])
    alone = [
        *(tvm.runtime.empty((1,) * rank, "int8") for rank in ranks),
        *(tvm_ffi.Shape([5] * size) for size in sizes),
        *((None,) * size for size in sizes),
        *((tensor,) * count for count in (682, 683, 5000)),
        ((tensor, None, "a", (3, shape), tensor),) * 100,
        ((tensor, None, (3, tensor)),) * 300,
        ((tensor,) * 682, (tensor,), tensor),
    ]
    calls = [[value] for value in alone]
    calls += [[tensor, *arguments] for arguments in calls]
    calls += [[*arguments, tensor, (tensor, None)] for arguments in calls]
    trace = recorded(vm, calls)
    expected = [words_of(SINK, arguments) for arguments in calls]
    assert words_by_call(trace) == expected
    assert {WORDS_MOST, WORDS_MOST + 1} <= {len(words) for words in expected}
    assert max(map(len, expected)) == WORDS_MOST + 1


def test_text_of_a_cut_signature_says_so(vm: relax.VirtualMachine) -> None:
    """Three dots stand in a tuple where its elements end early; what fits is spelt in full."""
    tensor = tvm.runtime.empty((1,), "float32")
    calls = [[(tensor,) * 682], [(tensor,) * 683], [(None,) * 9000], [tensor, (tensor,) * 700]]
    texts = texts_by_call(recorded(vm, calls))
    ones = ["float32[1]"] * 682
    assert texts == [
        f"({', '.join(ones)})",
        f"({', '.join(ones)}, ...)",
        f"({'object, ' * 2047}...)",
        f"float32[1], ({', '.join(ones[1:])}, ...)",
    ]


def test_text_says_that_whole_arguments_were_cut_off(vm: relax.VirtualMachine) -> None:
    """Three dots stand at the end where no word of a later tensor found room."""
    tensor = tvm.runtime.empty((1,), "float32")
    (text,) = texts_by_call(recorded(vm, [[(tensor,) * 682, tensor]]))
    assert text == f"({', '.join(['float32[1]'] * 682)}), ..."
