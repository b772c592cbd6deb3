"""Programs that know nothing of relax_trace: run by ``python``, and by ``relax-trace run``."""

from __future__ import annotations

import zipfile
from pathlib import Path

SURROUNDINGS = """
import inspect, os, sys

def told():
    module = sys.modules["__main__"]
    print(sys.argv, sys.path, sys.flags, sys.warnoptions, os.getcwd(), sep="\\n")
    print(module.__dict__ is globals(), module.__builtins__, __name__, __file__, __package__)
    print(__spec__ and (__spec__.name, __spec__.origin), __doc__, sorted(globals()))
    print({key: value for key, value in os.environ.items() if key != "_"})
    print([name for name in sys.modules if name.partition(".")[0] in ("click", "numpy", "tvm")])
    print(repr(sys.stdin.read()), inspect.getsource(told))

if __name__ == "__main__":
    told()
"""

PROCESSES = """
import multiprocessing, os, pickle, subprocess, sys

class Point:
    def __init__(self, x):
        self.x = x

def double(point):
    return Point(2 * point.x)

if __name__ == "__main__":
    print(pickle.dumps(Point(1)), pickle.loads(pickle.dumps(Point(1))).x)
    for method in ("spawn", "fork"):
        with multiprocessing.get_context(method).Pool(1) as pool:
            print([point.x for point in pool.map(double, [Point(1), Point(2)])], flush=True)
    if not os.fork():
        sys.exit("the child exits as Python does")
    print(os.wait()[1])
    code = "import sys; print(sys.path, 'sitecustomize' in sys.modules)"
    print(subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout)
"""

LATE_WORK = """
import atexit, logging, sys, threading, time

def late():
    threading.main_thread().join()
    time.sleep(0.1)
    print("a thread", end="; ")

atexit.register(print, "the first handler")
atexit.register(print, "the last handler", end=" ")
threading.Thread(target=late).start()
print("main", end=" ")
"""

EXCEPTHOOK = """
import sys

def excepthook(kind, error, traceback):
    names = []
    while traceback:
        names.append(traceback.tb_frame.f_code.co_name)
        traceback = traceback.tb_next
    print("hooked", kind.__name__, error, names)

sys.excepthook = excepthook
def fail():
    raise ValueError("no")
fail()
"""

CHAINED = """
def inner():
    return {}["key"]

def outer():
    try:
        inner()
    except KeyError as error:
        raise RuntimeError("chained") from error

outer()
"""

WITHOUT_RECORDER = """
import atexit, sys, types

def record():
    raise OSError("it is made to fail")

sys.modules["relax_trace"] = types.ModuleType("relax_trace")
sys.modules["relax_trace.program"] = types.SimpleNamespace(finish=None)
sys.modules["relax_trace"].record = record
atexit.register(print, "its exit handlers run")
try:
    import tvm
except Exception:
    pass
print("not reached")
"""

SIGNALLED = """
import os, signal, time
print("before", flush=True)
os.kill(os.getpid(), signal.{signal})
time.sleep(60)
"""

HELD = """
import signal, time
signal.signal(signal.SIGINT, lambda *_: print("caught", flush=True))
print("before", flush=True)
signal.raise_signal(signal.SIGINT)
"""

# The shape of TVM's own tutorials: a module, built, in a VM, in a loop.
TUTORIAL = """
import numpy as np
import tvm
from tvm import relax
from tvm.script import ir as I
from tvm.script import relax as R


@I.ir_module
class Module:
    @R.function
    def main(
        x: R.Tensor(("n", 4), "float32"), w: R.Tensor((4, 3), "float32")
    ) -> R.Tensor(("n", 3), "float32"):
        with R.dataflow():
            y = R.matmul(x, w)
            z = R.nn.relu(y)
            R.output(z)
        return z


target = tvm.target.Target("llvm")
executable = tvm.compile(relax.get_pipeline("zero")(Module), target)
device = tvm.cpu()
vm = relax.VirtualMachine(executable, device)

w = tvm.runtime.tensor(np.ones((4, 3), "float32"), device)
for n in range(1, 6):
    x = tvm.runtime.tensor(np.full((n, 4), n, "float32"), device)
    print(vm["main"](x, w).numpy().sum())
"""

# VMs at every late moment of a process, which then ends as the argument says.
ENDINGS = """
import atexit, importlib.util, os, shutil, signal, sys, threading

assert importlib.util.find_spec("tvm") and "numpy" not in sys.modules
if os.fork() == 0:
    sys.exit()
import numpy as np
import tvm
from tvm import relax

def executable():
    x = relax.Var("x", relax.TensorType([4], "float32"))
    builder = relax.BlockBuilder()
    with builder.function("main", [x]):
        builder.emit_func_output(builder.emit(relax.op.add(x, x)))
    return tvm.compile(builder.get(), "llvm")

built = executable()
x = tvm.runtime.tensor(np.ones(4, "float32"))

def run():
    relax.VirtualMachine(built, tvm.cpu())["main"](x)

def late():
    threading.main_thread().join()
    run()

atexit.register(run)
threading.Thread(target=late).start()
run()
if os.fork() == 0:
    run()
    sys.exit(1)
assert os.waitstatus_to_exitcode(os.wait()[1]) == 0
assert os.waitstatus_to_exitcode(os.wait()[1]) == 1
ending = sys.argv[1]
if ending == "exit":
    os.chdir("/")
    sys.exit(3)
elif ending == "raise":
    raise ValueError("the program's own")
elif ending == "interrupt":
    signal.raise_signal(signal.SIGINT)
elif ending == "unwritable":
    shutil.rmtree("out")
elif ending == "interrupt the writing":
    from relax_trace.exporters import chrome

    def write(trace, stream):
        stream.write(b"half of it")
        stream.flush()
        print(len(os.listdir("out")))
        signal.raise_signal(signal.SIGINT)

    chrome.write = write
"""

SOURCES = {
    "surroundings": SURROUNDINGS,
    "processes": PROCESSES,
    "late_work": LATE_WORK,
    "exit_none": "import sys; sys.exit(None)",
    "exit_number": "raise SystemExit(3)",
    "exit_text": "import sys; sys.exit('some text')",
    "excepthook": EXCEPTHOOK,
    "chained": CHAINED,
    "syntax_error": "print(1)\nprint(2",
    "held": HELD,
    "exit_at_once": "import os; os._exit(5)",
    "interrupted": SIGNALLED.format(signal="SIGINT"),
    "terminated": SIGNALLED.format(signal="SIGTERM"),
    "closed_output": "import os; print('lost'); os.close(1)",
    "no_stderr": "import os, sys; os.close(2); sys.exit(2)",
    "without_recorder": WITHOUT_RECORDER,
    "tutorial": TUTORIAL,
    "endings": ENDINGS,
}


def write_programs(folder: Path) -> None:
    """Lay out each as a script, and one as everything else that ``python`` runs."""
    for name, source in SOURCES.items():
        (folder / f"{name}.py").write_text(source)
    (folder / "script").write_text(SURROUNDINGS)  # no suffix
    (folder / "tvm_of_our_own").mkdir()
    (folder / "tvm_of_our_own" / "tvm.py").touch()
    package = folder / "package"
    package.mkdir()
    (package / "__init__.py").touch()
    (package / "told.py").write_text(SURROUNDINGS)
    (package / "__main__.py").write_text("from .told import told\ntold()")
    program = folder / "folder"
    program.mkdir()
    (program / "__main__.py").write_text(SURROUNDINGS)
    (program / "surroundings.py").write_text(SURROUNDINGS)
    (folder / "link.py").symlink_to(program / "surroundings.py")
    with zipfile.ZipFile(folder / "program.pyz", "w") as archive:
        archive.writestr("__main__.py", SURROUNDINGS.replace(", inspect.getsource(told)", ""))
    site = folder / "site"
    site.mkdir()
    (site / "sitecustomize.py").write_text("import sys; sys.path.append('of the user')")
