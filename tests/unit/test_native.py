"""``.npz`` files: what comes back, what is refused, and what a failed write leaves behind."""

from __future__ import annotations

import io
import json
import os
import random
import re
import stat
import zipfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from relax_trace import Trace, TraceFileError, files, load
from relax_trace.spans import no_spans
from unit.random_traces import contents, random_trace
from unit.traces import Op, trace_of

SUFFIXES = (".npz", ".json", ".json.gz")


@pytest.mark.parametrize("suffix", SUFFIXES)
@pytest.mark.parametrize("seed", range(3))
def test_every_form_gives_back_the_same_trace(tmp_path: Path, suffix: str, seed: int) -> None:
    """Columns with their types, tables and texts are equal after a save and a load."""
    trace = random_trace(seed)
    trace.save(tmp_path / f"trace{suffix}")
    assert contents(load(tmp_path / f"trace{suffix}")) == contents(trace)


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_an_empty_trace_is_a_trace(tmp_path: Path, suffix: str) -> None:
    """No op at all, and then no invocation either, come back as they were."""
    empty = trace_of([])
    for trace in (empty, empty.take_invocations(np.array([False]))):
        trace.save(tmp_path / f"trace{suffix}")
        assert contents(load(tmp_path / f"trace{suffix}")) == contents(trace)


def test_numpy_opens_the_native_form(tmp_path: Path) -> None:
    """Every column is an entry that ``numpy.load`` reads without pickles."""
    trace = random_trace(1)
    trace.save(tmp_path / "trace.npz")
    with np.load(tmp_path / "trace.npz", allow_pickle=False) as entries:
        assert entries["start"].tolist() == trace.start.tolist()
        assert entries["invocations.error"].dtype == np.int32
        assert json.loads(entries["metadata"].tobytes())["format"] == "relax_trace"


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_a_file_cut_anywhere_is_refused(tmp_path: Path, suffix: str) -> None:
    """However much of the end is missing, the error is ours and names the file."""
    file = tmp_path / f"trace{suffix}"
    random_trace(2, ops=20, calls=5).save(file)
    whole = file.read_bytes()
    for length in [*range(60), *range(60, len(whole) - 3, 97), len(whole) - 4]:
        file.write_bytes(whole[:length])
        with pytest.raises(TraceFileError, match=re.escape(repr(str(file)))):
            load(file)


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_a_flipped_bit_is_refused_or_harmless(tmp_path: Path, suffix: str) -> None:
    """A wrong bit gives our error, or a trace; in a form with checksums, the same trace."""
    file = tmp_path / f"trace{suffix}"
    trace = random_trace(3, ops=20, calls=5)
    trace.save(file)
    whole, chance, refused = file.read_bytes(), random.Random(4), 0
    for _ in range(400):
        damaged = bytearray(whole)
        damaged[chance.randrange(len(whole))] ^= 1 << chance.randrange(8)
        file.write_bytes(damaged)
        try:
            found = load(file)
        except TraceFileError:
            refused += 1
        else:
            assert suffix == ".json" or contents(found) == contents(trace)
    assert refused > 40


def _entries(trace: Trace) -> dict[str, bytes]:
    stream = io.BytesIO()
    with zipfile.ZipFile(_saved(trace, stream)) as archive:
        return {name: archive.read(name) for name in archive.namelist()}


def _saved(trace: Trace, stream: io.BytesIO) -> io.BytesIO:
    from relax_trace.exporters import native

    native.write(trace, stream)
    return stream


def _npy(values: Any) -> bytes:
    stream = io.BytesIO()
    np.lib.format.write_array(stream, np.asarray(values), allow_pickle=True)
    return stream.getvalue()


def _header(text: str) -> bytes:
    return b"\x93NUMPY\x01\x00" + len(text).to_bytes(2, "little") + text.encode()


_HUGE = "{'descr': '<i8', 'fortran_order': False, 'shape': (99999999999999,), }\n"
_OPS = 20


@pytest.mark.parametrize(
    ("entry", "content", "message"),
    [
        ("start.npy", None, "column 'start' is missing"),
        ("start.npy", _header(_HUGE), "'start' is not as long as it says"),
        ("start.npy", _header("(" * 5000), "'start' is not a row of '<i8' numbers"),
        ("start.npy", _npy(np.zeros(_OPS)), "'start' is not a row of '<i8' numbers"),
        ("start.npy", _npy(np.zeros((_OPS, 1), "<i8")), "'start' is not a row"),
        ("start.npy", _npy([{}] * _OPS), "'start' is not a row of '<i8' numbers"),
        ("end.npy", _npy(np.zeros(3, "<i8")), "column 'end' does not have 20 rows"),
        ("name.npy", _npy(np.full(_OPS, 20, "<i4")), "'name' points outside its table"),
        ("parent.npy", _npy(np.arange(_OPS, dtype="<i4")), "a call comes before its parent"),
        ("signatures.offsets.npy", _npy(np.zeros(0, "<i8")), "its signatures are not as long"),
        ("signatures.words.npy", _npy(np.zeros(1, "<u8")), "its signatures are not as long"),
        ("spans.start.npy", None, "column 'spans.start' is missing"),
        ("spans.end.npy", _npy(np.zeros(60, "<i8")), "one ends before it starts"),
        ("spans.name.npy", _npy(np.full(60, 7, "<i4")), "'name' of the spans points outside"),
        ("spans.thread.npy", _npy(np.full(60, -1, "<i4")), "'thread' of the spans points outside"),
        ("spans.flags.npy", _npy(np.zeros(59, "<u2")), "'flags' of the spans is not 60 rows long"),
        ("spans.trace_id.npy", _npy(np.zeros(959, "|u1")), "a table is missing or malformed"),
        ("spans.trace_id.npy", _npy(np.zeros(944, "|u1")), "'trace_id' of the spans is not 60"),
        ("invocations.trace_id.npy", _npy(np.zeros(96, "|u1")), "invocations is not 5 rows long"),
        ("metadata.npy", None, "was not written by relax_trace"),
        ("metadata.npy", _npy(np.frombuffer(b"[1]", "u1")), "not written by relax_trace"),
        ("metadata.npy", _npy(np.frombuffer(b"{", "u1")), "cut short or damaged"),
        ("metadata.npy", _npy(np.frombuffer(b"[" * 100000, "u1")), "cut short or damaged"),
    ],
)
def test_a_hostile_entry_is_refused(
    tmp_path: Path, entry: str, content: bytes | None, message: str
) -> None:
    """Entries that lie about their size, type or place, or are missing, each say so."""
    entries = _entries(random_trace(5, ops=_OPS, calls=5))
    with zipfile.ZipFile(tmp_path / "trace.npz", "w") as archive:
        for name, stored in entries.items():
            if name != entry:
                archive.writestr(name, stored)
        if content is not None:
            archive.writestr(entry, content)
    with pytest.raises(TraceFileError, match=message):
        load(tmp_path / "trace.npz")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"version": 3}, "it has format version 3, this relax_trace reads up to 2: update it"),
        ({"version": "1"}, "its format version is '1'"),
        ({"names": None}, "a table is missing or malformed"),
        ({"names": ["\u0100"]}, "a table is missing or malformed"),
        ({"kinds": [300]}, "a table is missing or malformed"),
        ({"kinds": [0]}, "a name without a known kind"),
        ({"threads": [[1, 2]]}, "a table is missing or malformed"),
        ({"devices": [[1, 0.5]]}, "a table is missing or malformed"),
        ({"devices": []}, "column 'device' points outside its table of 0 entries"),
        ({"losses": {"ops": 1}}, "a table is missing or malformed"),
        ({"process": 1}, "a table is missing or malformed"),
    ],
)
def test_hostile_tables_are_refused(tmp_path: Path, change: dict[str, Any], message: str) -> None:
    """Tables of another version, shape or type each say what is wrong."""
    entries = _entries(random_trace(6))
    metadata = json.loads(entries["metadata.npy"].partition(b"\n")[2]) | change
    entries["metadata.npy"] = _npy(np.frombuffer(json.dumps(metadata).encode(), "u1"))
    with zipfile.ZipFile(tmp_path / "trace.npz", "w") as archive:
        for name, stored in entries.items():
            archive.writestr(name, stored)
    with pytest.raises(TraceFileError, match=re.escape(message)):
        load(tmp_path / "trace.npz")


def without_spans(trace: Trace) -> Trace:
    """As a file of version 1 has it."""
    calls = trace.invocations
    bare = replace(
        calls, trace_id=np.zeros_like(calls.trace_id), span_id=np.zeros_like(calls.span_id)
    )
    return replace(trace, invocations=bare, spans=no_spans(), losses=replace(trace.losses, spans=0))


def test_a_native_file_of_version_1_is_read(tmp_path: Path) -> None:
    """It knows nothing of spans and their ids, nor yet of calls that were overwritten."""
    trace = random_trace(6)
    entries = _entries(trace)
    metadata = json.loads(entries["metadata.npy"].partition(b"\n")[2])
    metadata["version"] = 1
    del metadata["losses"]["overwritten"], metadata["losses"]["spans"], metadata["span_names"]
    entries["metadata.npy"] = _npy(np.frombuffer(json.dumps(metadata).encode(), "u1"))
    gone = [name for name in entries if name.startswith("spans.") or name.endswith("_id.npy")]
    assert len(gone) == 10
    with zipfile.ZipFile(tmp_path / "trace.npz", "w") as archive:
        for name in entries.keys() - set(gone):
            archive.writestr(name, entries[name])
    expected = without_spans(replace(trace, losses=replace(trace.losses, overwritten=0)))
    assert contents(load(tmp_path / "trace.npz")) == contents(expected)


def test_a_chrome_file_of_version_1_is_read(tmp_path: Path) -> None:
    """A file without spans and ids differs from it in the number of the version alone."""
    trace, file = without_spans(random_trace(6)), tmp_path / "trace.json"
    trace.save(file)
    text = file.read_text()
    assert (text.count('"version":2'), text.count(',"span_names":[],')) == (1, 1)
    metadata = json.loads(text)["metadata"]
    assert not [key for key in metadata if key.startswith("spans.") or key.endswith("_id")]
    older = text.replace('"version":2', '"version":1').replace(',"span_names":[]', "")
    file.write_text(older.replace(',"spans":0}', "}"))
    assert contents(load(file)) == contents(trace)


def test_a_compressed_entry_is_refused(tmp_path: Path) -> None:
    """A small file can't unfold into a large one: our entries are stored as they are."""
    with zipfile.ZipFile(tmp_path / "trace.npz", "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("metadata.npy", bytes(10**6))
    with pytest.raises(TraceFileError, match="column 'metadata' is compressed"):
        load(tmp_path / "trace.npz")


@pytest.mark.parametrize(
    ("suffix", "content", "message"),
    [
        (".npz", b"", "it is empty"),
        (".npz", b'{"traceEvents":[]}', "it is JSON: if it is a trace, name it *.json"),
        (".npz", b"\x1f\x8b\x08", "it is compressed by gzip: if it is a trace, name it *.json.gz"),
        (".npz", b"hello", "it is not a trace, nor anything like it"),
        (".npz", b"PK\3\4", "it is cut short or damaged"),
        (".json", b"", "it is empty"),
        (".json", b"PK\3\4", "it is a zip archive: if it is a trace, name it *.npz"),
        (".json", b'{"traceEvents":[', "its JSON is cut short or damaged"),
        (".json", b"[" * 100000, "its JSON is cut short or damaged"),
        (".json", b'{"\xff":1}', "its JSON is cut short or damaged"),
        (".json", b"3", "it is not a trace, nor anything like it"),
        (".json", b'{"metadata":{}}', "it is JSON, but not a trace"),
        (".json", b'[{"ph":"X","ts":1.5e3,"dur":NaN}]', "another tool's Chrome trace: open it in"),
        (".json", b'{"traceEvents":[],"metadata":{"x":1}}', "https://ui.perfetto.dev"),
        (".json", b'{"metadata":{"format":"relax_trace","version":3}}', "format version 3"),
        (".json.gz", b'\n {"traceEvents":[]}', "it is JSON: if it is a trace, name it *.json"),
        (".json.gz", b"\x1f\x8b\x08", "it is cut short or damaged"),
    ],
)
def test_what_is_no_trace_of_ours_says_what_it_is(
    tmp_path: Path, suffix: str, content: bytes, message: str
) -> None:
    """Empty, mislabelled, foreign and newer files are told apart, in one line with the name."""
    file = tmp_path / f"trace{suffix}"
    file.write_bytes(content)
    with pytest.raises(TraceFileError) as caught:
        load(file)
    assert message in str(caught.value)
    assert str(caught.value).startswith(f"can't read {str(file)!r}: ")
    assert "\n" not in str(caught.value)


def test_another_suffix_is_refused_before_anything_is_written(tmp_path: Path) -> None:
    """The error lists the suffixes there are; the folder stays empty."""
    for act in (trace_of([]).save, load):
        with pytest.raises(TraceFileError, match=r"must end in \.npz, \.json, \.json\.gz"):
            act(tmp_path / "trace.txt")
    assert list(tmp_path.iterdir()) == []


class _FullDisk(io.FileIO):
    """A file on a disk that has room for a kilobyte."""

    def write(self, data: Any) -> int:
        if self.tell() + len(data) > 1024:
            raise OSError(28, "No space left on device")
        return super().write(data)


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_a_full_disk_leaves_nothing_behind(
    tmp_path: Path, suffix: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The error names the file asked for; the one that was there keeps its content."""
    file = tmp_path / f"trace{suffix}"
    file.write_bytes(b"earlier")
    monkeypatch.setattr(files, "open", _FullDisk, raising=False)
    with pytest.raises(OSError, match="No space left on device") as caught:
        random_trace(7).save(file)
    assert caught.value.filename == str(file)
    assert [path.name for path in tmp_path.iterdir()] == [file.name]
    assert file.read_bytes() == b"earlier"


def test_permissions_and_links_are_those_of_a_plain_open(tmp_path: Path) -> None:
    """A new file gets what the mask allows, an old one keeps its own, a link stays a link."""
    file, link = tmp_path / "trace.npz", tmp_path / "link.npz"
    link.symlink_to(file)
    mask = os.umask(0o027)
    try:
        trace_of([]).save(link)
        assert stat.S_IMODE(file.stat().st_mode) == 0o640
        file.chmod(0o604)
        trace_of([Op("add", 0, 1)]).save(link)
        assert stat.S_IMODE(file.stat().st_mode) == 0o604
    finally:
        os.umask(mask)
    assert link.is_symlink()
    assert len(load(file)) == 1


def test_a_path_that_cannot_be_written_is_known_beforehand(tmp_path: Path) -> None:
    """A missing folder, a folder as target, a file as folder; a good path leaves no trace of it."""
    (tmp_path / "file").write_bytes(b"kept")
    (tmp_path / "folder.json").mkdir()
    for bad, error in [
        ("missing/trace.json", FileNotFoundError),
        ("folder.json", IsADirectoryError),
        ("file/trace.json", NotADirectoryError),
    ]:
        for act in (files.check_writable, trace_of([]).save):
            with pytest.raises(error) as caught:
                act(tmp_path / bad)
            assert caught.value.filename == str(tmp_path / bad)
    files.check_writable(tmp_path / "trace.json")
    files.check_writable(tmp_path / "file")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["file", "folder.json"]
    assert (tmp_path / "file").read_bytes() == b"kept"
