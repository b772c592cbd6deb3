"""Damage dumps and trace files where it hurts: whole fields, with numbers to be wary of."""

from __future__ import annotations

import random
import re
import resource
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from relax_trace.recorder.dumps import _HEADER, _THREAD, INVOCATION, OP

# What a field becomes: nothing, everything, the edges of its kinds of number.
EDGES = [0, 1, 2, 7, *(1 << bits for bits in (7, 15, 16, 24, 31, 32, 40, 47, 62, 63))]
EDGES += [edge - 1 for edge in EDGES]


@contextmanager
def bounded(memory: int, seconds: int) -> Iterator[None]:
    """Let this process take at most so many more bytes of address space, and not run for longer."""

    def on_alarm(*_: Any) -> None:
        raise AssertionError(f"still busy after {seconds} s")

    pages = int(Path("/proc/self/statm").read_text().split()[0])
    before = resource.getrlimit(resource.RLIMIT_AS)
    handler = signal.signal(signal.SIGALRM, on_alarm)
    resource.setrlimit(resource.RLIMIT_AS, (pages * resource.getpagesize() + memory, before[1]))
    signal.alarm(seconds)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, handler)
        resource.setrlimit(resource.RLIMIT_AS, before)


def sections(dump: bytes) -> list[tuple[str, int, np.dtype[Any], int]]:
    """The parts of a sound dump: name, where it begins, type and number of its elements."""
    found: list[tuple[str, int, np.dtype[Any], int]] = []
    at = 0

    def add(name: str, dtype: Any, count: int) -> np.ndarray[Any, Any]:
        nonlocal at
        kind = np.dtype(dtype)
        found.append((name, at, kind, count))
        values = np.frombuffer(dump, kind, count, at)
        at += kind.itemsize * count + 7 & ~7
        return values

    header = add("header", _HEADER, 1)[0]
    add("name flags", "<u4", int(header["name_count"]))
    add("name lengths", "<u4", int(header["name_count"]))
    add("name bytes", "u1", int(header["name_bytes"]))
    add("word counts", "<u4", int(header["signature_count"]))
    add("words", "<u8", int(header["signature_words"]))
    for _ in range(int(header["thread_count"])):
        head = add("thread", _THREAD, 1)[0]
        add("invocations", INVOCATION, int(head["invocations"]))
        add("ops", OP, int(head["ops"]))
    assert at == len(dump)
    return found


def damage_dump(dump: bytes, chance: random.Random) -> bytes:
    """The dump with some of its fields changed, and its tables and records as long as before."""
    raw = np.frombuffer(dump, np.uint8).copy()
    parts = [part for part in sections(dump) if part[3]]
    for _ in range(chance.choice((1, 1, 2, 5))):
        name, at, dtype, count = chance.choice(parts)
        values = raw[at : at + dtype.itemsize * count].view(dtype)
        if dtype.names:
            # A changed count is refused at once, which is soon known.
            fields = [field for field in dtype.names if name != "header" or chance.random() < 0.2]
            values = values[chance.choice(fields)] if fields else values
        _damage(values, chance)
    return raw.tobytes()


def _damage(values: np.ndarray[Any, Any], chance: random.Random) -> None:
    """Change some of the values, or their order."""
    rows = chance.sample(range(len(values)), chance.randint(1, min(len(values), 4)))
    if values.dtype.kind != "u":
        if not values.dtype.names:
            values[rows] = chance.randbytes(values.itemsize)
        return
    most = int(np.iinfo(values.dtype).max)
    how = chance.randrange(4)
    if how == 0:
        values[rows] = chance.choice(EDGES) & most
    elif how == 1:
        values[rows] = chance.getrandbits(64) & most
    elif how == 2:
        values[rows] += np.array(chance.choice((1, most)), values.dtype)
    else:
        values[rows] = values[chance.sample(range(len(values)), len(rows))]


def damage_columns(columns: dict[str, np.ndarray[Any, Any]], chance: random.Random) -> None:
    """Change some numbers of some columns in place."""
    named = [name for name, values in columns.items() if len(values) and name != "metadata"]
    for name in chance.sample(named, chance.choice((1, 1, 2, 4))):
        _damage(columns[name].view(f"u{columns[name].itemsize}"), chance)


def damage_json(value: Any, chance: random.Random) -> Any:
    """The same JSON with one of its values, at any depth, replaced by something else."""
    if chance.random() < 0.1 or not isinstance(value, dict | list) or not value:
        return chance.choice([None, True, -1, 0, 0.5, 1e300, "", "x", [], {}, *EDGES])
    if isinstance(value, list):
        at = chance.randrange(len(value))
        return [*value[:at], damage_json(value[at], chance), *value[at + 1 :]]
    key = chance.choice(list(value))
    return value | {key: damage_json(value[key], chance)}


_NUMBER = re.compile(rb"(?<=[:,\[])-?\d+(\.\d{3})?(?=[],}])")


def damage_numbers(text: bytes, chance: random.Random) -> bytes:
    """JSON with some of its numbers changed; one with three decimals keeps as many."""
    for _ in range(chance.choice((1, 1, 2, 4))):
        number = chance.choice(list(_NUMBER.finditer(text)))
        other = chance.choice(
            [*EDGES, -1, -(1 << 63), 1 << 64, int(number[0].partition(b".")[0]) + 1]
        )
        spelt = f"{other}.{chance.choice(('000', '001', '999'))}" if number[1] else str(other)
        text = text[: number.start()] + spelt.encode() + text[number.end() :]
    return text
