"""What an ELF file says of itself: the machine it is for, and the oldest glibc that loads it."""

from __future__ import annotations

import re
import struct
from dataclasses import dataclass
from pathlib import Path

from ..errors import RecorderError

# e_machine, bits and byte order to what `uname -m` says there; ARM's is that of version 7
_BY_NUMBER = {
    (3, 1, 1): "i686",
    (20, 1, 2): "ppc",
    (21, 2, 1): "ppc64le",
    (40, 1, 1): "armv7l",
    (62, 2, 1): "x86_64",
    (183, 2, 1): "aarch64",
    (243, 1, 1): "riscv32",
    (243, 2, 1): "riscv64",
    (258, 2, 1): "loongarch64",
}
MACHINES = frozenset(_BY_NUMBER.values())
_GLIBC = re.compile(rb"\0GLIBC_(\d+)\.(\d+)(?=[.\0])")


@dataclass(frozen=True)
class Elf:
    """``machine`` as ``uname -m`` calls it; ``glibc`` as (2, 17), or None where it needs none."""

    machine: str
    glibc: tuple[int, int] | None


def read(path: Path) -> Elf:
    """Look into an object file or a library; raises ``RecorderError`` where it is neither."""
    content = path.read_bytes()
    if len(content) < 20 or content[:4] != b"\x7fELF":
        raise RecorderError(f"{path} is no ELF file: the compiler does not build for Linux")
    bits, order = content[4], content[5]
    (number,) = struct.unpack_from("<H" if order == 1 else ">H", content, 18)
    versions = [(int(major), int(minor)) for major, minor in _GLIBC.findall(content)]
    machine = _BY_NUMBER.get((number, bits, order), f"ELF machine {number}")
    return Elf(machine, max(versions, default=None))
