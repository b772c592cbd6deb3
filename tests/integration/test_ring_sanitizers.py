"""Ring mode of the recorder under the sanitizers, without TVM: the newest calls, and all counted.

The scenarios are in tests/recorder/ring.c; how they are built and run says test_sanitizers.py.
"""

from __future__ import annotations

import struct
from pathlib import Path

import numpy as np
import pytest

from recorder.play import Builds, Played, decoded, ops_of, play
from relax_trace.recorder.dumps import INVOCATION, OP, Dumps, ThreadRecords
from relax_trace.recorder.records import ThreadTable
from relax_trace.trace import OPEN, SIGNATURE_LOST


def snapshots(folder: Path) -> list[Dumps]:
    """Each copy that the scenario took, read on its own."""
    raw, at, found = (folder / "dumps.snapshots").read_bytes(), 0, []
    while at < len(raw):
        (size,) = struct.unpack_from("<Q", raw, at)
        found.append(Dumps())
        found[-1].add(raw[at + 8 : at + 8 + size])
        at += 8 + size
    return found


def held(dumps: Dumps) -> int:
    """Number of op records."""
    return sum(len(ops) for thread in dumps.threads.values() for ops in thread.ops)


def check_newest(thread: ThreadRecords, dumps: Dumps) -> int:
    """From its oldest record on the thread has all; returns how many invocations are whole."""
    table = ThreadTable.of(thread, dumps)
    ops = np.concatenate([np.empty(0, OP), *thread.ops])
    assert (np.diff(ops["end"].astype(np.int64)) >= 0).all()
    if not len(ops):
        return 0  # the last invocation's end is younger than the last call's
    calls = np.concatenate([np.empty(0, INVOCATION), *thread.invocations])
    oldest = [ops["end"][0], *calls["start"][:1], *calls["end"][:1]]
    counts = np.bincount(table.row, minlength=len(table.calls)).tolist()
    names = [dumps.name_texts[number - 1] for number in table.calls["function"].tolist()]
    since = np.flatnonzero(table.calls["start"] > max(oldest))
    assert (np.diff(table.calls["number"][since]) == 1).all()
    for row in since.tolist():
        whole = ops_of(names[row])
        assert counts[row] == whole or (table.calls["flags"][row] & OPEN and counts[row] < whole)
    return len(since)


def check_snapshots(folder: Path) -> list[Dumps]:
    """Each decodes, and has the newest of each thread without a gap."""
    taken = snapshots(folder)
    for dumps in taken:
        decoded(dumps)
        for thread in dumps.threads.values():
            check_newest(thread, dumps)
    return taken


def check_counted(played: Played) -> None:
    """Each call is there, or counted as overwritten or dropped."""
    losses = played.dumps.losses
    assert held(played.dumps) + losses.overwritten + losses.ops == played.done["ops"]


def threads_of(played: Played) -> list[ThreadRecords]:
    """All threads' records."""
    return list(played.dumps.threads.values())


each_seed = pytest.mark.parametrize("seed", range(2))
each_sanitizer = pytest.mark.parametrize("sanitizer", ["memory", "threads"])


@each_sanitizer
@each_seed
def test_the_newest_calls_are_kept(
    builds: Builds, tmp_path: Path, sanitizer: str, seed: int
) -> None:
    """Four threads write while one copies: every copy ends with whole invocations, nothing drops.

    Signatures that the tables had no room for are counted; names that are known need none.
    """
    played = play(builds, sanitizer, "ring", seed, tmp_path)
    check_counted(played)
    taken = check_snapshots(tmp_path)
    assert len(taken) > 1
    losses, threads = played.dumps.losses, threads_of(played)
    ops = np.concatenate([piece for thread in threads for piece in thread.ops])
    assert (losses.ops, losses.invocations) == (0, 0)
    assert losses.overwritten > len(ops) > 2000
    assert 0 < np.count_nonzero(ops["flags"] & SIGNATURE_LOST) <= losses.signatures
    assert len(threads) == 4
    assert sum(check_newest(thread, played.dumps) for thread in threads) > 50
    for thread in threads:
        table = ThreadTable.of(thread, played.dumps)
        assert played.dumps.name_texts[table.calls["function"][-1] - 1] == "c1_1"
        assert table.calls["number"][-1] == 251


@each_sanitizer
@each_seed
def test_draining_and_copying_at_once(
    builds: Builds, tmp_path: Path, sanitizer: str, seed: int
) -> None:
    """What was drained is in no later copy; what was neither drained nor kept is counted."""
    played = play(builds, sanitizer, "ring_drained", seed, tmp_path)
    check_counted(played)
    check_snapshots(tmp_path)
    assert played.dumps.losses.ops == 0
    for thread in threads_of(played):
        ends = np.concatenate([np.empty(0, OP), *thread.ops])["end"].astype(np.int64)
        assert (np.diff(ends) >= 0).all()


@each_sanitizer
def test_the_oldest_go_first_whoever_wrote_them(
    builds: Builds, tmp_path: Path, sanitizer: str
) -> None:
    """Four threads wrote by turns, two of them have ended: of each as much is left, to a chunk."""
    played = play(builds, sanitizer, "ring_turns", 1, tmp_path)
    check_counted(played)
    (snapshot,) = check_snapshots(tmp_path)
    *turns, alone = sorted(len(np.concatenate(t.ops)) for t in snapshot.threads.values())
    assert alone == 80 * 60
    assert len(turns) == 4
    assert 0 < turns[0] <= turns[-1] < 20 * 60
    assert turns[-1] - turns[0] <= 128


@each_sanitizer
def test_a_writer_does_not_wait_for_a_dump(builds: Builds, tmp_path: Path, sanitizer: str) -> None:
    """While the recorder's lock is held it goes on, beyond the limit, and then makes up for it."""
    played = play(builds, sanitizer, "ring_held", 1, tmp_path)
    check_counted(played)
    check_snapshots(tmp_path)
    assert (played.dumps.losses.ops, played.dumps.losses.invocations) == (0, 0)


@each_sanitizer
@each_seed
def test_threads_that_come_and_go(
    builds: Builds, tmp_path: Path, sanitizer: str, seed: int
) -> None:
    """Of ended threads, too, the oldest records go first; the last round's threads are whole."""
    played = play(builds, sanitizer, "ring_churn", seed, tmp_path)
    check_counted(played)
    for dumps in check_snapshots(tmp_path):
        threads = [ThreadTable.of(thread, dumps) for thread in dumps.threads.values()]
        threads.sort(key=lambda table: int(table.calls["start"].max(initial=0)))
        for table in threads[-4:]:
            assert len(table.calls) == 4
            names = [dumps.name_texts[number - 1] for number in table.calls["function"].tolist()]
            assert np.bincount(table.row).tolist() == [ops_of(name) for name in names]
            assert names[-1] == "c1_1"
    losses = played.dumps.losses
    assert (losses.ops, losses.invocations) == (0, 0)
    assert losses.overwritten > 4000


@each_sanitizer
@each_seed
def test_hardly_any_room(builds: Builds, tmp_path: Path, sanitizer: str, seed: int) -> None:
    """Threads that get no state are counted as dropped; the others keep their newest calls."""
    played = play(builds, sanitizer, "ring_crowd", seed, tmp_path)
    check_counted(played)
    check_snapshots(tmp_path)
    assert played.dumps.losses.ops > 0
    assert played.dumps.losses.overwritten > 0
