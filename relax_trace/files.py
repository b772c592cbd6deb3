"""Files that are written whole or not at all."""

from __future__ import annotations

import os
import secrets
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO


@contextmanager
def replacing(path: str | os.PathLike[str]) -> Iterator[BinaryIO]:
    """A stream whose bytes become the file ``path`` when the block ends, and vanish if it raises.

    They go to a temporary file in the same folder that is then renamed, so that nobody ever sees
    half a file. The file's permissions are those that ``open(path, "wb")`` would have left, and a
    symbolic link stays one. Raises ``OSError`` that names ``path`` where it can't be written.
    """
    target, temporary = _names(path)
    try:
        mode = _mode(target)
        with open(temporary, "xb") as stream:
            if mode is not None:
                temporary.chmod(mode)
            yield stream
        os.replace(temporary, target)
    except BaseException as error:
        _remove(temporary)
        if isinstance(error, OSError) and error.filename in (None, str(target), str(temporary)):
            raise OSError(error.errno, error.strerror, os.fspath(path)) from error
        raise


def check_writable(path: str | os.PathLike[str]) -> None:
    """Raise the ``OSError`` that writing ``path`` would meet; for before a long run, not after."""
    target, temporary = _names(path)
    try:
        _mode(target)
        with open(temporary, "xb"):
            pass
    except OSError as error:
        raise OSError(error.errno, error.strerror, os.fspath(path)) from error
    finally:
        _remove(temporary)


def _names(path: str | os.PathLike[str]) -> tuple[Path, Path]:
    target = Path(os.path.realpath(path))
    return target, target.with_name(f".relax_trace-{secrets.token_hex(8)}.tmp")


def _remove(temporary: Path) -> None:
    with suppress(OSError):  # it may not be there, nor its folder; another error matters more
        temporary.unlink()


def _mode(target: Path) -> int | None:
    """The permissions that ``target`` has and shall keep, or None where there is no such file."""
    if not target.exists():
        return None
    # A rename replaces a protected file without a word. Opening it for appending, which changes
    # nothing, meets the error that writing to it would have met.
    with open(target, "ab"):
        return stat.S_IMODE(target.stat().st_mode)
