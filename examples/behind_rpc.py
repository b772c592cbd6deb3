"""Profile a model where it runs: in another process, or on a board, behind TVM's RPC.

The model is that of speech_detection.py. Without an argument a server is started here, in a process
of its own; with HOST:PORT the model runs on the server there:

    python behind_rpc.py 192.168.0.7:9090

The server needs nothing but TVM: the recorder is brought to it if it is a machine like this one.
For others see "For another machine" in the README.
"""

import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import tvm
from tvm import relax, rpc

import relax_trace
from speech_detection import CONTEXT, NEW, RATE, compile_model

CALLS = 20


@contextmanager
def server() -> Iterator[str]:
    """An RPC server in a process of its own, on a free port; its address."""
    with tempfile.NamedTemporaryFile() as log:
        command = [sys.executable, "-m", "tvm.exec.rpc_server", "--host", "127.0.0.1"]
        process = subprocess.Popen(command, stdout=log, stderr=log)
        try:
            found = None
            while not found and process.poll() is None:
                time.sleep(0.05)
                found = re.search(r"bind to (\S+)", Path(log.name).read_text())
            if not found:
                raise RuntimeError(f"the server did not start: {Path(log.name).read_text()}")
            yield found[1]
        finally:
            process.terminate()
            process.wait()


def load_there(session: rpc.RPCSession) -> relax.VirtualMachine:
    """Compile the model, and load it on the other side."""
    with tempfile.TemporaryDirectory() as folder:
        library = Path(folder, "model.so")
        compile_model().export_library(str(library))
        session.upload(bytearray(library.read_bytes()), library.name)
    return relax.VirtualMachine(session.load_module(library.name), session.cpu())


def run(address: str) -> relax_trace.Trace:
    """Call the model, with noise for sound, once to warm up and then CALLS times."""
    host, port = address.rsplit(":", 1)
    session = rpc.connect(host, int(port))
    vm, device = load_there(session), session.cpu()
    sound = np.random.default_rng(0).normal(0, 0.05, (1, CONTEXT + NEW)).astype(np.float32)
    values = (sound, np.array(RATE), np.zeros((2, 1, 128), np.float32))
    arguments = [tvm.runtime.tensor(value, device) for value in values]
    vm["main"](*arguments)
    with relax_trace.record(vm) as recording:
        for _ in range(CALLS):
            vm["main"](*arguments)
    return recording.trace


def shares(trace: relax_trace.Trace) -> str:
    """Where the time of a call goes: the calls made here have those over there inside."""
    calls = trace.invocations
    length, outer = calls.end - calls.start, calls.parent < 0
    whole, there = length[outer].sum(), length[~outer].sum()
    ops = trace.duration[trace.parent < 0].sum()
    figures = (whole, ops, there - ops, whole - there)
    texts = [f"{figure / CALLS / 1000:,.1f} us" for figure in figures]
    return f"a call takes {texts[0]}: {texts[1]} in ops, {texts[2]} around them, {texts[3]} network"


def main() -> None:
    """Run, show."""
    if len(sys.argv) > 1:
        trace = run(sys.argv[1])
    else:
        with server() as address:
            trace = run(address)
    print(trace.report())
    print()
    print(shares(trace))
    trace.save("behind_rpc.json")
    print("\nwrote behind_rpc.json: open it in https://ui.perfetto.dev")


if __name__ == "__main__":
    main()
