"""What the spans of one kind share, and say of their op or invocation: everything but numbers."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeAlias

from ... import trace as model
from ...otel import conventions as names
from ...trace import KINDS, Device, Trace
from ..templates import shown

Value: TypeAlias = str | bool | int | float | Sequence["Value"]


@dataclass(frozen=True)
class Template:
    """A span without ids, times and numbers of its own."""

    name: str
    attributes: dict[str, Value]
    failed: bool = False
    message: str = ""  # of the error
    dropped: int = 0  # attributes that are not there, though they should
    trace_state: str = ""  # of W3C's Trace Context


def text(value: str) -> str:
    """``value`` cut to a bearable length, as text that UTF-8 can hold: no lone surrogates."""
    return shown(value).encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")


def integer(value: int) -> int:
    """The nearest integer of 64 bits; others come from hostile files alone."""
    return max(-(2**63), min(2**63 - 1, value))


def op_template(
    trace: Trace, flags: int, device: int, destination: Device | None, thread: int, name: int,
    error: int,
) -> Template:  # fmt: skip
    """The span of a call; ``error`` is that of its invocation, which an aborted call shares."""
    attributes: dict[str, Value] = {
        names.OP_NAME: text(trace.names[name]),
        names.OP_KIND: KINDS[trace.kinds[name]],
    }
    attributes |= device_attributes(trace.devices[device] if device >= 0 else None, destination)
    attributes |= _thread(trace, thread)
    aborted = bool(flags & model.ABORTED)
    if aborted:
        attributes[names.ERROR_TYPE] = _error_type(trace, error)
    lost = bool(flags & model.SIGNATURE_LOST)
    return Template(text(trace.names[name]), attributes, failed=aborted, dropped=int(lost))


def device_attributes(device: Device | None, destination: Device | None) -> dict[str, str | int]:
    """What a call's span says of where it ran; of a copy, where to and where from."""
    found: dict[str, str | int] = {}
    if destination and device:
        found[names.SOURCE_TYPE] = device.type_name
        found[names.SOURCE_ID] = integer(device.index)
    if where := destination or device:
        found[names.DEVICE_TYPE] = where.type_name
        found[names.DEVICE_ID] = integer(where.index)
    return found


def invocation_template(
    trace: Trace, flags: int, synchronized: bool, outermost: bool, thread: int, vm: int,
    function: int, error: int,
) -> Template:  # fmt: skip
    """The span of an invocation."""
    attributes: dict[str, Value] = {
        names.MODEL_NAME: text(trace.vms[vm]),
        names.FUNCTION: text(trace.names[function]),
        names.TIMING: "synchronized" if synchronized else "host",
    }
    unseen = {"start": flags & model.IMPLICIT, "end": flags & model.OPEN}
    if any(unseen.values()):
        attributes[names.CAPTURE_UNSEEN] = [edge for edge, flag in unseen.items() if flag]
    if outermost and trace.losses.ops:
        attributes[names.OP_DROPPED] = integer(trace.losses.ops)
    attributes |= _thread(trace, thread)
    failed = bool(flags & model.FAILED) or error >= 0
    if failed:
        attributes[names.ERROR_TYPE] = _error_type(trace, error)
    message = text(trace.errors[error]) if error >= 0 else ""
    return Template(text(trace.names[function]), attributes, failed, message)


def _thread(trace: Trace, thread: int) -> dict[str, Value]:
    # The system's id: a Trace doesn't know Python's.
    found = trace.threads[thread]
    return {names.THREAD_ID: integer(found.tid), names.THREAD_NAME: text(found.name)}


def _error_type(trace: Trace, error: int) -> str:
    """``ValueError`` of ``"ValueError: bad shape"``."""
    match = re.match(r"([A-Za-z_][\w.]{0,99}):", trace.errors[error]) if error >= 0 else None
    return match[1] if match else names.OTHER_ERROR
