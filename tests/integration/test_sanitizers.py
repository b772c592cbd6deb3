"""The recorder under AddressSanitizer, UndefinedBehaviorSanitizer and ThreadSanitizer, without TVM.

The programs in tests/recorder play the VM: see driver.h there. They need gcc or clang with these
sanitizers, and the headers of tvm-ffi.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import relax_trace
from recorder.play import (
    RECORDER_SOURCE,
    SANITIZERS,
    Builds,
    Played,
    compile_c,
    compilers_file,
    decoded,
    ops_of,
    play,
    read_dumps,
    run,
)
from relax_trace.signature import Signatures
from relax_trace.trace import ABORTED, FAILED, IMPLICIT, SAMPLED, SIGNATURE_LOST, SYNCHRONIZED


def threw_error(function: str) -> bool:
    """Whether the function throws an error that has a text."""
    letters = function.rstrip("0123456789_")
    return "t" in letters and "p" not in letters


def check_whole(played: Played) -> None:
    """Each invocation through the wrapper has each of its calls, and an error if it threw one."""
    for function, flags, error, count in played.invocations():
        if not flags & IMPLICIT:
            assert count == ops_of(function), function
            assert flags & ~SAMPLED in (0, FAILED)
            assert (error >= 0) == (flags & FAILED > 0 and threw_error(function)), function


def check_counted(played: Played) -> None:
    """Every call and every invocation is recorded, or counted as lost."""
    trace = played.trace
    assert len(trace) + trace.losses.ops == played.done["ops"]
    # One that began while there was no memory for its thread may be seen, later on, as one more.
    more = played.explicit + trace.losses.invocations - played.done["wrapped"]
    assert 0 <= more <= len(trace.threads) * (trace.losses.invocations > 0)
    assert np.count_nonzero(trace.flags & SIGNATURE_LOST) <= trace.losses.signatures
    for function, flags, _, count in played.invocations():
        assert flags & IMPLICIT or count <= ops_of(function)


each_seed = pytest.mark.parametrize("seed", range(3))
each_sanitizer = pytest.mark.parametrize("sanitizer", ["memory", "threads"])


@each_sanitizer
@each_seed
@pytest.mark.parametrize("scenario", ["alone", "threads", "churn"])
def test_every_call_is_recorded(
    builds: Builds, tmp_path: Path, sanitizer: str, scenario: str, seed: int
) -> None:
    """Nested, throwing, on threads that come and go, while another dumps: nothing is lost."""
    played = play(builds, sanitizer, scenario, seed, tmp_path)
    assert played.trace.losses == relax_trace.Losses()
    check_counted(played)
    check_whole(played)


@each_sanitizer
@each_seed
def test_recordings_that_start_and_stop_meanwhile(
    builds: Builds, tmp_path: Path, sanitizer: str, seed: int
) -> None:
    """An invocation is recorded from its start to its end, or not at all."""
    played = play(builds, sanitizer, "toggle", seed, tmp_path)
    assert played.trace.losses == relax_trace.Losses()
    assert 0 < played.explicit < played.done["wrapped"]
    check_whole(played)


@each_sanitizer
@each_seed
def test_everything_at_once(builds: Builds, tmp_path: Path, sanitizer: str, seed: int) -> None:
    """Recordings, limits and failing allocations come and go: nothing breaks, or is made up."""
    played = play(builds, sanitizer, "chaos", seed, tmp_path)
    assert 0 < len(played.trace) < played.done["ops"]
    for function, flags, _, count in played.invocations():
        assert flags & IMPLICIT or count <= ops_of(function)


@each_sanitizer
@each_seed
@pytest.mark.parametrize("scenario", ["limits", "memory", "deep"])
def test_what_is_lost_is_counted(
    builds: Builds, tmp_path: Path, sanitizer: str, scenario: str, seed: int
) -> None:
    """No bytes left, no memory, nested too deep: each call and invocation is there, or counted."""
    played = play(builds, sanitizer, scenario, seed, tmp_path)
    assert played.trace.losses.ops > 0
    assert played.trace.losses.invocations > 0
    check_counted(played)


@each_sanitizer
@each_seed
def test_the_same_again_takes_no_more_memory(
    builds: Builds, tmp_path: Path, sanitizer: str, seed: int
) -> None:
    """What was dumped is given back: the program itself compares the bytes after each round."""
    check_whole(play(builds, sanitizer, "flat", seed, tmp_path))


@each_sanitizer
@each_seed
def test_contexts_are_those_that_the_hook_told(
    builds: Builds, tmp_path: Path, sanitizer: str, seed: int
) -> None:
    """Hooks answer, or not, or fail, and are replaced meanwhile: each answer is in its record."""
    played = play(builds, sanitizer, "contexts", seed, tmp_path)
    check_counted(played)
    check_whole(played)
    calls = played.trace.invocations
    told = calls.span_id > 0
    assert sorted(calls.span_id[told].tolist()) == list(range(1, played.done["spans"] + 1))
    assert 50 < told.sum() < len(calls)
    halves = calls.trace_id.view(">u8")
    assert (halves[told] == ~calls.span_id[told, None]).all()
    assert not halves[~told].any()
    sampled = (calls.flags & SAMPLED) > 0
    assert (sampled == (calls.span_id % 2 == 1)).all()


@each_sanitizer
def test_a_thread_id_that_is_used_again(builds: Builds, tmp_path: Path, sanitizer: str) -> None:
    """Threads that had one id after each other don't mix; Linux may have but 32,768 of them."""
    played = play(builds, sanitizer, "reused_ids", 1, tmp_path)
    check_counted(played)
    check_whole(played)


@each_sanitizer
def test_a_thread_that_ends_after_a_throw(builds: Builds, tmp_path: Path, sanitizer: str) -> None:
    """What it left open is recorded as aborted, though no later call tells that it ended."""
    played = play(builds, sanitizer, "thread_ends_after_throw", 1, tmp_path)
    check_counted(played)
    assert np.count_nonzero(played.trace.flags & ABORTED) >= len(played.trace.threads) == 4


@each_sanitizer
@pytest.mark.parametrize("scenario", ["slots", "inside", "refused", "recycled_symbol"])
def test_the_instruments_slot(
    builds: Builds, tmp_path: Path, sanitizer: str, scenario: str
) -> None:
    """Taken over, gone with its VM, wanted and not inside an op: the program checks it as it goes.

    So are calls that make no sense; and a symbol in the memory of a longer name that held a NUL.
    """
    played = play(builds, sanitizer, scenario, 1, tmp_path)
    assert played.trace.losses == relax_trace.Losses()


@each_sanitizer
@each_seed
def test_devices_synchronized_by_many_threads(
    builds: Builds, tmp_path: Path, sanitizer: str, seed: int
) -> None:
    """Each call is synchronized, but under graph capture, or where the device fails."""
    played = play(builds, sanitizer, "synchronized", seed, tmp_path)
    trace = played.trace
    check_counted(played)
    check_whole(played)
    capture = trace.names.index("vm.builtin.cuda_graph.run_or_capture")
    captured = np.zeros(len(trace) + 1, bool)  # the last one answers for a parent of -1
    for row, parent in enumerate(trace.parent.tolist()):
        captured[row] = captured[parent] or (parent >= 0 and trace.name[parent] == capture)
    synchronized = (trace.flags & SYNCHRONIZED) > 0
    assert not synchronized[captured[:-1]].any()
    # What an op invokes may be under capture as well; and the last thread's device fails.
    outermost = trace.invocations.parent[trace.invocation] < 0
    failing = trace.thread == trace.thread[-1]
    assert synchronized[outermost & ~failing & ~captured[:-1]].all()
    assert 0 < np.count_nonzero(synchronized[failing]) < np.count_nonzero(failing)


@pytest.mark.parametrize(
    ("sanitizer", "scenario"),
    [
        ("memory", "forks_parked"),
        ("threads", "forks_parked"),
        ("undefined", "forks_parked"),
        ("undefined", "forks_running"),
    ],
)
@each_seed
def test_forks(builds: Builds, tmp_path: Path, sanitizer: str, scenario: str, seed: int) -> None:
    """The parent loses nothing; a child records what it runs itself, and ends what was open."""
    played = play(builds, sanitizer, scenario, seed, tmp_path)
    check_counted(played)
    check_whole(played)
    pids = {played.dumps.pid}
    for number in range(7):
        dumps = read_dumps(tmp_path / f"dumps.child{number}")
        (records,) = dumps.threads.values()
        assert sum(map(len, records.ops)) == played.done[f"child{number}"]
        assert dumps.losses == relax_trace.Losses()
        assert [call[0] for call in Played({}, dumps, decoded(dumps)).invocations()][-4:] == [
            *("ct20_1", "cnv40_1", "ctk30_2", "c1_1"),
        ]
        pids.add(dumps.pid)
    assert len(pids) == 8


@pytest.mark.parametrize("seed", range(2))
def test_hostile_arguments(builds: Builds, tmp_path: Path, seed: int) -> None:
    """Whatever an op is given, its words follow the grammar: the program checks each of them.

    Of the first ones the text is made here, too.
    """
    out = tmp_path / "words"
    assert run(builds.program("fuzz_encoding", "memory"), str(seed), "60000", str(out)) == ""
    words, signatures = np.fromfile(out, "<u8").tolist(), []
    while words:
        signatures.append(words[1 : 1 + words[0]])
        del words[: 1 + words[0]]
    assert len(signatures) == 1500
    described = Signatures.from_lists(signatures)
    assert len(described.texts) == len(signatures) + 1
    assert described.has_tensor.any()
    assert (described.devices >= -1).all()


# Other tests, with this build of the recorder in place of the installed one.
WITH_REAL_VM = """
import sys
from pathlib import Path
from relax_trace.recorder import native
native.LIBRARY = Path(sys.argv[1])
import pytest
sys.exit(pytest.main(["-q", "-p", "no:cacheprovider", *sys.argv[2:]]))
"""


def test_the_real_vm_under_address_sanitizer(tmp_path: Path) -> None:
    """What is tested of throws and of entry points holds, and no memory is misused.

    Python and TVM are not built with the sanitizer: it is loaded ahead of all, with the C++ library
    whose exceptions it watches. Python keeps memory to its end, so that leaks are not looked for.
    """
    library = tmp_path / "librelax_trace_recorder.so"
    sanitize = ("-g", f"-fsanitize={SANITIZERS['memory']}", "-fno-sanitize-recover=all")
    compile_c(*sanitize, "-fPIC", "-shared", "-Wl,-z,nodelete", "-o", str(library), RECORDER_SOURCE)
    here = Path(__file__).parent
    files = [str(here / f"test_{name}.py") for name in ("throw", "entry_points")]
    ended = subprocess.run(
        [sys.executable, "-c", WITH_REAL_VM, str(library), *files],
        cwd=here.parent,
        env={
            **os.environ,
            "LD_PRELOAD": " ".join(map(compilers_file, ("libasan.so", "libstdc++.so"))),
            "ASAN_OPTIONS": "detect_leaks=0",
        },
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    assert (ended.returncode, ended.stderr) == (0, ""), ended.stdout + ended.stderr


@pytest.mark.parametrize("level", ["-O0", "-O2", "-O3"])
def test_the_recorder_compiles_without_a_warning(tmp_path: Path, level: str) -> None:
    """Other optimisations see other things; conversions that lose bits are all written out."""
    out = str(tmp_path / "recorder.so")
    compile_c(level, "-fPIC", "-shared", "-Wshadow", "-o", out, RECORDER_SOURCE)
