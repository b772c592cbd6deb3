"""What a form of OTLP has to be able to write: ``protobuf`` and ``json_lines`` are two."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from ...ragged import Index, Part, Ragged
from .spans import Spans
from .templates import Template, Value


class Form(Protocol):
    """A module of functions; what they return has a row for each of theirs."""

    def tail(self, template: Template) -> bytes:
        """All fields of a span that don't vary."""

    def spans(self, columns: Spans, tails: Part, extras: Sequence[Part]) -> Ragged:
        """Whole spans, from columns, tails, and further attributes."""

    def strings(self, key: str, pieces: Ragged, first: Index) -> Ragged:
        """An attribute that holds strings; none where there is no string."""

    def integers(self, key: str, values: Index) -> Ragged:
        """An attribute that holds an integer."""

    def doubles(self, key: str, values: NDArray[np.float64]) -> Ragged:
        """An attribute that holds a double."""

    def resource(self, attributes: Mapping[str, Value]) -> bytes:
        """What is said of the process, once a request."""

    def scope(self, name: str, version: str) -> bytes:
        """What spans are said to come from."""

    def request(self, resource: bytes, scopes: Mapping[bytes, memoryview]) -> bytes:
        """A request of the spans of some scopes."""
