"""What recordings want of VMs under the sanitizers, without TVM: told exactly by a slow model.

The scenarios are in tests/recorder/wishes.c, the model in model.py; how they are built and run says
test_sanitizers.py.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

import relax_trace
from recorder.model import Invocation, Journal, follow
from recorder.play import Builds, Played, play
from relax_trace.recorder.records import ThreadTable
from relax_trace.trace import FAILED

ALL = range(32)
KEPT = (30, 31)  # slots whose wishes nobody else changes


@pytest.fixture(scope="module")
def builds(tmp_path_factory: pytest.TempPathFactory) -> Builds:
    """A folder for the programs."""
    return Builds(tmp_path_factory.mktemp("programs"))


def ops_of(function: str) -> int:
    """How many calls a function of the stand-in VM makes: its name says it."""
    found = re.fullmatch(r"[cdnvtpk]*(\d+)_\d+", function)
    assert found, function
    return int(found[1])


def journals(folder: Path) -> list[Journal]:
    """What each thread did."""
    paths = sorted(folder.glob("dumps.journal*"))
    return [follow(path.read_text().splitlines()) for path in paths]


@dataclass
class Recorded:
    """The invocations of a journal, each with its row in the thread's records, if it has one."""

    table: ThreadTable
    names: list[str]
    rows: list[tuple[Invocation, int | None]]


def matched(played: Played, journal: Journal) -> Recorded:
    """An invocation's record began after it did, and before the next one."""
    dumps = played.dumps
    table = ThreadTable.of(dumps.threads[journal.tid], dumps)
    starts = table.calls["start"].tolist()
    rows: list[tuple[Invocation, int | None]] = []
    row = 0
    for call, later in zip(journal.calls, [*journal.calls[1:], None], strict=True):
        has = row < len(starts) and (later is None or starts[row] < later.ticks)
        assert not has or starts[row] >= call.ticks
        rows.append((call, row if has else None))
        row += has
    assert row == len(starts)
    return Recorded(table, dumps.name_texts, rows)


def row_of_ops(call: Invocation, rows: dict[int, int | None]) -> int | None:
    """The recorded invocation that a call's ops are in: the innermost one of its VM."""
    around: Invocation | None = call
    while around and (rows[id(around)] is None or around.vm != call.vm):
        around = around.around
    return rows[id(around)] if around else None


def parent_of(call: Invocation, rows: dict[int, int | None]) -> int:
    """The recorded invocation of the innermost recorded op around, or -1."""
    while call.around:
        call = call.around
        row = row_of_ops(call, rows)
        if row is not None:
            return row
    return -1


def check_ended(call: Invocation, ops: NDArray[np.void]) -> None:
    """What a call began, of another invocation's ops, ends with it, thrown or not."""
    began = (ops["start"] > call.ticks) & (ops["start"] < call.left)
    assert (ops["end"][began] <= call.left).all()


def check_tree(recorded: Recorded) -> None:
    """Names, errors, parents; and each op is in the recorded invocation that it ran in."""
    table = recorded.table
    rows = {id(call): row for call, row in recorded.rows}
    counts = [0] * len(table.calls)
    for call, row in recorded.rows:
        inside = row_of_ops(call, rows)
        if inside is not None:
            counts[inside] += ops_of(call.function)
        if row is None:
            if inside is not None:
                check_ended(call, table.ops[table.row == inside])
            continue
        record = table.calls[row]
        assert recorded.names[record["function"] - 1] == call.function
        assert record["vm"] == call.vm
        assert record["flags"] == (FAILED if call.code else 0)
        assert (record["error"] > 0) == (call.code == -1)
        assert table.call_parent[row] == parent_of(call, rows)
    assert np.bincount(table.row, minlength=len(counts)).tolist() == counts


def bits(slots: set[int]) -> int:
    """A mask."""
    return sum(1 << slot for slot in slots)


def check_slots(recorded: Recorded, slots: range | tuple[int, ...], vms: set[int]) -> int:
    """What each invocation of these VMs is recorded for is as the model says; returns how many."""
    known = bits(set(slots))
    for call, row in recorded.rows:
        if call.vm not in vms:
            continue
        assert (row is not None) == call.armed, call
        if row is not None:
            found = recorded.table.calls[row]
            masks = [int(found[field]) & known for field in ("recorded", "first", "last")]
            assert masks == [bits(call.taken), bits(call.first), bits(call.last)], call
    return sum(call.vm in vms for call, _ in recorded.rows)


def check_nothing_lost(played: Played) -> None:
    """Each call that the hook was told of is there."""
    assert played.trace.losses == relax_trace.Losses()
    assert len(played.trace) == played.done["ops"]


each_seed = pytest.mark.parametrize("seed", range(3))
each_sanitizer = pytest.mark.parametrize("sanitizer", ["memory", "threads"])


@each_sanitizer
@each_seed
def test_each_invocation_is_recorded_for_whom_the_model_says(
    builds: Builds, tmp_path: Path, sanitizer: str, seed: int
) -> None:
    """Schedules, patterns, held hooks, changed between invocations and inside them; VMs nested."""
    played = play(builds, sanitizer, "wishes_alone", seed, tmp_path)
    check_nothing_lost(played)
    (journal,) = journals(tmp_path)
    recorded = matched(played, journal)
    check_tree(recorded)
    assert check_slots(recorded, ALL, {1, 2, 3}) == played.done["wrapped"] > 500
    names = played.dumps.name_texts
    told = [(*notice[:3], names[int(notice[3]) - 1]) for notice in journal.told]
    assert told == journal.expected
    assert {reason for _, reason, *_ in told} == set(range(1, 8))


@each_sanitizer
@each_seed
def test_what_others_want_meanwhile_changes_nothing(
    builds: Builds, tmp_path: Path, sanitizer: str, seed: int
) -> None:
    """A thread changes other slots of all VMs: two wishes get what they would get alone."""
    played = play(builds, sanitizer, "wishes", seed, tmp_path)
    check_nothing_lost(played)
    *players, last = (matched(played, journal) for journal in journals(tmp_path))
    check_tree(last)
    for number, player in enumerate(players):
        check_tree(player)
        assert check_slots(player, KEPT, {3 * number + 1, 3 * number + 2}) > 300
        others = [row is not None for call, row in player.rows if call.vm == 3 * number + 3]
        assert 0 < sum(others) < len(others)


def described(played: Played) -> list[list[tuple[str, int, int]]]:
    """Name, flags and parent of the calls of each invocation, in the order of their ends."""
    (records,) = played.dumps.threads.values()
    table = ThreadTable.of(records, played.dumps)
    found: list[list[tuple[str, int, int]]] = []
    for row in range(len(table.calls)):
        mine = np.flatnonzero(table.row == row)
        place = {-1: -1, **{at: i for i, at in enumerate(mine.tolist())}}
        names = [played.dumps.name_texts[number - 1] for number in table.ops["name"][mine].tolist()]
        parents = [place[at] for at in table.parent[mine].tolist()]
        found.append(list(zip(names, table.ops["flags"][mine].tolist(), parents, strict=True)))
    return found


def filtered(calls: list[tuple[str, int, int]], patterns: list[str]) -> list[tuple[str, int, int]]:
    """The calls whose name matches, inside the nearest one of them."""
    kept = [any(fnmatchcase(name, pattern) for pattern in patterns) for name, *_ in calls]
    place = np.cumsum(kept) - 1
    left = []
    for (name, flags, parent), keeps in zip(calls, kept, strict=True):
        around = parent
        while around >= 0 and not kept[around]:
            around = calls[around][2]
        if keeps:
            left.append((name, flags, -1 if around < 0 else int(place[around])))
    return left


@each_sanitizer
@each_seed
def test_a_filter_leaves_out_calls_and_keeps_their_nesting(
    builds: Builds, tmp_path: Path, sanitizer: str, seed: int
) -> None:
    """The same functions without a filter, and with each: what is left has its place."""
    played = play(builds, sanitizer, "filters", seed, tmp_path)
    assert played.trace.losses == relax_trace.Losses()
    lines = (tmp_path / "dumps.journal0").read_text().splitlines()[1:]
    filters = [[*filter(None, line.split("\t")[1:])] for line in lines]
    found = described(played)
    size = len(found) // len(filters)
    assert size == 40
    rounds = [found[at : at + size] for at in range(0, len(found), size)]
    for patterns, calls in zip(filters, rounds, strict=True):
        assert calls == [filtered(whole, patterns) for whole in rounds[0]], patterns
    assert [sum(map(len, calls)) > 0 for calls in rounds] == [
        patterns != ["nobody"] for patterns in filters
    ]
