"""The recorder for machines that are not this one: what is built, and what it does there.

Built by zig, looked at with readelf, run under QEMU: a C driver that plays the VM on 64-bit and on
32-bit ARM, and TVM's own RPC server on 64-bit ARM.
"""
# ruff: noqa: D102, N805, N812 - TVMScript's functions take tensors, and its names are I and R

from __future__ import annotations

import gc
import re
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tvm
from tvm import relax, rpc
from tvm.script import ir as I
from tvm.script import relax as R

import relax_trace
from recorder import board
from recorder.emulated import ZIG, Machine, require
from recorder.play import decoded
from relax_trace.recorder.build import build_library
from relax_trace.recorder.dumps import INVOCATION, OP, Dumps
from relax_trace.trace import KINDS

FFI = {
    *("TVMFFIBytesFromByteArray", "TVMFFIErrorMoveFromRaised", "TVMFFIErrorSetRaised"),
    *("TVMFFIErrorSetRaisedFromCStr", "TVMFFIFunctionCall", "TVMFFIFunctionCreate"),
    *("TVMFFIFunctionGetGlobal", "TVMFFIFunctionSetGlobal", "TVMFFIObjectDecRef"),
    "TVMFFITypeKeyToIndex",
}
WEAK = {"TVMFFIEnvGetStream", "dladdr", "dlopen"}  # it does without, where nothing else has them


def readelf(path: Path | str, *options: str) -> str:
    """What binutils make of the file."""
    command = ["readelf", "--wide", *options, str(path)]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


def needed(path: Path) -> list[str]:
    """The libraries that the dynamic loader has to find for it."""
    return re.findall(r"\(NEEDED\) +Shared library: \[(.*)\]", readelf(path, "--dynamic"))


def undefined(path: Path, binding: str) -> set[str]:
    """Symbols that others have to define, with the version that it was linked to."""
    lines = readelf(path, "--dyn-syms")
    return set(re.findall(rf" {binding} +\w+ +UND (\S+)", lines))


@pytest.mark.parametrize(
    ("target", "shown", "machine"),
    [
        ("x86_64-linux-gnu.2.17", "Advanced Micro Devices X86-64", "x86_64"),
        ("aarch64-unknown-linux-gnu.2.17", "AArch64", "aarch64"),
        ("armv7l-linux-gnueabihf.2.17", "ARM", "armv7l"),
    ],
)
def test_a_library_for_glibc(tmp_path: Path, target: str, shown: str, machine: str) -> None:
    """It needs libc alone, no newer one than was asked for, and of TVM the C ABI alone."""
    out = tmp_path / "recorder.so"
    built = build_library(out, target)
    assert (built.machine, built.glibc) == (machine, (2, 17))
    assert re.findall(r"Machine: +(.*)", readelf(out, "--file-header")) == [shown]
    assert set(needed(out)) <= {"libc.so.6", "libpthread.so.0"}
    versions = re.findall(r"Name: GLIBC_([\d.]+)", readelf(out, "--version-info"))
    assert max(tuple(map(int, version.split("."))) for version in versions) == (2, 17)
    assert {name for name in undefined(out, "GLOBAL") if "@GLIBC_" not in name} == FFI
    assert undefined(out, "WEAK") == WEAK
    assert " NODELETE" in readelf(out, "--dynamic")


@pytest.mark.parametrize("target", ["aarch64-linux-musl", "arm-linux-musleabihf"])
def test_a_library_for_musl(tmp_path: Path, target: str) -> None:
    """Its loader refuses static thread-local storage, as Android's does."""
    out = tmp_path / "recorder.so"
    assert build_library(out, target).glibc is None
    assert needed(out) == ["libc.so"]
    assert "STATIC_TLS" not in readelf(out, "--dynamic")
    assert not re.search(r"R_\w+_TLS_?TPREL|R_\w+_TPOFF|R_ARM_TLS_TPOFF", readelf(out, "--relocs"))
    build_library(out, "aarch64-linux-gnu.2.17")  # so that the flag can be there at all
    assert "STATIC_TLS" in readelf(out, "--dynamic")


# ---- the same records on every machine ----


@pytest.fixture(scope="module")
def x86_64(tmp_path_factory: pytest.TempPathFactory) -> Machine:
    """The driver by the same compiler: what C leaves open, such as which argument comes first,
    each compiler does in its own way.
    """
    return Machine("x86_64", tmp_path_factory.mktemp("x86_64"))


@pytest.fixture(scope="module", params=["aarch64", "arm"])
def machine(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Machine:
    """One that the driver is built for once: of 64 bits, and of 32."""
    return Machine(request.param, tmp_path_factory.mktemp(request.param))


def without_times(dumps: Dumps) -> list[Any]:
    """All that a recorder hands over but clocks and ids."""
    clocks = {"start", "end", "wall_ns"}
    columns = [dumps.name_flags, dumps.name_texts, np.concatenate(dumps.words).tolist()]
    for records in dumps.threads.values():
        for pieces, kind in ((records.ops, OP), (records.invocations, INVOCATION)):
            whole = np.concatenate(pieces)
            columns += [whole[name].tolist() for name in kind.names or () if name not in clocks]
    return columns


@pytest.mark.parametrize("scenario", ["alone", "deep"])
def test_every_machine_records_the_same(x86_64: Machine, machine: Machine, scenario: str) -> None:
    """Names, signatures, flags and nesting are the same, to the byte."""
    there, here = machine.play(scenario, 1), x86_64.play(scenario, 1)
    assert there.done == here.done
    assert without_times(there.dumps) == without_times(here.dumps)
    assert (there.trace.end >= there.trace.start).all()


@pytest.mark.parametrize("scenario", ["threads", "limits", "ring", "slots", "wishes"])
def test_its_rules_hold_there(machine: Machine, scenario: str) -> None:
    """Several threads, hardly any memory, a ring, other instruments: nothing is lost uncounted."""
    played = machine.play(scenario, 2)
    losses = played.dumps.losses
    if scenario in ("threads", "limits", "ring"):
        held = sum(len(piece) for thread in played.dumps.threads.values() for piece in thread.ops)
        assert held + losses.ops + losses.overwritten == played.done["ops"]
    assert len(played.trace) > 0


# ---- TVM's RPC server on a board ----


@I.ir_module
class TwoCalls:
    """Two kernels."""

    @R.function
    def main(x: R.Tensor((2, 8), "float32"), w: R.Tensor((8, 4), "float32")) -> R.Tensor(
        (2, 4), "float32"
    ):
        with R.dataflow():
            product = R.matmul(x, w)
            result = R.nn.relu(product)
            R.output(result)
        return result


def model_for_the_board(folder: Path, addons: list[str]) -> Path:
    """The model, compiled here for there."""
    compiler = folder / "compiler"
    zig = " ".join(f"'{word}'" for word in (*ZIG, "-target", "aarch64-linux-gnu.2.28"))
    compiler.write_text(f'#!/bin/sh\nexec {zig} "$@"\n')
    compiler.chmod(0o755)
    target = tvm.target.Target({"kind": "llvm", "mtriple": "aarch64-linux-gnu"})
    tvm.compile(TwoCalls, target=target).export_library(
        str(folder / "model.so"), addons=addons, cc=str(compiler)
    )
    return folder / "model.so"


def recorded_there(port: int, model: Path) -> relax_trace.Trace:
    """Three invocations of the model behind RPC, through the functions of the recorder there."""
    remote = rpc.connect("127.0.0.1", port)
    remote.upload(bytearray(model.read_bytes()), model.name)  # of a path it leaves the file open
    vm = relax.VirtualMachine(remote.load_module(model.name), remote.cpu())
    recorder = {
        name: remote.get_function(f"relax_trace.recorder.{name}")
        for name in ("open", "begin", "want", "wrap", "dump")
    }
    number = recorder["open"]()
    recorder["begin"]()
    recorder["want"](number, vm.module, 0, 0, 0, 0, 0, 0, 0, "")
    main = recorder["wrap"](number, vm.module, "main")
    x, w = (
        tvm.runtime.tensor(np.full(shape, 2, "float32"), remote.cpu()) for shape in ((2, 8), (8, 4))
    )
    for _ in range(3):
        assert main(x, w).numpy().tolist() == [[32.0] * 4] * 2
    dumps = Dumps()
    dumps.add(bytes(recorder["dump"](0, 0, 1 << 40, False)))
    assert dumps.pid > 0
    return decoded(dumps)


@pytest.mark.parametrize("route", ["load-library", "addons"])
def test_a_model_on_a_board(tmp_path: Path, route: str) -> None:
    """A real RPC server on 64-bit ARM records a model's calls, by a recorder from this machine.

    It is loaded by the server's own option, or comes inside the model's library.
    """
    require("qemu-aarch64", "apt-get", "dpkg")
    arguments, addons = [], []
    if route == "load-library":
        build_library(tmp_path / "recorder.so", "aarch64-linux-gnu.2.17")
        arguments = ["--load-library", str(tmp_path / "recorder.so")]
    else:
        addons = [relax_trace.recorder_object("aarch64-linux-gnu.2.17")]
    model = model_for_the_board(tmp_path, addons)
    with board.rpc_server(tmp_path / "log", *arguments) as port:
        trace = recorded_there(port, model)
        gc.collect()  # what is left of the connection, while the server is there
    texts = [text.decode() for text in trace.signatures.texts]
    kernels = np.flatnonzero(trace.kind == KINDS.index("kernel"))
    calls = [(trace.names[trace.name[i]], texts[trace.signature[i]]) for i in kernels]
    assert trace.losses == relax_trace.Losses()
    assert len(trace.invocations) == 3
    assert calls == 3 * [
        ("matmul", "float32[2, 8], float32[8, 4], float32[2, 4]"),
        ("relu", "float32[2, 4], float32[2, 4]"),
    ]
