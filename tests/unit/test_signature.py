"""Signatures' texts and devices, against a slow and obvious twin."""

from __future__ import annotations

import random

import numpy as np
import pytest

from relax_trace import TraceFileError
from relax_trace.signature import (
    DTYPE,
    ELLIPSIS,
    INT,
    OBJECT,
    RESULT,
    SHAPE,
    TENSOR,
    TUPLE,
    Signatures,
)
from unit.random_traces import random_signature

# What the dtypes of random_signature are called.
_NAMES = {
    0x12002: "float32",
    0x14000: "int64",
    0x10801: "uint8",
    0x10806: "bool",
    0x10101: "bool",
    0x11004: "bfloat16",
    0x40800: "int8x4",
    0x10409: "float8_e4m3b11fnuz",
    0x107FF: "dtype255_7",
    0: "int0",
}


class _Reader:
    """Reads one signature word by word."""

    def __init__(self, words: list[int]) -> None:
        self.words = list(words)
        self.tensors: list[int] = []

    def argument(self) -> tuple[bool, str]:
        """Whether the next argument has a tensor, and its text."""
        tag = self.words.pop(0)
        kind, count, info = tag >> 56, tag >> 32 & 0xFFFFFF, tag & 0xFFFFFFFF
        if kind == TENSOR:
            self.tensors.append(self.words.pop(0))
            return True, f"{_NAMES[info]}[{self.numbers(count)}]"
        if kind == TUPLE:
            return self.tuple_of(count)
        return False, self.without_tensor(kind, count, info)

    def tuple_of(self, count: int) -> tuple[bool, str]:
        """The same of a tuple with ``count`` elements."""
        if self.words and self.words[0] >> 56 == ELLIPSIS:
            self.words.pop(0)
            return False, f"({count} elements)"
        elements = [self.argument() for _ in range(count)]
        return any(tensor for tensor, _ in elements), f"({', '.join(t for _, t in elements)})"

    def without_tensor(self, kind: int, count: int, info: int) -> str:
        """Text of an argument that is neither a tensor nor a tuple."""
        if kind in (SHAPE, INT):
            return f"shape[{self.numbers(count)}]" if kind == SHAPE else self.numbers(1)
        assert kind in (DTYPE, OBJECT)
        return _NAMES[info] if kind == DTYPE else "object"

    def numbers(self, count: int) -> str:
        """The next ``count`` words as signed numbers."""
        values = [self.words.pop(0) for _ in range(count)]
        return ", ".join(str(value - 2**64 if value >> 63 else value) for value in values)


def _described(words: list[int]) -> tuple[str, bool, int, int]:
    """Text, whether there is a tensor, its device, and where the result lies if elsewhere."""
    reader, arguments = _Reader(words), []
    while reader.words and reader.words[0] >> 56 != RESULT:
        arguments.append(reader.argument())
    own, reader.tensors = reader.tensors, []
    if reader.words:
        reader.words.pop(0)
        reader.argument()
    made = reader.tensors
    if any(tensor for tensor, _ in arguments):
        arguments = [argument for argument in arguments if argument[0]]
    text = ", ".join(text for _, text in arguments)
    destination = made[-1] if own and made and made[-1] != own[-1] else -1
    return text, bool(own), (own or made or [-1])[-1], destination


def test_signatures_read_as_the_twin_reads_them() -> None:
    """Two thousand random signatures, with repetitions, have the twin's texts and devices."""
    chance = random.Random(5)
    lists = [random_signature(chance) for _ in range(1000)]
    lists += chance.choices(lists, k=1000)
    signatures = Signatures.from_lists(lists)
    expected = [_described(words) for words in ([], *lists)]
    assert [text.decode() for text in signatures.texts] == [text for text, *_ in expected]
    assert signatures.has_tensor.tolist() == [tensor for _, tensor, *_ in expected]
    assert signatures.devices.tolist() == [device for *_, device, _ in expected]
    assert signatures.destinations.tolist() == [where for *_, where in expected]
    assert len({text for text, *_ in expected}) > 600


def test_classic_spelling_word_by_word() -> None:
    """A tensor, a tuple with a scalar in it, and what a call without a tensor shows."""
    tensor = [TENSOR << 56 | 2 << 32 | 0x12002, 2 << 32 | 1, 1, 64]
    scalar = [TENSOR << 56 | 0x14000, 1 << 32]
    signatures = Signatures.from_lists(
        [
            [*tensor, TUPLE << 56 | 2 << 32, *scalar, INT << 56, 3, INT << 56, 2**64 - 1],
            [SHAPE << 56 | 1 << 32, 64, INT << 56, 0, DTYPE << 56 | 0x12002],
            [*tensor, RESULT << 56, *scalar],
            [TUPLE << 56 | 70000 << 32, ELLIPSIS << 56],
        ]
    )
    assert list(signatures.texts) == [
        b"",
        b"float32[1, 64], (int64[], 3)",
        b"shape[64], 0, float32",
        b"float32[1, 64]",
        b"(70000 elements)",
    ]
    assert signatures.has_tensor.tolist() == [False, True, False, True, False]
    assert signatures.devices.tolist() == [-1, 1 << 32, -1, 2 << 32 | 1, -1]
    assert signatures.destinations.tolist() == [-1, -1, -1, 1 << 32, -1]


def test_taken_signatures_keep_their_words() -> None:
    """``take`` gives the words of the numbers asked for, in that order, as often as asked for."""
    lists = [[INT << 56, 5], [DTYPE << 56 | 0x12002], [SHAPE << 56 | 2 << 32, 3, 4]]
    taken = Signatures.from_lists(lists).take(np.array([3, 0, 1, 3]))
    assert list(taken.texts) == [b"shape[3, 4]", b"", b"5", b"shape[3, 4]"]


@pytest.mark.parametrize(
    "words",
    [
        [TENSOR << 56 | 2 << 32 | 0x12002, 1 << 32, 1],  # a dimension is missing
        [TENSOR << 56],  # the device is missing
        [TENSOR << 56, 2**64 - 1],  # no such device
        [INT << 56],  # the value is missing
        [10 << 56],  # no such kind
        [0],
        [TUPLE << 56 | 1 << 32] * 40,  # deeper than any recorder goes
    ],
)
def test_damaged_words_are_refused(words: list[int]) -> None:
    """Words that can't be a signature raise the one error that readers of files expect."""
    whole = [TENSOR << 56 | 1 << 32 | 0x12002, 1 << 32, 7]
    with pytest.raises(TraceFileError):
        _ = Signatures.from_lists([whole, words, whole]).texts


def test_random_words_are_read_or_refused() -> None:
    """Words at random give texts or ``TraceFileError``, and never anything else."""
    chance = random.Random(6)
    refused = 0
    for _ in range(300):
        words = random_signature(chance) or [INT << 56, 1]
        at = chance.randrange(len(words))
        words[at] ^= 1 << chance.randrange(64)
        try:
            assert len(list(Signatures.from_lists([words[: chance.randrange(99)]]).texts)) == 2
        except TraceFileError:
            refused += 1
    assert refused > 30
