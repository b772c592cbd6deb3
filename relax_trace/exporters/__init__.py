"""Files of a trace: which suffix means which format, written and read."""

from __future__ import annotations

import gzip
import os
from collections.abc import Callable, Sequence
from typing import BinaryIO

from ..errors import TraceFileError
from ..files import replacing
from ..trace import Trace
from . import chrome, chrome_load, native
from .otlp.packages import installed

# What a file with each suffix begins with, and is.
_FORMS = {
    ".npz": ((b"PK",), "a zip archive"),
    ".json": ((b"{", b"["), "JSON"),
    ".json.gz": ((b"\x1f\x8b",), "compressed by gzip"),
}
# Written for other programs, and not read back.
_OTLP = (".otlp.json", ".otlp.pb")
SUFFIXES = (*_FORMS, *_OTLP)


def suffix_of(path: str | os.PathLike[str], suffixes: Sequence[str] = SUFFIXES) -> str:
    """The one of ``suffixes`` that ``path`` has. Raises ``TraceFileError`` for another."""
    for suffix in sorted(SUFFIXES, key=len, reverse=True):  # .otlp.json ends in .json as well
        if os.fspath(path).lower().endswith(suffix) and suffix in suffixes:
            return suffix
    raise TraceFileError(
        f"{os.fspath(path)!r} is no trace file by its name: it must end in {', '.join(suffixes)}"
    )


def writer_of(path: str | os.PathLike[str]) -> Callable[[Trace, BinaryIO], None]:
    """What writes the form that the suffix of ``path`` names.

    Raises ``TraceFileError`` for another suffix, ``ExportError`` where it is OpenTelemetry's and
    that is not installed.
    """
    suffix = suffix_of(path)
    if suffix in _OTLP:
        with installed():
            from .otlp import files

        return {".otlp.json": files.write_json, ".otlp.pb": files.write_protobuf}[suffix]
    return {".npz": native.write, ".json": chrome.write, ".json.gz": _write_compressed}[suffix]


def save(trace: Trace, path: str | os.PathLike[str]) -> None:
    """Write ``trace`` to ``path`` in the form its suffix names, whole or not at all.

    Raises what :func:`writer_of` does, and ``OSError`` where the file can't be written.
    """
    write = writer_of(path)
    with replacing(path) as stream:
        write(trace, stream)


def load(path: str | os.PathLike[str]) -> Trace:
    """Read the trace in ``path``, by its suffix.

    Raises ``TraceFileError`` for a file that is damaged or not one of ours, ``OSError`` where it
    can't be read.
    """
    if os.fspath(path).lower().endswith(_OTLP):
        raise TraceFileError(
            f"can't read {os.fspath(path)!r}: OTLP files are for other programs; "
            f"relax_trace reads {', '.join(_FORMS)}"
        )
    suffix = suffix_of(path, tuple(_FORMS))
    readers = {
        ".npz": native.read,
        ".json": chrome_load.read,
        ".json.gz": chrome_load.read_compressed,
    }
    with open(path, "rb") as stream:
        data = stream.read()
    try:
        _check_form(data, suffix)
        return readers[suffix](data)
    except TraceFileError as error:
        raise TraceFileError(f"can't read {os.fspath(path)!r}: {error}") from error


def _check_form(data: bytes, suffix: str) -> None:
    """Raise ``TraceFileError`` where ``data`` are not what ``suffix`` says."""
    if not data:
        raise TraceFileError("it is empty")
    beginning = data[:100].lstrip()
    for fitting, (magics, description) in _FORMS.items():
        if beginning.startswith(magics):
            if fitting != suffix:
                raise TraceFileError(f"it is {description}: if it is a trace, name it *{fitting}")
            return
    raise TraceFileError("it is not a trace, nor anything like it")


def _write_compressed(trace: Trace, stream: BinaryIO) -> None:
    # Level 1: three times as fast as the default, for a file a quarter larger.
    with gzip.GzipFile("", "wb", 1, stream, mtime=0) as compressed:
        chrome.write(trace, compressed)  # type: ignore[arg-type]
