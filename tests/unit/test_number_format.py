"""Numbers in the user's locale."""

from __future__ import annotations

import locale
import os
import struct
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from relax_trace import Losses
from relax_trace.report import Report
from relax_trace.report.number_format import NumberFormat
from unit.traces import Call, Op, trace_of


@pytest.mark.parametrize(
    ("conventions", "expected"),
    [
        (NumberFormat(), ["1234567.89", "-1234567", "999", "0.00"]),
        (NumberFormat(".", ",", b"\3\3"), ["1,234,567.89", "-1,234,567", "999", "0.00"]),
        (
            NumberFormat(",", "\xa0", b"\3"),
            ["1\xa0234\xa0567,89", "-1\xa0234\xa0567", "999", "0,00"],
        ),
        (NumberFormat(".", ",", b"\3\2"), ["12,34,567.89", "-12,34,567", "999", "0.00"]),
        (NumberFormat(".", "'", b"\2\x7f"), ["12345'67.89", "-12345'67", "9'99", "0.00"]),
        (NumberFormat(",", ".", b""), ["1234567,89", "-1234567", "999", "0,00"]),
    ],
)
def test_number_conventions(conventions: NumberFormat, expected: list[str]) -> None:
    """Digits are grouped as C's ``localeconv`` describes it."""
    numbers = ["1234567.89", "-1234567", "999", "0.00"]
    assert [conventions.localized(number) for number in numbers] == expected


def test_users_locale(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Duration and Count follow the user's locale, Percent doesn't; the process keeps its own."""
    write_numeric_locale(tmp_path / "xx_XX", point=b",", separator=b".", grouping=b"\3\3")
    monkeypatch.setenv("LOCPATH", str(tmp_path))
    monkeypatch.setenv("LC_ALL", "xx_XX")
    before = locale.setlocale(locale.LC_ALL)
    trace = trace_of(
        [Op("a", 0, 500_000_000, "int64[]")], [Call(0, 1_377_809_000)], losses=Losses(1234)
    )
    assert Report.from_trace(trace).table(col_sums=False).splitlines() == [
        "Name   Duration (us)  Percent  Device  Count  Argument Shapes  ",
        "a         500.000,00    36.29    cpu0      1          int64[]  ",
        "Total   1.377.809,00             cpu0      1                   ",
        "",
        "Configuration",
        "-------------",
        "Calls dropped: 1.234",
    ]
    assert locale.setlocale(locale.LC_ALL) == before


def write_numeric_locale(folder: Path, point: bytes, separator: bytes, grouping: bytes) -> None:
    """What ``localedef`` compiles an LC_NUMERIC to, so that no locale has to be installed."""
    texts = [(text + b"\0").ljust(4, b"\0") for text in (point, separator, grouping)]
    texts += [struct.pack("<I", ord(text)) for text in (separator, point)] + [b"UTF-8\0"]
    header = 8 + 4 * len(texts)
    offsets = np.cumsum([header, *map(len, texts[:-1])]).tolist()
    folder.mkdir()
    magic = 0x20031115 ^ 1
    raw = struct.pack(f"<{2 + len(texts)}I", magic, len(texts), *offsets) + b"".join(texts)
    (folder / "LC_NUMERIC").write_bytes(raw)


def test_invalid_locale_is_ignored(tmp_path: Path) -> None:
    """A locale that isn't there does no harm, in a fresh process as with LC_ALL set by a shell."""
    code = "from relax_trace.report.number_format import *; "
    code += "print(user_number_format() == NumberFormat())"
    environment = {**os.environ, "LC_ALL": "no_SUCH.locale"}
    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=tmp_path,  # not the source tree's: what is installed is tested
        env=environment,
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout == "True\n"
