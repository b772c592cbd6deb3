"""Try one wheel on the oldest and the newest Python, each with several releases of TVM.

    python tests/versions/matrix.py [--ends] [--wheel FILE]

Each pair gets a fresh environment with the wheel, TVM, OpenTelemetry, pandas and pytest, and runs
``TESTS`` there, with ``filterwarnings = error`` as everywhere. All have to pass, none may be
skipped, and every pair has to pass as many as the others. ``--ends`` tries only the oldest
Python with the oldest TVM and the newest with the newest; without ``--wheel`` the wheel is built
first.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from xml.etree import ElementTree

# Oldest first. Of the Pythons that are found the first and the last are used.
PYTHONS = ("3.10", "3.11", "3.12", "3.13", "3.14")
TVMS = (
    ("apache-tvm==0.25.0", "apache-tvm-ffi==0.1.12"),  # its import fails with any newer tvm-ffi
    ("apache-tvm==0.26.0",),
    ("apache-tvm",),  # the newest
)
# What needs no package but these, and meets what differs between versions.
TESTS = (
    "tests/unit",
    "tests/integration/test_arguments.py",
    "tests/integration/test_entry_points.py",
    "tests/integration/test_fork.py::test_forks_while_other_threads_record_and_invoke",
    "tests/integration/test_instrument_slot.py",
    "tests/integration/test_kinds.py",
    "tests/integration/test_limits.py",
    "tests/integration/test_threads.py",
    "tests/integration/test_throw.py",
    "tests/integration/test_timing.py",
)
PACKAGES = ("python", "apache-tvm", "apache-tvm-ffi", "numpy")
LIMIT = 1800  # seconds for the tests of a pair, which take one or two minutes
ROOT = Path(__file__).parents[2]

ASK_PYTHON = "import ensurepip, sys; print(*sys.version_info[:3], sep='.')"
ASK_VERSIONS = f"""
import json, platform
from importlib.metadata import version
versions = [platform.python_version(), *map(version, {PACKAGES[1:]})]
print(json.dumps(versions))
"""


class StepError(Exception):
    """A step of a pair went wrong: which, and the end of what it printed."""


@dataclass(frozen=True)
class Pair:
    """A Python executable, and the requirements that give a release of TVM."""

    python: Path
    tvm: tuple[str, ...]


@dataclass(frozen=True)
class Outcome:
    """What a pair came to: versions as ``PACKAGES``, tests that passed, what went wrong if any."""

    versions: tuple[str, ...]
    passed: int
    seconds: float
    problem: str

    def line(self) -> str:
        """The outcome as a row of the table."""
        return row(*self.versions, self.passed, f"{self.seconds:.0f}", self.problem or "passed")


def row(*cells: object) -> str:
    """Cells below each other."""
    return "".join(f"{cell!s:<16}" for cell in cells).rstrip()


def run(what: str, *command: str | Path, cwd: Path = ROOT) -> str:
    """Run a command that sees nothing but its environment and return what it printed."""
    hidden = ("PYTHONPATH", "PYTHONHOME", "PYTHONWARNINGS", "PYTEST_ADDOPTS")
    environment = {name: value for name, value in os.environ.items() if name not in hidden}
    ended = subprocess.run(
        command,
        cwd=cwd,
        env={**environment, "PIP_DISABLE_PIP_VERSION_CHECK": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        timeout=LIMIT,
        check=False,
    )
    if ended.returncode:
        lines = "\n".join(ended.stdout.splitlines()[-150:])
        raise StepError(f"{what} failed (exit code {ended.returncode})", lines)
    return ended.stdout


def output_of(*command: str | Path) -> str:
    """What a command that may fail says."""
    return subprocess.run(command, capture_output=True, text=True, check=False).stdout


def candidates(version: str) -> Iterator[Path]:
    """Where a Python may be: this one, on the PATH, among those that pyenv keeps."""
    yield Path(sys.executable)
    for folder in os.get_exec_path():
        yield Path(folder) / f"python{version}"
    root = os.environ.get("PYENV_ROOT")
    if not root and (pyenv := shutil.which("pyenv")):
        root = output_of(pyenv, "root").strip()
    if root:
        yield from Path(root, "versions").glob(f"{version}.*/bin/python{version}")


def find_python(version: str) -> Path | None:
    """The newest patch of a Python that can make environments, or None."""
    found: dict[tuple[int, ...], Path] = {}
    for path in filter(Path.is_file, candidates(version)):
        # A shim of pyenv whose Python isn't chosen tells nothing, nor does one without `venv`.
        told = output_of(path, "-c", ASK_PYTHON)
        if told.startswith(f"{version}."):
            found.setdefault(tuple(map(int, told.split("."))), path)
    return found[max(found)] if found else None


def find_pythons() -> list[Path]:
    """The oldest and the newest of ``PYTHONS`` that are here; says which are not."""
    found = {version: find_python(version) for version in PYTHONS}
    here = [path for path in found.values() if path]
    missing = [version for version, path in found.items() if not path]
    if not here:
        sys.exit(f"found none of Python {', '.join(PYTHONS)} on PATH or among pyenv's versions")
    if missing:
        print(f"Not found, or without venv, so not tried: Python {', '.join(missing)}")
    if len(here) == 1:
        print("Only one Python was found: it stands for the oldest and the newest")
    return list(dict.fromkeys((here[0], here[-1])))


def pairs(only_ends: bool) -> list[Pair]:
    """What to try, oldest first."""
    found = find_pythons()
    if only_ends:
        return [Pair(found[0], TVMS[0]), Pair(found[-1], TVMS[-1])]
    return [Pair(python, tvm) for python in found for tvm in TVMS]


def build_wheel(python: Path, work: Path) -> Path:
    """Build the wheel of this source tree."""
    environment = work / "build"
    run("venv", python, "-m", "venv", environment)
    run("building", environment / "bin/pip", "wheel", "--no-deps", "--wheel-dir", work, ROOT)
    [wheel] = work.glob("*.whl")
    return wheel


def run_tests(environment: Path) -> int:
    """Run the tests in an environment and return how many passed."""
    report = environment / "report.xml"
    # Not `python -m pytest`, which would find the source tree before the wheel.
    printed = run(
        "pytest", environment / "bin/pytest", "--tb=short", f"--junitxml={report}", *TESTS
    )
    if f"relax_trace: {environment}{os.sep}" not in printed:
        raise StepError("pytest took another relax_trace than the wheel's", printed[:1000])
    [suite] = ElementTree.parse(report).getroot().iter("testsuite")
    if suite.get("skipped") != "0":
        raise StepError(f"{suite.get('skipped')} tests were skipped", printed[-3000:])
    return int(suite.get("tests", 0))


def try_pair(pair: Pair, wheel: Path, environment: Path) -> Outcome:
    """Install the wheel in a fresh environment and run the tests there."""
    began, passed, problem = time.monotonic(), 0, ""
    versions: Sequence[str] = (pair.python.name, *pair.tvm)
    try:
        run("venv", pair.python, "-m", "venv", environment)
        packages = (f"{wheel}[otel]", "pandas>=2", "pytest>=8.3", *pair.tvm)
        run("installing", environment / "bin/pip", "install", "--quiet", *packages)
        python = environment / "bin/python"
        versions = json.loads(run("asking", python, "-c", ASK_VERSIONS, cwd=environment))
        passed = run_tests(environment)
    except StepError as error:
        problem, log = error.args
        print(log)
    except subprocess.TimeoutExpired:
        problem = f"took more than {LIMIT} s"
    padded = (*versions, *("?" for _ in PACKAGES))[: len(PACKAGES)]
    return Outcome(padded, passed, time.monotonic() - began, problem)


def judge(outcomes: Sequence[Outcome]) -> bool:
    """Print the table, and say whether all pairs passed, and the same number of tests."""
    print("\n" + row(*PACKAGES, "tests", "seconds", "result"))
    for outcome in outcomes:
        print(outcome.line())
    if any(outcome.problem for outcome in outcomes):
        return False
    numbers = {outcome.passed for outcome in outcomes}
    if len(numbers) > 1:
        print(f"fewer tests ran in some pairs than in others: {sorted(numbers)}")
    return len(numbers) == 1


def main() -> None:
    """Try each pair, and end with exit code 1 unless all of them passed."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--ends", action="store_true", help="only oldest with oldest, newest with newest"
    )
    parser.add_argument("--wheel", type=Path, help="the wheel to try, instead of building one")
    options = parser.parse_args()
    chosen = pairs(options.ends)
    with tempfile.TemporaryDirectory() as folder:
        work = Path(folder).resolve()
        wheel = options.wheel or build_wheel(chosen[-1].python, work)
        print(f"Trying {wheel.name} on {len(chosen)} pairs", flush=True)
        outcomes = []
        for number, pair in enumerate(chosen):
            outcomes.append(try_pair(pair, wheel.resolve(), work / str(number)))
            print(outcomes[-1].line(), flush=True)
            shutil.rmtree(work / str(number), ignore_errors=True)  # hundreds of megabytes
    sys.exit(not judge(outcomes))


if __name__ == "__main__":
    main()
