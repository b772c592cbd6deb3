"""Read the recorder's dumps: check them, and keep their tables and records by thread.

The bytes are described in dump.h beside this file. They may come from another machine: every length
is checked against what is there before anything is read or allocated.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from ..errors import TraceFileError
from ..ragged import offsets_of
from ..trace import Losses

VERSION = 3
MAGIC = b"RLXTRACE"

_READING = np.dtype([("ticks", "<u8"), ("monotonic_ns", "<u8"), ("wall_ns", "<u8")])
_HEADER = np.dtype(
    [
        ("magic", "S8"),
        ("version", "<u4"),
        ("flags", "<u4"),
        ("size", "<u8"),
        ("pid", "<u8"),
        ("first", _READING),
        ("now", _READING),
        ("dropped_ops", "<u8"),
        ("dropped_invocations", "<u8"),
        ("lost_signatures", "<u8"),
        ("overwritten_ops", "<u8"),
        ("name_first", "<u4"),
        ("name_count", "<u4"),
        ("signature_first", "<u4"),
        ("signature_count", "<u4"),
        ("name_bytes", "<u8"),
        ("signature_words", "<u8"),
        ("thread_count", "<u8"),
    ]
)
_THREAD = np.dtype([("id", "<u8"), ("name", "S16"), ("invocations", "<u8"), ("ops", "<u8")])
INVOCATION = np.dtype(
    [
        ("start", "<u8"),
        ("end", "<u8"),
        ("wall_ns", "<u8"),
        ("number", "<u4"),
        ("parent", "<u4"),
        ("function", "<u4"),
        ("error", "<u4"),
        ("vm", "<u4"),
        ("flags", "<u4"),
        ("recorded", "<u4"),
        ("first", "<u4"),
        ("last", "<u4"),
        ("tag", "<u4"),
        ("trace_id", "u1", 16),
        ("span_id", ">u8"),
    ]
)
OP = np.dtype(
    [
        ("start", "<u8"),
        ("end", "<u8"),
        ("name", "<u4"),
        ("signature", "<u4"),
        ("invocation", "<u4"),
        ("depth", "<u2"),
        ("flags", "<u2"),
    ]
)
_Piece: TypeAlias = "tuple[NDArray[np.void], list[NDArray[np.void]]]"

_MORE = 1  # header flag: records were left for the next dump


@dataclass
class Dumps:
    """What one process's recorder handed over so far: tables, and each thread's records."""

    pid: int = 0
    first: NDArray[np.void] | None = None
    now: NDArray[np.void] | None = None
    losses: Losses = field(default_factory=Losses)
    losses_before: Losses = field(default_factory=Losses)  # what is no loss of this recording's
    more: bool = False
    name_flags: list[int] = field(default_factory=list)
    name_texts: list[str] = field(default_factory=list)
    words: list[NDArray[np.uint64]] = field(default_factory=list)
    word_counts: list[NDArray[np.uint32]] = field(default_factory=list)
    signature_count: int = 0
    threads: dict[int, ThreadRecords] = field(default_factory=dict)

    @property
    def counts(self) -> tuple[int, int]:
        """How many names and signatures are known: the next dump holds those after them."""
        return len(self.name_flags), self.signature_count

    def tables(self) -> Dumps:
        """The same tables without any records, for a recording that begins now."""
        return Dumps(
            name_flags=self.name_flags.copy(),
            name_texts=self.name_texts.copy(),
            words=self.words.copy(),
            word_counts=self.word_counts.copy(),
            signature_count=self.signature_count,
        )

    def copy(self) -> Dumps:
        """The same, to go on by itself."""
        threads = {tid: records.copy() for tid, records in self.threads.items()}
        return replace(self.tables(), **self._counts(), threads=threads)

    def add_to_ring(self, dump: bytes, limit: int) -> None:
        """Take in the next dump, and keep the newest records: about ``limit`` bytes of them.

        Where some were overwritten since the last dump, what came before that gap goes as well.
        """
        overwritten, older = self.losses.overwritten, list(self._pieces())
        self.add(dump)
        if self.losses.overwritten > overwritten:
            self._forget(older, "overwritten")
        held = sorted(self._pieces(), key=lambda piece: int(piece[0]["end"][-1]))
        excess = sum(piece.nbytes for piece, _ in held) - limit
        sizes = np.cumsum([0, *(piece.nbytes for piece, _ in held)])
        self._forget(held[: int(np.searchsorted(sizes, excess))], "overwritten")

    def add_within(self, dump: bytes, limit: int) -> None:
        """Take in the next dump, but none of its calls once ``limit`` bytes are held."""
        before = {id(piece) for piece, _ in self._pieces()}
        full = sum(piece.nbytes for piece, _ in self._pieces()) >= limit
        self.add(dump)
        if full:
            added = [held for held in self._pieces() if id(held[0]) not in before]
            self._forget([held for held in added if held[0].dtype == OP], "ops")

    def _forget(self, pieces: Iterable[_Piece], loss: str) -> None:
        for gone, held in pieces:
            held[:] = [piece for piece in held if piece is not gone]
            if gone.dtype == OP:
                count = Losses(**{loss: len(gone)})
                self.losses, self.losses_before = self.losses + count, self.losses_before - count

    def _pieces(self) -> Iterator[_Piece]:
        """Each dump's records of a thread that has any, with the list that they are in."""
        for records in self.threads.values():
            for pieces in (records.invocations, records.ops):
                yield from ((piece, pieces) for piece in pieces if len(piece))

    def _counts(self) -> dict[str, Any]:
        names = ("pid", "first", "now", "losses", "losses_before", "more")
        return {name: getattr(self, name) for name in names}

    def add(self, dump: bytes) -> None:
        """Take in the next dump, or raise ``TraceFileError`` and take in nothing."""
        reader = _Reader(dump)
        header = reader.header()
        names, texts = reader.names(header)
        counts, words = reader.signatures(header)
        threads = list(reader.threads(header))
        if int(header["name_first"]) != len(self.name_flags) + 1:
            raise TraceFileError("a recorder's dump is missing: names do not follow the last ones")
        if int(header["signature_first"]) != self.signature_count + 1:
            raise TraceFileError(
                "a recorder's dump is missing: signatures do not follow the last ones"
            )
        self.pid = int(header["pid"])
        if self.first is None:
            self.first = header["first"]
        self.now = header["now"]
        counters = ("dropped_ops", "dropped_invocations", "lost_signatures", "overwritten_ops")
        self.losses = Losses(*(int(header[name]) for name in counters)) - self.losses_before
        self.more = bool(header["flags"] & _MORE)
        self.name_flags += names
        self.name_texts += texts
        if len(counts):
            self.words.append(words.copy())  # a view would keep the whole dump in memory
            self.word_counts.append(counts.copy())
        self.signature_count += len(counts)
        for thread in threads:
            self._thread(thread.tid, thread.name).extend(thread)

    def put_back(self, part: Dumps) -> None:
        """Have again what was taken out."""
        for tid, records in part.threads.items():
            self._thread(tid, records.name).extend(records)

    def _thread(self, tid: int, name: str) -> ThreadRecords:
        return self.threads.setdefault(tid, ThreadRecords(tid, name))


@dataclass
class ThreadRecords:
    """One thread's records, a piece for each dump, in the order they were written."""

    tid: int
    name: str
    invocations: list[NDArray[np.void]] = field(default_factory=list)
    ops: list[NDArray[np.void]] = field(default_factory=list)

    def copy(self) -> ThreadRecords:
        """The same, to go on by itself."""
        return replace(self, invocations=self.invocations.copy(), ops=self.ops.copy())

    def extend(self, later: ThreadRecords) -> None:
        """Append what a later dump brought of the same thread."""
        self.name = later.name
        self.invocations += [piece for piece in later.invocations if len(piece)]
        self.ops += [piece for piece in later.ops if len(piece)]


class _Reader:
    """A cursor over one dump's bytes that never leaves them."""

    def __init__(self, dump: bytes) -> None:
        self._dump = dump
        self._at = 0

    def _array(self, dtype: np.dtype[np.void] | str, count: int) -> NDArray[np.void]:
        kind = np.dtype(dtype)
        size = kind.itemsize * count
        if count < 0 or self._at + size > len(self._dump):
            raise TraceFileError(
                f"the recorder's dump is cut short: it ends {self._at + size - len(self._dump)} "
                f"bytes early, at {len(self._dump)}"
            )
        array = np.frombuffer(self._dump, kind, count, self._at)
        self._at += (size + 7) & ~7
        return array

    def header(self) -> NDArray[np.void]:
        header = self._array(_HEADER, 1)[0]
        if header["magic"] != MAGIC:
            raise TraceFileError("this is not a recorder's dump: it does not begin with RLXTRACE")
        if header["version"] != VERSION:
            raise TraceFileError(
                f"the recorder writes format {header['version']}, this relax_trace reads "
                f"{VERSION}: install the same version of relax_trace on both sides"
            )
        if header["size"] < len(self._dump):
            raise TraceFileError(
                f"the recorder's dump is damaged: {len(self._dump)} bytes where it says "
                f"{header['size']}"
            )
        if header["size"] != len(self._dump):
            raise TraceFileError(
                f"the recorder's dump is cut short: {len(self._dump)} of {header['size']} bytes"
            )
        return header  # type: ignore[no-any-return]

    def names(self, header: NDArray[np.void]) -> tuple[list[int], list[str]]:
        count = int(header["name_count"])
        flags = self._array("<u4", count).tolist()
        lengths = self._array("<u4", count).astype(np.int64)
        raw = self._array("u1", int(header["name_bytes"])).tobytes()
        if lengths.sum() != len(raw):
            raise TraceFileError("the recorder's dump is damaged: lengths of names do not add up")
        bounds = offsets_of(lengths).tolist()
        spans = zip(bounds[:-1], bounds[1:], strict=True)
        return flags, [raw[a:b].decode("utf-8", "backslashreplace") for a, b in spans]

    def signatures(self, header: NDArray[np.void]) -> tuple[NDArray[np.uint32], NDArray[np.uint64]]:
        counts = self._array("<u4", int(header["signature_count"])).view(np.uint32)
        words = self._array("<u8", int(header["signature_words"])).view(np.uint64)
        if int(counts.sum(dtype=np.int64)) != len(words):
            raise TraceFileError(
                "the recorder's dump is damaged: lengths of signatures do not add up"
            )
        return counts, words

    def threads(self, header: NDArray[np.void]) -> Iterable[ThreadRecords]:
        for _ in range(int(header["thread_count"])):
            head = self._array(_THREAD, 1)[0]
            invocations = self._array(INVOCATION, int(head["invocations"]))
            ops = self._array(OP, int(head["ops"]))
            name = bytes(head["name"]).split(b"\0")[0].decode("utf-8", "backslashreplace")
            yield ThreadRecords(int(head["id"]), name, [invocations], [ops])
