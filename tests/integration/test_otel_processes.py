"""Instrumented processes: without any code, with a late provider, forked, with old VMs."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import relax_trace
from integration.small_vms import run_alone, small

ENTRY_POINT = """
[opentelemetry_instrumentor]
relax_vm = relax_trace.otel:RelaxVMInstrumentor
"""


def run_instrumented(
    program: str, tmp_path: Path, **environment: str
) -> subprocess.CompletedProcess[str]:
    """Run a program under ``opentelemetry-instrument``, which prints its spans."""
    found = tmp_path / "found"  # as pip would leave it
    metadata = found / "relax_trace_tests-1.dist-info"
    metadata.mkdir(parents=True)
    (metadata / "METADATA").write_text("Name: relax-trace-tests\nVersion: 1\n")
    (metadata / "entry_points.txt").write_text(ENTRY_POINT)
    script = tmp_path / "app.py"
    script.write_text(program)
    paths = [str(found), *(str(Path(it).parents[1]) for it in (__file__, relax_trace.__file__))]
    command = [str(Path(sys.executable).with_name("opentelemetry-instrument"))]
    for signal, exporter in (("traces", "console"), ("metrics", "none"), ("logs", "none")):
        command += [f"--{signal}_exporter", exporter]
    return subprocess.run(
        [*command, sys.executable, str(script)],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(paths), **environment},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )


def spans_in(output: str) -> list[dict[str, Any]]:
    """The spans that the console exporter printed, between the lines of the program's own."""
    decoder, spans, at = json.JSONDecoder(), [], output.find("{\n")
    while at >= 0:
        span, end = decoder.raw_decode(output, at)
        spans.append(span)
        at = output.find("{\n", end)
    return spans


APP = """
import sys
print("imported", [name for name in ("tvm", "tvm_ffi") if name in sys.modules])
from opentelemetry import trace
import tvm
from integration.small_vms import small, tensor, vm_of
with trace.get_tracer("application").start_as_current_span("request"):
    print(vm_of(small())["main"](tensor(1, 2, 3, 4)).numpy().tolist())
"""
OWN = "imported []\n[1.0, 9.0, 25.0, 49.0]\n"


def test_without_code(tmp_path: Path) -> None:
    """TVM isn't imported before the program does, and its invocation is under its request."""
    ended = run_instrumented(APP, tmp_path)
    assert (ended.returncode, ended.stdout.startswith(OWN)) == (0, True), ended
    invocation, request, *ops = spans_in(ended.stdout)
    assert (invocation["name"], request["name"]) == ("main", "request")
    parents = {span["context"]["span_id"]: span["name"] for span in (invocation, *ops)}
    assert [parents[op["parent_id"]] for op in ops] == ["main"] * 4 + ["inner"] * 3 + ["main"]
    assert invocation["parent_id"] == request["context"]["span_id"]
    assert invocation["attributes"]["tvm.model.name"] == "vm"


@pytest.mark.parametrize(
    ("variables", "spans", "said"),
    [
        ({"OTEL_SDK_DISABLED": "true"}, [], ""),
        ({"OTEL_PYTHON_DISABLED_INSTRUMENTATIONS": "relax_vm"}, ["request"], ""),
        ({"OTEL_PYTHON_RELAX_ENABLED": "false"}, ["request"], ""),
        (
            {"OTEL_PYTHON_RELAX_ENABLED": "perhaps"},
            ["main", "request"],
            "OTEL_PYTHON_RELAX_ENABLED is ignored, and enabled is True: "
            "enabled must be True or False, not 'perhaps'\n",
        ),
    ],
)
def test_what_the_environment_says(
    variables: dict[str, str], spans: list[str], said: str, tmp_path: Path
) -> None:
    """Of OpenTelemetry's variables, and ours; a value that can't be is said in one line."""
    ended = run_instrumented(APP, tmp_path, **variables)
    assert (ended.returncode, ended.stdout.startswith(OWN)) == (0, True), ended
    found = [span["name"] for span in spans_in(ended.stdout)]
    assert (found[: len(spans)], len(found)) == (spans, len(spans) + 8 * ("main" in spans))
    assert said in ended.stderr
    assert "Traceback" not in ended.stderr


FILE = """
file_format: "1.0"
tracer_provider:
  processors:
    - simple: {exporter: {console: {}}}
instrumentation/development:
  python:
    relax_vm: {SETTINGS}
"""


@pytest.mark.parametrize(
    ("settings", "spans", "said"),
    [
        ("{ops_per_invocation: 2, calls: tensors}", 4, ""),
        ("{ops: none}", 2, ""),
        ("{ops: none, enabled: false}", 1, ""),
        # Said by the file's reader, which goes on with what the environment says.
        ("{opps: none}", 10, "there is no setting 'opps'; there are: "),
    ],
)
def test_what_a_configuration_file_says(
    settings: str, spans: int, said: str, tmp_path: Path
) -> None:
    """The names are those of the keywords, below the entry point's."""
    file = tmp_path / "otel.yaml"
    file.write_text(FILE.replace("{SETTINGS}", settings))
    ended = run_instrumented(APP, tmp_path, OTEL_CONFIG_FILE=str(file))
    assert (ended.returncode, ended.stdout.startswith("imported []\n")) == (0, True), ended
    assert OWN.partition("\n")[2] in ended.stdout
    assert len(spans_in(ended.stdout)) == spans
    assert said in ended.stderr
    assert ("Traceback" in ended.stderr) == bool(said)


def test_a_broken_relax_trace_breaks_no_other_instrumentation() -> None:
    """Its error is in the log, and the program runs."""
    broken = """
import relax_trace.reach
def fail(_): raise OSError("broken for the test")
relax_trace.reach.listen = fail
from relax_trace.otel import RelaxVMInstrumentor
RelaxVMInstrumentor().instrument()
print("goes on")
"""
    ended = run_alone(broken)
    assert (ended.returncode, ended.stdout) == (0, "goes on\n"), ended
    assert "VirtualMachines could not be instrumented" in ended.stderr
    assert "OSError: broken for the test" in ended.stderr


MEMORY = """
from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
memory = InMemorySpanExporter()
provider = TracerProvider()
provider.add_span_processor(SimpleSpanProcessor(memory))
def names(scope="relax_trace"):
    ended = memory.get_finished_spans()
    return [one.name for one in ended if one.instrumentation_scope.name in (scope, "application")]
"""


def test_a_provider_that_is_set_late_and_a_second_instrument() -> None:
    """Both as if it had been there from the start; the second call is one warning."""
    ended = run_alone(
        f"""
from relax_trace.otel import RelaxVMInstrumentor
RelaxVMInstrumentor().instrument()
RelaxVMInstrumentor().instrument()
from integration.small_vms import small, tensor, vm_of
function = vm_of(small())["main"]
function(tensor(1, 2, 3, 4))
{MEMORY}
trace.set_tracer_provider(provider)
function(tensor(1, 2, 3, 4))
assert names() == ["main"], names()
"""
    )
    assert ended.returncode == 0, ended
    assert ended.stderr == "Attempting to instrument while already instrumented\n"


def test_a_fork() -> None:
    """Parent and child each have their own spans, and the child's are under its own request."""
    ended = run_alone(
        f"""
import os, warnings
warnings.filterwarnings("ignore", ".* multi-threaded, use of fork", DeprecationWarning)
from relax_trace.otel import RelaxVMInstrumentor
from integration.small_vms import small, tensor, vm_of
{MEMORY}
RelaxVMInstrumentor().instrument(tracer_provider=provider)
vm, x = vm_of(small()), tensor(1, 2, 3, 4)
vm["main"](x)
pid = os.fork()
with provider.get_tracer("application").start_as_current_span("request"):
    vm["identity"](x)
    vm_of(small())["inner"](x)
assert names() == ["main", "identity", "inner", "request"], names()
spans = {{span.name: span for span in memory.get_finished_spans()}}
assert all(spans[name].parent == spans["request"].context for name in ("identity", "inner"))
assert RelaxVMInstrumentor().force_flush()
checks = ["vm.builtin.check_tensor_info", "vm.builtin.match_shape"]
main = [*checks, "add", "inner", *checks, "subtract", "multiply"]
ops = [*(main if pid else []), *checks, *checks, "subtract"]
assert names("relax_trace.ops") == ["request", *ops], names("relax_trace.ops")
assert sum(RelaxVMInstrumentor().dropped.values()) == 0
if not pid:
    os._exit(0)
assert os.waitpid(pid, 0)[1] == 0
"""
    )
    assert (ended.returncode, ended.stderr) == (0, "")


def test_a_process_that_just_ends() -> None:
    """What its last invocations did is exported all the same, before the provider shuts down."""
    ended = run_alone(
        """
from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, ConsoleSpanExporter
from relax_trace.otel import RelaxVMInstrumentor
from integration.small_vms import small, tensor, vm_of
RelaxVMInstrumentor().instrument()
exporter = ConsoleSpanExporter(formatter=lambda span: span.name + "\\n")
trace.set_tracer_provider(TracerProvider())
trace.get_tracer_provider().add_span_processor(BatchSpanProcessor(exporter))
vm_of(small())["identity"](tensor(1, 2, 3, 4))
"""
    )
    assert (ended.returncode, ended.stderr) == (0, "")
    expected = ["identity", "vm.builtin.check_tensor_info", "vm.builtin.match_shape"]
    assert ended.stdout.splitlines() == expected


@pytest.mark.parametrize("freeze", ["", "gc.collect(); gc.freeze()"])
@pytest.mark.parametrize("record", ["", "relax_trace.record()"])
def test_vms_made_before_relax_trace_was_imported(freeze: str, record: str, tmp_path: Path) -> None:
    """Found among the garbage collector's objects or, where these are frozen, once used."""
    library = tmp_path / "small.so"
    small().export_library(library)
    ended = run_alone(
        f"""
import gc, sys
import tvm
import tvm_ffi
from tvm import relax

tvm_ffi.register_global_func("relax_trace_tests.callback", lambda x, out: out.copyfrom(x))

class Prefixed(relax.VirtualMachine):
    def __getitem__(self, key):
        return super().__getitem__("nested_" + key)

loaded = tvm.runtime.load_module({str(library)!r})
plain, prefixed = relax.VirtualMachine(loaded, tvm.cpu()), Prefixed(loaded, tvm.cpu())
{freeze}
assert "relax_trace" not in sys.modules
import relax_trace
from relax_trace.otel import RelaxVMInstrumentor
{MEMORY}
{record}
RelaxVMInstrumentor().instrument(tracer_provider=provider)
from integration.small_vms import tensor
x = tensor(1, 2, 3, 4)
plain["main"](x)
prefixed["call"](x)
assert names() == ["main", "nested_call"], names()
"""
    )
    assert ended.returncode == 0, ended.stderr
