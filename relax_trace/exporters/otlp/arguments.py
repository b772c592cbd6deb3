"""The argument texts of all signatures, taken apart into one string an argument."""

from __future__ import annotations

import numpy as np

from ...ragged import Index, Ragged, concatenate, offsets_of
from ..templates import shown_all

# What each character does to the depth of brackets, which enclose commas of their own.
_STEP = np.zeros(256, np.int8)
_STEP[[ord("("), ord("[")]] = 1
_STEP[[ord(")"), ord("]")]] = -1


def split_arguments(texts: Ragged) -> tuple[Ragged, Index]:
    """``(pieces, first)``: those of text ``i`` are ``pieces[first[i]]`` to ``first[i + 1]``.

    Of ``float32[1, 64], (int64[], int64[])`` they are two; of an empty text none.
    """
    table, index = shown_all(texts)
    texts = table if len(table) == len(texts) else concatenate(len(index), [(table, index)])
    begin, end = texts.offsets[:-1], texts.offsets[1:]
    commas = _outer_commas(texts)
    some = end > begin
    starts = np.sort(np.concatenate([begin[some], commas + 2]))
    ends = np.sort(np.concatenate([end[some], commas]))
    keep = np.ones(len(texts.data), bool)
    keep[commas] = keep[commas + 1] = False
    owner = np.searchsorted(texts.offsets, commas, "right") - 1
    counts = np.bincount(owner, minlength=len(texts)) + some
    return Ragged(texts.data[keep], offsets_of(ends - starts)), offsets_of(counts)


def _outer_commas(texts: Ragged) -> Index:
    """Where the commas between arguments are; each has a space after it."""
    depth = np.cumsum(_STEP[texts.data], dtype=np.int8)
    # A text that was cut leaves brackets open: each text counts from its own beginning.
    before = np.append(np.int8(0), depth)[texts.offsets[:-1]]
    depth -= np.repeat(before, texts.lengths)
    found: Index = np.flatnonzero((texts.data == ord(",")) & (depth == 0))
    return found
