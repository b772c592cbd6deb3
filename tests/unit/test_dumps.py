"""Dumps that are cut short, damaged or hostile: an error in one line, never anything else."""

from __future__ import annotations

import copy
import random
import signal
import struct
import tracemalloc
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

from relax_trace import Losses, RecorderError, Trace, TraceFileError
from relax_trace.recorder import native
from relax_trace.recorder.cycles import take_cycles
from relax_trace.recorder.decode import Labels, extern_suffixes, to_trace
from relax_trace.recorder.dumps import Dumps
from relax_trace.recorder.records import Share
from relax_trace.signature import TENSOR
from relax_trace.trace import (
    ABORTED,
    BUILTIN,
    EXTERN,
    FAILED,
    FUNCTION,
    IMPLICIT,
    KERNEL,
    OPEN,
    SAMPLED,
)

HEADER = 152
OVERWRITTEN = 104  # where the header counts the calls that were
LABELS = Labels({1: "vm", 2: "other"}, {}, ("_dnnl",), "test", {})
ALWAYS = Share()
NAMES = [("main", 2), ("add", 0), ("vm.builtin.alloc_storage", 1), ("packed", 4), ("ü: \x1b", 0)]
IDS = int("0102030405060708090a0b0c0d0e0f10a1a2a3a4a5a6a7a8", 16)  # of a trace, of a span
TENSOR_WORDS = [TENSOR << 56 | 2 << 32 | 0x12002, 1 << 32, 4, 5]

Op = tuple[int, int, int, int, int, int, int]
Call = tuple[int, ...]


def pad(raw: bytes) -> bytes:
    """To a multiple of 8 bytes."""
    return raw + bytes(-len(raw) % 8)


def table(flags: list[int], entries: list[bytes], unit: int) -> bytes:
    """Flags if any, lengths in units, and the entries end to end."""
    lengths = [len(entry) // unit for entry in entries]
    out = pad(struct.pack(f"<{len(flags)}I", *flags)) if flags else b""
    return out + pad(struct.pack(f"<{len(lengths)}I", *lengths)) + pad(b"".join(entries))


def packed(call: Call) -> bytes:
    """With the slots of its recordings: the one of its VM's number, unless the test says which."""
    record = (*call[:9], *(call[9:] or (1 << call[7], 0, 0)), 0)
    ids = IDS.to_bytes(24, "big") if call[8] & SAMPLED else bytes(24)
    return struct.pack("<QQQIIIIIIIIII", *record) + ids


def dump_of(  # what a test leaves out is as in a small, sound dump
    threads: list[tuple[int, str, list[Call], list[Op]]],
    names: list[tuple[str, int]] = NAMES,
    signatures: tuple[list[int], ...] = (TENSOR_WORDS,),
    first: tuple[int, int] = (1, 1),
    flags: int = 2,
    readings: tuple[int, ...] = (0, 0, 1000, 10_000, 10_000, 11_000),
) -> bytes:
    """The bytes of a dump, written from its description in dump.h."""
    texts = [text.encode() for text, _ in names]
    words = [struct.pack(f"<{len(signature)}Q", *signature) for signature in signatures]
    body = table([flag for _, flag in names], texts, 1) + table([], words, 8)
    for tid, name, calls, ops in threads:
        body += struct.pack("<Q16sQQ", tid, name.encode(), len(calls), len(ops))
        body += b"".join(packed(call) for call in calls)
        body += b"".join(struct.pack("<QQIIIHH", *op) for op in ops)
    counts = (first[0], len(names), first[1], len(signatures))
    sizes = (len(b"".join(texts)), sum(map(len, signatures)), len(threads))
    head = struct.pack("<8sIIQQ", b"RLXTRACE", 3, flags, HEADER + len(body), 77)
    return head + struct.pack("<6Q4Q4I3Q", *readings, 3, 2, 1, 9, *counts, *sizes) + body


# start, end, wall_ns, number, parent, function, error, vm, flags
CALLS: list[Call] = [
    (100, 0, 1100, 1, 0, 1, 0, 1, OPEN),
    (150, 0, 1150, 2, 1, 1, 0, 1, OPEN | SAMPLED),
    (150, 250, 0, 2, 1, 1, 5, 1, FAILED | SAMPLED),
    (100, 400, 0, 1, 0, 1, 0, 1, 0),
    (500, 0, 1500, 3, 0, 1, 0, 1, OPEN | IMPLICIT),
    (700, 0, 1700, 4, 0, 1, 0, 2, OPEN),
]
# start, end, name, signature, invocation, depth, flags
OPS: list[Op] = [  # in the order of their ends
    (170, 180, 2, 1, 2, 4, 0),
    (160, 200, 1, 0, 2, 3, 0),
    (210, 240, 3, 0, 2, 3, ABORTED),
    (120, 260, 4, 0, 1, 1, 0),
    (510, 540, 2, 1, 3, 1, 0),
    (710, 720, 2, 1, 4, 1, 0),
]
SOUND = dump_of([(5, "worker\x1b", CALLS, OPS), (6, "idle", [], [])])


@contextmanager
def alarm(seconds: int) -> Iterator[None]:
    """Fail, rather than hang, if the body takes longer."""

    def on_alarm(*_: Any) -> None:
        raise AssertionError(f"still busy after {seconds} s")

    before = signal.signal(signal.SIGALRM, on_alarm)
    signal.alarm(seconds)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


def decoded(*dumps: bytes, labels: Labels = LABELS, share: Share = ALWAYS) -> Trace:
    """The trace of these dumps of one process."""
    taken = Dumps()
    for dump in dumps:
        taken.add(dump)
    return to_trace(taken, share, labels)


def test_a_sound_dump_is_decoded_exactly() -> None:
    """Every column and table of a dump written by hand from the format's description."""
    trace = decoded(SOUND)
    assert trace.names == ("main", "add", "vm.builtin.alloc_storage", "packed")
    assert trace.kinds.tolist() == [FUNCTION, KERNEL, BUILTIN, EXTERN]
    assert [trace.names[i] for i in trace.name.tolist()] == [
        *("packed", "main", "add", "vm.builtin.alloc_storage", "add", "add"),
    ]
    assert trace.start.tolist() == [1120, 1160, 1170, 1210, 1510, 1710]
    assert trace.end.tolist() == [1260, 1200, 1180, 1240, 1540, 1720]
    assert trace.parent.tolist() == [-1, -1, 1, -1, -1, -1]
    assert trace.invocation.tolist() == [0, 1, 1, 1, 2, 3]
    assert trace.flags.tolist() == [0, 0, 0, ABORTED, 0, 0]
    assert trace.signatures.texts[int(trace.signature[2])] == b"float32[4, 5]"
    assert list(map(str, trace.devices)) == ["cpu0"]
    assert trace.device.tolist() == [-1, 0, 0, 0, 0, 0]
    calls = trace.invocations
    assert calls.start.tolist() == [1100, 1150, 1500, 1700]
    assert calls.end.tolist() == [1400, 1250, 1540, 11_000]
    assert calls.parent.tolist() == [-1, 0, -1, -1]
    assert calls.flags.tolist() == [0, FAILED | SAMPLED, IMPLICIT, OPEN]
    ids = [bytes(row).hex() for row in calls.trace_id]
    assert ids == ["0" * 32, "0102030405060708090a0b0c0d0e0f10", "0" * 32, "0" * 32]
    assert calls.span_id.tolist() == [0, 0xA1A2A3A4A5A6A7A8, 0, 0]
    assert calls.vm.tolist() == [0, 0, 0, 1]
    assert calls.error.tolist() == [-1, 0, -1, -1]
    assert trace.errors == ("ü: \x1b",)
    assert trace.vms == ("vm", "other")
    assert [(thread.pid, thread.tid, thread.name) for thread in trace.threads] == [
        (77, 5, "worker\x1b")
    ]
    assert trace.losses == Losses(ops=3, invocations=2, signatures=1, overwritten=9)


def test_dumps_in_pieces_give_the_same_trace_as_one() -> None:
    """Tables grow from dump to dump, and an invocation may open in one and close in another."""
    whole = decoded(SOUND)
    for cut in range(len(CALLS) + 1):
        for at in range(len(OPS) + 1):
            early = dump_of([(5, "old", CALLS[:cut], OPS[:at])], NAMES[:2], (), flags=3)
            later = dump_of([(5, "worker\x1b", CALLS[cut:], OPS[at:])], NAMES[2:], first=(3, 1))
            trace = decoded(early, later)
            for column in ("start", "end", "name", "signature", "parent", "invocation", "flags"):
                assert getattr(trace, column).tolist() == getattr(whole, column).tolist()
            assert trace.invocations.end.tolist() == whole.invocations.end.tolist()
            assert trace.threads == whole.threads


def test_a_recordings_share_of_the_invocations() -> None:
    """What began before it, or was for another, goes with its calls and its place."""
    trace = decoded(SOUND, share=Share(1, 150))
    assert trace.invocations.start.tolist() == [1150, 1500]
    assert trace.invocations.parent.tolist() == [-1, -1]
    assert trace.start.tolist() == [1160, 1170, 1210, 1510]
    only = Labels({}, {5: "named"}, (), "test", {})
    trace = decoded(SOUND, labels=only, share=Share(2))
    assert (trace.start.tolist(), trace.vms) == ([1710], ("vm2",))
    assert [thread.name for thread in trace.threads] == ["named"]
    assert len(decoded(SOUND, share=Share(3))) == 0


def test_a_call_inside_one_that_was_left_out_stands_in_the_next_one_up() -> None:
    """Filters leave out calls by name: the nearest that was kept takes what is inside."""
    calls: list[Call] = [(100, 900, 1100, 1, 0, 1, 0, 1, 0)]
    ops: list[Op] = [
        (130, 140, 2, 0, 1, 4, 0),  # in one of depth 3, in one of depth 2: neither was kept
        (160, 170, 2, 0, 1, 2, 0),
        (120, 200, 3, 0, 1, 1, 0),
        (230, 240, 4, 0, 1, 3, 0),  # nothing was kept around it
        (300, 400, 3, 0, 1, 1, 0),
    ]
    trace = decoded(dump_of([(5, "t", calls, ops)]))
    assert trace.start.tolist() == [1120, 1130, 1160, 1230, 1300]
    assert trace.parent.tolist() == [-1, 0, 0, -1, -1]


def test_cycles_are_taken_out_when_they_are_complete() -> None:
    """By VM and function, in the order of their ends, over several dumps; the rest stays."""
    own, other = 2, 1  # slots 1 and 0

    def call(
        start: int, number: int, marks: tuple[int, int, int], vm: int = 1, end: int = 50
    ) -> list[Call]:
        opened = (start, 0, 1, number, 0, 1, 0, vm, OPEN, *marks)
        return (
            [opened, (start, start + end, 0, number, 0, 1, 0, vm, 0, *marks)] if end else [opened]
        )

    first, last, whole = (own, own, 0), (own, 0, own), (own | other, own, own)
    calls = [
        *call(100, 1, first),  # broken off by a pause
        *call(200, 2, first),
        *call(300, 3, (other, other, other)),
        *call(400, 4, whole, vm=2, end=500),
        *call(500, 5, last),
        *call(600, 6, first),
        *call(700, 7, (0, 0, 0)),  # warms up
        *call(800, 8, last, end=0),  # still runs
    ]
    ops: list[Op] = [
        (calls[2 * i][0] + 10, calls[2 * i][0] + 20, 2, 1, i + 1, 1, 0) for i in range(8)
    ]
    taken = Dumps()
    taken.add(dump_of([(5, "t", calls[:7], ops[:3]), (6, "idle", [], [])]))
    taken.add(dump_of([(5, "t", calls[7:], ops[3:])], [], (), (6, 2)))
    cycles = take_cycles(taken, 1)
    traces = [to_trace(cycle, Share(1), LABELS) for cycle in cycles]
    assert [trace.invocations.start.tolist() for trace in traces] == [[1200, 1500], [1400]]
    assert [trace.start.tolist() for trace in traces] == [[1210, 1510], [1410]]
    rest = to_trace(taken, ALWAYS, LABELS)
    assert rest.invocations.start.tolist() == [1100, 1600, 1800]
    assert rest.start.tolist() == [1110, 1610, 1810]
    assert take_cycles(taken, 1) == []
    taken.add(dump_of([(5, "t", call(800, 8, last)[1:], [])], [], (), (6, 2)))
    (cycle,) = take_cycles(taken, 1)
    assert to_trace(cycle, Share(1), LABELS).invocations.start.tolist() == [1600, 1800]


def test_what_comes_beyond_the_limit_is_left_out_and_counted() -> None:
    """Its calls, not its invocations: what was held before is never given up."""
    taken = Dumps()
    taken.add_within(SOUND, 1000)
    size = sum(len(piece) * 32 for records in taken.threads.values() for piece in records.ops)
    calls: list[Call] = [(800, 900, 1800, 5, 0, 1, 0, 1, 0)]
    later = dump_of([(5, "t", calls, OPS[4:])], [], (), (6, 2))
    taken.add_within(later, size)
    trace = to_trace(taken, ALWAYS, LABELS)
    assert len(trace) == len(OPS)
    assert trace.invocations.start.tolist() == [1100, 1150, 1500, 1700, 1800]
    assert trace.losses == Losses(3 + 2, 2, 1, 9)


def test_a_ring_keeps_the_newest() -> None:
    """As many whole dumps as the limit allows, oldest first out; none from before a gap."""
    taken = Dumps()
    for number in range(1, 5):
        begin = 1000 * number
        calls: list[Call] = [(begin, begin + 500, begin, number, 0, 1, 0, 1, 0)]
        ops: list[Op] = [(begin + 100, begin + 200, 2, 1, number, 1, 0)] * 10
        first = (1, 1) if number == 1 else (len(NAMES) + 1, 2)
        tables = {} if number == 1 else {"names": [], "signatures": ()}
        dump = dump_of([(5, "t", calls, ops)], first=first, **tables)
        taken.add_to_ring(dump, 2 * (10 * 32 + 88))
    trace = to_trace(taken, ALWAYS, LABELS)
    assert trace.invocations.start.tolist() == [4000, 5000]
    assert len(trace) == 20
    assert trace.losses.overwritten == 9 + 20
    dump = dump[:OVERWRITTEN] + struct.pack("<Q", 9 + 7) + dump[OVERWRITTEN + 8 :]
    taken.add_to_ring(dump, 1 << 20)
    trace = to_trace(taken, ALWAYS, LABELS)
    assert trace.invocations.start.tolist() == [5000]
    assert trace.losses.overwritten == 9 + 20 + 7 + 20


def test_a_thread_id_that_is_used_again() -> None:
    """Systems hand out a dead thread's id anew: the younger one counts on from the elder."""
    calls: list[Call] = [(100, 400, 1100, 1, 0, 1, 0, 1, 0)]
    later: list[Call] = [(500, 900, 1500, 2, 0, 1, 0, 1, 0)]
    elder, younger = (5, "elder", calls, OPS[3:4]), (5, "younger", later, [])
    for dumps in (
        [dump_of([elder, younger])],
        [dump_of([elder]), dump_of([younger], [], (), (6, 2))],
    ):
        trace = decoded(*dumps)
        assert trace.invocations.start.tolist() == [1100, 1500]
        assert trace.invocations.end.tolist() == [1400, 1900]
        assert trace.invocation.tolist() == [0]


def test_every_truncation_is_an_error() -> None:
    """At every byte: it says that the dump is cut short, and nothing of it is taken in."""
    for size in range(len(SOUND)):
        taken = Dumps()
        with pytest.raises(TraceFileError, match=r"^the recorder's dump is cut short: .*\d+"):
            taken.add(SOUND[:size])
        assert taken == Dumps()


def swept(dump: bytes) -> None:
    """Decode a dump, and read all of its trace: it works, or raises TraceFileError in one line."""
    text = ""
    try:
        trace = decoded(dump)
        _ = trace.signatures.texts, repr(trace), str(trace.report(calls="all"))
    except TraceFileError as error:
        text = str(error)
    assert "\n" not in text
    assert len(text) < 300


def test_random_damage_is_an_error_or_harmless() -> None:
    """Thousands of dumps with some bits or bytes changed: a trace, or a TraceFileError."""
    randomness = random.Random(1)
    for _ in range(2000):
        damaged = bytearray(SOUND)
        for _ in range(randomness.choice((1, 1, 2, 8))):
            at = randomness.randrange(len(damaged))
            damaged[at] ^= randomness.choice((1, 0x80, 0xFF, randomness.randrange(1, 256)))
        with alarm(20):
            swept(bytes(damaged))


def test_extreme_numbers_are_an_error_or_harmless() -> None:
    """Every 32-bit and 64-bit field, set to numbers at the edges of their range."""
    for at in range(0, len(SOUND), 4):
        for size, value in ((4, 0), (4, 1), (4, 0xFFFFFFFF), (8, (1 << 64) - 1), (8, 1 << 63)):
            damaged = SOUND[:at] + value.to_bytes(size, "little") + SOUND[at + size :]
            with alarm(20):
                swept(damaged[: len(SOUND)])


@pytest.mark.parametrize("parents", [(1, 0), (2, 1), (2, 3, 1), (0xFFFFFFFF, 1)])
def test_invocations_that_are_each_others_parents_are_an_error(parents: tuple[int, ...]) -> None:
    """A circle has no outermost one: it must not be looked for for ever."""
    calls: list[Call] = [
        (100 + i, 900, 1100 + i, i + 1, parent, 1, 0, 1, 0) for i, parent in enumerate(parents)
    ]
    with alarm(20):
        if parents[0] in (1, 2):
            with pytest.raises(TraceFileError):
                decoded(dump_of([(5, "t", calls, [])]))
        else:  # a parent that isn't there: it was not recorded
            assert decoded(dump_of([(5, "t", calls, [])])).invocations.parent.tolist() == [-1, 0]
    outside: list[Call] = [(*call[:7], 9, 0) for call in calls]  # of a VM nobody asked for
    with alarm(20), suppress(TraceFileError):
        decoded(dump_of([(5, "t", [*outside, (500, 600, 1500, 9, 1, 1, 0, 1, 0)], [])]))


COUNTS = {"names": 116, "signatures": 124, "name bytes": 128, "words": 136, "threads": 144}


@pytest.mark.parametrize("field", COUNTS)
def test_a_huge_count_allocates_nothing(field: str) -> None:
    """A dump that claims more than it holds is refused before memory is asked for."""
    size = 4 if field in ("names", "signatures") else 8
    for claim in (1 << 31, (1 << (8 * size)) - 1, 1 << (8 * size - 3)):
        at = COUNTS[field]
        damaged = SOUND[:at] + claim.to_bytes(size, "little") + SOUND[at + size :]
        tracemalloc.start()
        with pytest.raises(TraceFileError):
            Dumps().add(damaged)
        _, peak = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        assert peak < 1 << 20


@pytest.mark.parametrize("offset", [24, 32])
def test_a_thread_that_claims_huge_counts_allocates_nothing(offset: int) -> None:
    """Its invocations and ops are counted before they are read, too."""
    at = SOUND.index(b"worker") - 8 + offset
    for claim in (1 << 40, (1 << 64) - 1, 1 << 59):
        damaged = SOUND[:at] + claim.to_bytes(8, "little") + SOUND[at + 8 :]
        tracemalloc.start()
        with pytest.raises(TraceFileError, match="cut short"):
            Dumps().add(damaged)
        _, peak = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        assert peak < 1 << 20


@pytest.mark.parametrize(
    ("dump", "text"),
    [
        (b"", "the recorder's dump is cut short: it ends 152 bytes early, at 0"),
        (
            b"NOTTRACE" + SOUND[8:],
            "this is not a recorder's dump: it does not begin with RLXTRACE",
        ),
        (
            SOUND[:8] + b"\x01" + SOUND[9:],
            "the recorder writes format 1, this relax_trace reads 3: "
            "install the same version of relax_trace on both sides",
        ),
        (
            SOUND + bytes(8),
            f"the recorder's dump is damaged: {len(SOUND) + 8} bytes where it says {len(SOUND)}",
        ),
        (
            dump_of([], NAMES, first=(2, 1)),
            "a recorder's dump is missing: names do not follow the last ones",
        ),
        (
            dump_of([], NAMES, first=(1, 2)),
            "a recorder's dump is missing: signatures do not follow the last ones",
        ),
    ],
)
def test_what_is_wrong_with_a_dump_is_said(dump: bytes, text: str) -> None:
    """One line says what was found, and what to do where something can be done."""
    with pytest.raises(TraceFileError) as caught:
        Dumps().add(dump)
    assert str(caught.value) == text


def test_an_error_leaves_what_was_taken_in_before() -> None:
    """After a damaged dump the next sound one goes on where the last one ended."""
    taken = Dumps()
    taken.add(dump_of([(5, "old", CALLS[:2], OPS[:1])], NAMES[:2], (), flags=3))
    rest = dump_of([(5, "worker\x1b", CALLS[2:], OPS[1:])], NAMES[2:], first=(3, 1))
    before = copy.deepcopy(taken)
    lengths_wrong = bytearray(rest)
    lengths_wrong[HEADER + 16] += 1
    for damaged in (rest[:-8], rest[:200], bytes(lengths_wrong), SOUND, b"", b"x" * 1000):
        with pytest.raises(TraceFileError):
            taken.add(damaged)
        assert repr(taken) == repr(before)
    taken.add(rest)
    assert to_trace(taken, ALWAYS, LABELS).start.tolist() == decoded(SOUND).start.tolist()


@pytest.mark.parametrize(
    ("calls", "ops"),
    [
        ([(100, 400, 1100, 1, 0, 6, 0, 1, 0)], []),  # a function that has no name
        ([(100, 400, 1100, 1, 0, 0, 0, 1, 0)], []),  # nor number
        ([(100, 400, 1100, 1, 0, 1, 6, 1, 0)], []),  # an error without its text
        (CALLS, [(110, 120, 6, 0, 1, 1, 0)]),
        (CALLS, [(110, 120, 0, 0, 1, 1, 0)]),
        (CALLS, [(110, 120, 1, 2, 1, 1, 0)]),  # a signature that isn't there
    ],
)
def test_a_record_that_points_outside_the_tables_is_an_error(
    calls: list[Call], ops: list[Op]
) -> None:
    """A number beyond its table is told when the trace is made."""
    with pytest.raises(TraceFileError, match=r"^the recorder's dump is damaged: "):
        decoded(dump_of([(5, "t", calls, ops)]))


def test_names_that_are_hostile_stay_text() -> None:
    """Terminal escapes, quotes, markup, NUL, invalid UTF-8, a megabyte: kept, or spelt out."""
    hostile = ["\x1b[31m", "</script>", "a\0b", '"\\"', "x" * (1 << 20)]
    dump = dump_of([(5, "t", CALLS[:1], [])], [(text, 0) for text in hostile])
    taken = Dumps()
    taken.add(dump)
    assert taken.name_texts == hostile
    raw = dump_of([(5, "t", [], [])], [("ABCD", 0)]).replace(b"ABCD", b"\xff\xc3\x28\xed")
    broken = Dumps()
    broken.add(raw)
    assert broken.name_texts == ["\\xff\\xc3(\\xed"]


def test_external_functions_are_known_by_their_ending() -> None:
    """Code generators that registered themselves, and those of TVM."""
    suffixes = extern_suffixes(["relax.ext.toy", "relax.ext.dnnl", "other.ext.x"])
    assert "_toy" in suffixes
    assert suffixes.count("_dnnl") == 1
    assert "_x" not in suffixes


ELF = b"\x7fELF\x02\x01\x01" + bytes(9) + b"\x03\0\xb7\0\x01\0\0\0" + bytes(40)  # aarch64


@pytest.mark.parametrize("content", [b"not a library\n", b"", ELF, b"\x7fELF", bytes(4096)])
def test_a_native_library_that_cannot_be_loaded(tmp_path: Path, content: bytes) -> None:
    """Text, nothing, another machine's library: one line names the file and says what to do."""
    path = tmp_path / "librelax_trace_recorder.so"
    path.write_bytes(content)
    with pytest.raises(RecorderError) as caught:
        native._open_library(path)
    text = str(caught.value)
    assert text.startswith(f"the native recorder can't be loaded ({path}: ")
    assert text.endswith("was it built for another machine? Install relax-trace anew on this one")
    assert "\n" not in text


def test_a_native_library_that_is_missing(tmp_path: Path) -> None:
    """One line says which file was looked for and how to get it."""
    path = tmp_path / "librelax_trace_recorder.so"
    for missing in (path, tmp_path / "no" / "folder.so"):
        with pytest.raises(RecorderError) as caught:
            native._open_library(missing)
        assert str(caught.value) == (
            f"the native recorder is missing: no file {missing}; "
            "install relax-trace with pip, which builds it (a C compiler is all it needs)"
        )
