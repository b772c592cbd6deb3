"""``.npz``, the native form: every column as it is, and one entry of JSON for the tables.

A zip archive that ``numpy.load`` opens too, stored without compression and without pickles:
``start``, …, ``flags`` are the columns of the ops, ``invocations.start``, … those of the
invocations, ``spans.start``, … those of the application's own spans (16 bytes a trace id, end to
end), ``signatures.words`` and ``signatures.offsets`` the signatures; ``metadata`` is the JSON of
:func:`.tables.to_json` as bytes.

History of the format's version (:data:`.tables.VERSION`):

1. the first.
2. ``trace_id`` and ``span_id`` of the invocations; ``spans``. Files without them are read.
"""

from __future__ import annotations

import io
import json
import re
import struct
import zipfile
import zlib
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

from ..errors import TraceFileError
from ..trace import Trace
from . import tables

_DAMAGED = (
    EOFError,
    OverflowError,
    RuntimeError,
    ValueError,
    struct.error,
    zipfile.BadZipFile,
    zlib.error,
)
_SIGNATURE_COLUMNS = {"words": "<u8", "offsets": "<i8"}
_OWNERS = {"": tables.OP_COLUMNS, "invocations.": tables.INVOCATION_COLUMNS}
_OWNERS |= {"signatures.": _SIGNATURE_COLUMNS, "spans.": dict(tables.SPAN_COLUMNS)}

# What numpy writes before a column: a magic, the length of the header, the header.
_HEADER = re.compile(
    rb"\x93NUMPY\x01\x00..\{'descr': '([<|]\w\d)', 'fortran_order': False, "
    rb"'shape': \((\d{1,18}),\), \} *\n",
    re.DOTALL,
)


def write(trace: Trace, stream: BinaryIO) -> None:
    """Write ``trace`` to a seekable ``stream``."""
    sources = {"": trace, "invocations.": trace.invocations, "signatures.": trace.signatures}
    sources |= {"spans.": trace.spans}
    columns = {
        prefix + name: np.asarray(getattr(sources[prefix], name), dtype).reshape(-1)
        for prefix, owned in _OWNERS.items()
        for name, dtype in owned.items()
    }
    metadata = np.frombuffer(json.dumps(tables.to_json(trace)).encode("ascii"), np.uint8)
    with zipfile.ZipFile(stream, "w") as archive:
        for name, values in {"metadata": metadata, **columns}.items():
            with archive.open(f"{name}.npy", "w", force_zip64=True) as entry:
                np.lib.format.write_array(entry, values, allow_pickle=False)


def read(data: bytes) -> Trace:
    """The trace in ``data``. Raises ``TraceFileError`` where it is damaged or not one of ours."""
    try:
        with zipfile.ZipFile(io.BytesIO(data)) as archive:
            entries = {info.filename: info for info in archive.infolist()}
            if "metadata.npy" not in entries:
                raise TraceFileError("it is a zip archive, but was not written by relax_trace")
            metadata = json.loads(_column(archive, entries, "metadata", "|u1").tobytes())
            tables.check_version(metadata)
            columns = {
                prefix: {
                    name: _column(archive, entries, prefix + name, dtype)
                    for name, dtype in owned.items()
                    if metadata["version"] > 1 or prefix + name not in tables.SINCE_2
                }
                for prefix, owned in _OWNERS.items()
            }
    except _DAMAGED as error:
        if isinstance(error, TraceFileError):
            raise
        raise TraceFileError(
            "it is cut short or damaged: copy it again, or save the trace again"
        ) from error
    return tables.to_trace(metadata, *columns.values())


def _column(
    archive: zipfile.ZipFile, entries: dict[str, zipfile.ZipInfo], name: str, dtype: str
) -> NDArray[Any]:
    """One column; its memory is what the file really holds, whatever its headers claim."""
    entry = entries.get(f"{name}.npy")
    if entry is None:
        raise TraceFileError(f"it is damaged: its column {name!r} is missing")
    if entry.compress_type != zipfile.ZIP_STORED:
        raise TraceFileError(f"it was not written by relax_trace: column {name!r} is compressed")
    content = archive.read(entry)
    header = _HEADER.match(content)
    if header is None or header[1].decode() != dtype:
        raise TraceFileError(f"it is damaged: column {name!r} is not a row of {dtype!r} numbers")
    values = np.frombuffer(content, dtype, offset=header.end())
    if len(values) != int(header[2]):
        raise TraceFileError(f"it is damaged: column {name!r} is not as long as it says")
    return values
