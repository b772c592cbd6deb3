"""A board to try things on: 64-bit ARM under QEMU, with Debian's Python and TVM's RPC server.

Packages come from where apt-get and pip get theirs; nothing is installed on this machine. Half a
gigabyte is kept in RELAX_TRACE_CACHE, or relax_trace in the user's cache folder.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.metadata import version
from pathlib import Path

RELEASES = {name: version(name) for name in ("apache-tvm", "apache-tvm-ffi")}
SERVE = """
import runpy, sys
sys.executable = {python!r}  # what it starts its worker with
runpy.run_module("tvm.exec.rpc_server", run_name="__main__", alter_sys=True)
"""


def python() -> Path:
    """The board's Python as a program that runs here; what it needs is fetched the first time."""
    user = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    cache = Path(os.environ.get("RELAX_TRACE_CACHE") or Path(user, "relax_trace"))
    folder = cache / "-".join(["board", *RELEASES.values()])
    if not folder.exists():
        cache.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=cache) as work:
            made = Path(work, "board")
            _fetch_debian(made, Path(work, "apt"))
            _fetch_tvm(made)
            made.rename(folder)
    return _program(folder)


@contextmanager
def rpc_server(log: Path, *arguments: str) -> Iterator[int]:
    """The port of an RPC server that runs on the board."""
    program = str(python())
    command = [program, "-c", SERVE.format(python=program), "--host", "127.0.0.1", *arguments]
    with log.open("wb") as output:
        server = subprocess.Popen(command, stdout=output, stderr=output, start_new_session=True)
    try:
        yield _port(server, log)
    finally:
        os.killpg(server.pid, 9)
        server.wait()


def _port(server: subprocess.Popen[bytes], log: Path) -> int:
    for _ in range(600):
        found = re.search(r"bind to [\d.]+:(\d+)", log.read_text())
        if found:
            return int(found[1])
        assert server.poll() is None, log.read_text()
        time.sleep(0.5)
    raise AssertionError(f"the board's server does not come up: {log.read_text()}")


def _run(*command: str) -> None:
    ended = subprocess.run(command, capture_output=True, text=True, check=False)
    assert ended.returncode == 0, f"{' '.join(command)}\n{ended.stdout}{ended.stderr}"


def _fetch_debian(made: Path, work: Path) -> None:
    """Python and the C++ library, unpacked, with what they depend on."""
    for folder in ("lists/partial", "cache/archives/partial"):
        (work / folder).mkdir(parents=True)
    options = {
        "APT::Architecture": "arm64",
        "APT::Architectures": "arm64",
        "APT::Sandbox::User": "",
        "Debug::NoLocking": "true",
        "Dir::State::lists": str(work / "lists"),
        "Dir::State::status": "/dev/null",
        "Dir::Cache": str(work / "cache"),
    }
    apt = ["apt-get", "--quiet", *(f"-o{name}={value}" for name, value in options.items())]
    _run(*apt, "update")
    install = ("install", "--yes", "--no-install-recommends", "--download-only")
    _run(*apt, *install, "python3", "libstdc++6")
    for package in sorted((work / "cache/archives").glob("*.deb")):
        _run("dpkg", "-x", str(package), str(made))


def _fetch_tvm(made: Path) -> None:
    (real,) = (made / "usr/bin").glob("python3.[0-9]*")
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    pip += ["--target", str(made / "packages"), "--only-binary=:all:"]
    pip += ["--python-version", real.name.removeprefix("python"), "--implementation", "cp"]
    pip += [f"--platform=manylinux_2_{minor}_aarch64" for minor in range(17, 35)]
    pip += ["--platform=manylinux2014_aarch64"]
    _run(*pip, "cloudpickle", *(f"{name}=={release}" for name, release in RELEASES.items()))


def _program(folder: Path) -> Path:
    """A script that runs the board's Python, with the part of TVM that runs models alone."""
    (real,) = (folder / "usr/bin").glob("python3.[0-9]*")
    script = folder / "python"
    if not script.exists():
        script.write_text(
            f"#!/bin/sh\nexport PYTHONHOME='{folder}/usr' PYTHONPATH='{folder}/packages'\n"
            f"export TVM_USE_RUNTIME_LIB=1 QEMU_LD_PREFIX='{folder}'\n"
            f"exec qemu-aarch64 '{real}' \"$@\"\n"
        )
        script.chmod(0o755)
    return script
