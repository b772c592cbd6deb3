"""Rows of a Trace as whole spans, in either form: templates times columns."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ... import trace as model
from ...otel import conventions as names
from ...ragged import Index, Part, Ragged, concatenate
from ...signature import NO_DEVICE
from ...trace import Device, Trace
from ..templates import distinct
from .arguments import split_arguments
from .form import Form
from .spans import Identity, Spans, Totals
from .templates import invocation_template, op_template


@dataclass(frozen=True)
class Encoder:
    """What the spans of a Trace have in common, rendered once."""

    trace: Trace
    form: Form
    identity: Identity
    totals: Totals
    arguments: Ragged  # the attribute of each signature
    destination: Index  # of each signature: a number for where its copy goes, if it is one
    op_tail: Callable[..., bytes]
    invocation_tail: Callable[..., bytes]

    @classmethod
    def of(cls, trace: Trace, form: Form, identity: Identity, trace_state: str = "") -> Encoder:
        """Prepare to encode; linear in the signatures and invocations."""
        codes, destination = np.unique(
            np.append(trace.signatures.destinations, NO_DEVICE), return_inverse=True
        )
        devices = [
            None if code == NO_DEVICE else Device(code >> 32, code & 0xFFFFFFFF)
            for code in codes.tolist()
        ]

        def op_tail(flags: int, device: int, to: int, *rest: int) -> bytes:
            template = op_template(trace, flags, device, devices[to], *rest)
            return form.tail(replace(template, trace_state=trace_state))

        def invocation_tail(*key: Any) -> bytes:
            return form.tail(invocation_template(trace, *key))

        return cls(
            trace,
            form,
            identity,
            Totals.of(trace),
            form.strings(names.OP_SHAPES, *split_arguments(trace.signatures.texts)),
            destination.astype(np.int64),
            functools.cache(op_tail),
            functools.cache(invocation_tail),
        )

    def ops(self, rows: slice) -> Ragged:
        """The spans of these rows of ops."""
        trace, signature = self.trace, self.trace.signature[rows].astype(np.int64)
        flags = trace.flags[rows] & np.uint16(model.ABORTED | model.SIGNATURE_LOST)
        aborted = (flags & np.uint16(model.ABORTED)) > 0
        error = trace.invocations.error[trace.invocation[rows]]
        tails = _tails(
            self.op_tail,
            flags,
            trace.device[rows],
            self.destination[signature],
            trace.thread[rows],
            trace.name[rows],
            np.where(aborted, error, -1),
        )
        columns = Spans.of_ops(trace, self.identity, rows)
        return self.form.spans(columns, *_merged(tails, (self.arguments, signature)))

    def invocations(self, rows: Index) -> Ragged:
        """The spans of these rows of invocations."""
        calls, totals = self.trace.invocations, self.totals
        tails = _tails(
            self.invocation_tail,
            calls.flags[rows],
            totals.synchronized[rows].astype(np.int8),
            (calls.parent[rows] < 0).astype(np.int8),
            calls.thread[rows],
            calls.vm[rows],
            calls.function[rows],
            calls.error[rows],
        )
        numbers: list[Part] = [
            self.form.integers(names.OP_COUNT, totals.count[rows]),
            self.form.doubles(names.OP_TIME, totals.seconds[rows]),
        ]
        columns = Spans.of_invocations(self.trace, self.identity, rows)
        return self.form.spans(columns, tails, numbers)


def _merged(tails: tuple[Ragged, Index], extra: tuple[Ragged, Index]) -> tuple[Part, list[Part]]:
    """The same, as one part if many rows share both: fewer pieces to move."""
    rows, index = distinct(tails[1], extra[1])
    if len(rows) > len(index) // 4:
        return tails, [extra]
    both: list[Part] = [(table, which[rows]) for table, which in (tails, extra)]
    return (concatenate(len(rows), both), index), []


def _tails(
    render: Callable[..., bytes], *columns: NDArray[np.integer[Any]]
) -> tuple[Ragged, Index]:
    """``render(...)`` of each distinct combination of the columns, and which one each row has."""
    rows, index = distinct(*columns)
    tails = [*map(render, *(column[rows].tolist() for column in columns))]
    return Ragged.from_bytes(tails), index
