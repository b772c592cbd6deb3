"""How the user's locale writes numbers: thousands separators and decimal point."""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Iterator
from dataclasses import dataclass

# glibc's <langinfo.h>; Python's locale module names only the first two of them.
_RADIXCHAR, _THOUSEP, _GROUPING = 0x10000, 0x10001, 0x10002
_LC_NUMERIC_MASK = 1 << 1
_NO_MORE_GROUPS = 127  # CHAR_MAX; where char is unsigned it is 255


@dataclass(frozen=True)
class NumberFormat:
    """Conventions for numbers, those of the C locale if not told otherwise.

    ``grouping`` holds sizes of groups from the right, as C's ``localeconv`` gives them: the last
    one repeats, and 127 or more leaves all further digits together.
    """

    decimal_point: str = "."
    separator: str = ""
    grouping: bytes = b""

    def localized(self, number: str) -> str:
        """``"1234567.89"``, as C prints it, in these conventions: ``"1,234,567.89"``."""
        whole, point, fraction = number.partition(".")
        if self.separator and self.grouping:
            digits = whole.lstrip("-")
            groups = [digits[a:b] for a, b in self._groups(len(digits))]
            whole = whole[: len(whole) - len(digits)] + self.separator.join(reversed(groups))
        return whole + (self.decimal_point + fraction if point else "")

    def microseconds(self, ns: float) -> str:
        """Nanoseconds as microseconds with two decimals."""
        return self.localized(f"{ns / 1000:.2f}")

    def count(self, number: int) -> str:
        """A whole number."""
        return self.localized(str(number))

    def _groups(self, end: int) -> Iterator[tuple[int, int]]:
        """Where the groups of a number of ``end`` digits start and end, from the right."""
        sizes = iter(self.grouping)
        size = 0
        while end > 0:
            size = next(sizes, size)
            start = 0 if size >= _NO_MORE_GROUPS else max(end - size, 0)
            yield start, end
            end = start


def user_number_format() -> NumberFormat:
    """The conventions that ``LC_ALL``, ``LC_NUMERIC`` or ``LANG`` ask for.

    Those of C where there is no such locale, and outside glibc. Python's ``setlocale`` would change
    the locale of the whole process under other threads, so this looks into a locale of its own.
    """
    if sys.platform != "linux":
        return NumberFormat()
    libc = ctypes.CDLL(None)
    libc.newlocale.argtypes = [ctypes.c_int, ctypes.c_char_p, ctypes.c_void_p]
    libc.newlocale.restype = ctypes.c_void_p
    libc.nl_langinfo_l.argtypes = [ctypes.c_int, ctypes.c_void_p]
    libc.nl_langinfo_l.restype = ctypes.c_char_p
    libc.freelocale.argtypes = [ctypes.c_void_p]
    locale = libc.newlocale(_LC_NUMERIC_MASK, b"", None)
    if not locale:
        return NumberFormat()
    try:
        point, separator, grouping = (
            libc.nl_langinfo_l(item, locale) for item in (_RADIXCHAR, _THOUSEP, _GROUPING)
        )
    finally:
        libc.freelocale(locale)
    return NumberFormat(_decoded(point) or ".", _decoded(separator), grouping)


def _decoded(raw: bytes) -> str:
    try:
        return raw.decode()
    except UnicodeDecodeError:  # a locale of an 8-bit character set: a no-break space, as a rule
        return raw.decode("latin-1")
