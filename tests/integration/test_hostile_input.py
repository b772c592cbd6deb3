"""Dumps and trace files whose fields say what can't be: an error of ours, in bounded memory.

What is changed is drawn from a seed. A longer run: set RELAX_TRACE_FUZZ_ROUNDS to more than 1.
"""

from __future__ import annotations

import gzip
import io
import json
import os
import random
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from recorder.hostile import (
    bounded,
    damage_columns,
    damage_dump,
    damage_json,
    damage_numbers,
)
from recorder.play import Builds, decoded, run
from relax_trace import Trace, TraceFileError, load
from relax_trace.recorder.dumps import Dumps
from unit.random_traces import random_trace

ROUNDS = int(os.environ.get("RELAX_TRACE_FUZZ_ROUNDS", "1"))
MEMORY = 1 << 30  # above what the test process has already
SECONDS = 120 * ROUNDS


@pytest.fixture(scope="module")
def builds(tmp_path_factory: pytest.TempPathFactory) -> Builds:
    """A folder for the program that makes real dumps."""
    return Builds(tmp_path_factory.mktemp("programs"))


def real_dump(builds: Builds, scenario: str, folder: Path) -> bytes:
    """What the recorder wrote of a scenario."""
    out = folder / scenario
    run(builds.program("driver", "undefined"), scenario, "1", str(out))
    raw = out.read_bytes()
    size = int.from_bytes(raw[:8], "little")
    assert len(raw) == 8 + size
    return raw[8:]


def use(trace: Trace, folder: Path) -> None:
    """Everything that is made of a trace."""
    str(trace.report(calls="all"))
    trace.save(folder / "used.npz")
    trace.save(folder / "used.json")


@pytest.mark.parametrize("scenario", ["inside", "slots", "thread_ends_after_throw"])
def test_dumps_with_damaged_fields(builds: Builds, tmp_path: Path, scenario: str) -> None:
    """Counts, numbers, times, depths, flags, words: an error of ours, or a trace to be used."""
    sound, chance = real_dump(builds, scenario, tmp_path), random.Random(scenario)
    count, rounds = 0, 400 * ROUNDS
    with bounded(MEMORY, SECONDS):
        for _ in range(rounds):
            dumps = Dumps()
            try:
                dumps.add(damage_dump(sound, chance))
                use(decoded(dumps), tmp_path)
            except TraceFileError:
                count += 1
    assert rounds // 8 < count < rounds


def test_damaged_dumps_between_sound_ones(builds: Builds, tmp_path: Path) -> None:
    """What is refused leaves no trace: the sound dump gives what it always gives."""
    sound, chance = real_dump(builds, "slots", tmp_path), random.Random(5)
    alone = Dumps()
    alone.add(sound)
    expected = decoded(alone)
    with bounded(MEMORY, SECONDS):
        for _ in range(50 * ROUNDS):
            dumps = Dumps()
            for _ in range(4):
                damaged = damage_dump(sound, chance)
                try:
                    Dumps().add(damaged)
                except TraceFileError:
                    with pytest.raises(TraceFileError):
                        dumps.add(damaged)
            dumps.add(sound)
            assert decoded(dumps).start.tolist() == expected.start.tolist()


def refused(path: Path) -> bool:
    """Whether the file at ``path`` is refused, by its name, or what would be made of it."""
    try:
        trace = load(path)
    except TraceFileError as error:
        said = str(error)
    else:
        said = str(path) if unusable(trace, path.parent) else ""
    assert not said or str(path) in said
    return bool(said)


def unusable(trace: Trace, folder: Path) -> bool:
    """Whether a trace turns out to be damaged when it is used."""
    try:
        use(trace, folder)
    except TraceFileError:
        return True
    return False


def entries_of(trace: Trace, folder: Path) -> dict[str, np.ndarray[Any, Any]]:
    """The entries of a native file."""
    trace.save(folder / "sound.npz")
    with np.load(folder / "sound.npz") as archive:
        return {name: archive[name] for name in archive.files}


def save_entries(path: Path, entries: dict[str, np.ndarray[Any, Any]]) -> None:
    """Write entries as a native file, with checksums that are right."""
    with zipfile.ZipFile(path, "w") as archive:
        for name, values in entries.items():
            stream = io.BytesIO()
            np.lib.format.write_array(stream, values, allow_pickle=False)
            archive.writestr(f"{name}.npy", stream.getvalue())


def test_native_files_with_damaged_columns(tmp_path: Path) -> None:
    """Every column and table of an ``.npz``, its checksums being right."""
    sound, chance = entries_of(random_trace(1, ops=40, calls=8), tmp_path), random.Random(1)
    count, rounds = 0, 600 * ROUNDS
    with bounded(MEMORY, SECONDS):
        for _ in range(rounds):
            entries = {name: values.copy() for name, values in sound.items()}
            if chance.random() < 0.3:
                tables = damage_json(json.loads(entries["metadata"].tobytes()), chance)
                entries["metadata"] = np.frombuffer(json.dumps(tables).encode(), np.uint8)
            else:
                damage_columns(entries, chance)
            save_entries(tmp_path / "damaged.npz", entries)
            count += refused(tmp_path / "damaged.npz")
    assert rounds // 8 < count < rounds


@pytest.mark.parametrize("suffix", [".json", ".json.gz"])
def test_chrome_files_with_damaged_values(tmp_path: Path, suffix: str) -> None:
    """Every event and table of our Chrome JSON."""
    random_trace(2, ops=40, calls=8).save(tmp_path / "sound.json")
    sound, chance = (tmp_path / "sound.json").read_bytes(), random.Random(2)
    start = sound.index(b'"metadata":') + len(b'"metadata":')
    metadata, end = json.JSONDecoder().raw_decode(sound.decode("ascii"), start)
    count, rounds = 0, 300 * ROUNDS
    damaged = tmp_path / f"damaged{suffix}"
    with bounded(MEMORY, SECONDS):
        for _ in range(rounds):
            if chance.random() < 0.7:
                text = damage_numbers(sound, chance)
            else:
                changed = json.dumps(damage_json(metadata, chance)).encode()
                text = sound[:start] + changed + sound[end:]
            damaged.write_bytes(gzip.compress(text, 1) if suffix == ".json.gz" else text)
            count += refused(damaged)
    assert rounds // 8 < count < rounds
