"""The examples as their readers run them: what they print, and the trace file that they leave."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections import defaultdict
from pathlib import Path

import numpy as np
import pytest

import relax_trace

EXAMPLES = Path(__file__).parents[2] / "examples"


def run_example(name: str, *arguments: str, folder: Path) -> tuple[str, relax_trace.Trace]:
    """Run an example in ``folder``: what it printed, and its trace, the only file that it wrote."""
    ran = subprocess.run(
        [sys.executable, str(EXAMPLES / f"{name}.py"), *arguments],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(Path(relax_trace.__file__).parents[1])},
        capture_output=True,
        text=True,
        encoding="utf-8",
        check=False,
    )
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert [file.name for file in folder.iterdir()] == [f"{name}.json"]
    last = f"\n\nwrote {name}.json: open it in https://ui.perfetto.dev\n"
    assert ran.stdout.endswith(last)
    return ran.stdout.removesuffix(last), relax_trace.load(folder / f"{name}.json")


def functions_of(trace: relax_trace.Trace) -> list[str]:
    """The entry function of each invocation."""
    return [trace.names[name] for name in trace.invocations.function]


def time_by_op(trace: relax_trace.Trace, tokens: int) -> dict[str, float]:
    """Microseconds a token of the calls with a tensor, by name without the numbers in it."""
    times: dict[str, float] = defaultdict(float)
    for name, signature, duration in zip(trace.name, trace.signature, trace.duration, strict=True):
        if trace.signatures.has_tensor[signature]:
            words = trace.names[name].split("_")
            times["_".join(word.rstrip("0123456789") for word in words)] += duration / 1000 / tokens
    return times


def test_every_example_is_tested() -> None:
    """Each file of the folder that can be run has its test here."""
    runnable = {
        path.stem for path in EXAMPLES.glob("*.py") if '__name__ == "__main__"' in path.read_text()
    }
    assert runnable == {"generate_tokens", "read_text", "speech_detection", "speech_service"}


def test_speech_is_found_where_it_is(tmp_path: Path) -> None:
    """Three phrases, the table of all calls, and an invocation for each 32 ms of 16.9 s."""
    printed, trace = run_example("speech_detection", folder=tmp_path)
    *lines, _ = printed.removesuffix(str(trace.report())).splitlines()
    phrases = [re.fullmatch(r"speech from +([\d.]+) s to +([\d.]+) s", line) for line in lines]
    found = [tuple(map(float, phrase.groups())) for phrase in phrases if phrase]
    np.testing.assert_allclose(found, [(7.5, 8.5), (8.8, 9.5), (9.8, 11.9)], atol=0.15)
    assert printed == "\n".join([*lines, "", str(trace.report())])
    assert functions_of(trace) == ["main"] * 528
    assert len(trace) == 528 * len(trace.filter(invocation=0))


def test_text_is_read_as_it_was_drawn(tmp_path: Path) -> None:
    """Three lines, to the character, and the table of their three invocations."""
    printed, trace = run_example("read_text", folder=tmp_path)
    assert printed == (
        "Where does the time go?\n"
        "Apache TVM, 48 x 320 pixels\n"
        "3.14159265358979\n"
        f"\n{trace.report()}"
    )
    assert functions_of(trace) == ["main"] * 3
    assert len(trace) == 3 * len(trace.filter(invocation=0))
    first = trace.filter(invocation=0, name="*conv2d*")
    assert trace.signatures.texts[first.signature[0]].startswith(b"float32[1, 3, 48, 320], ")
    assert len(first) == 57


@pytest.mark.parametrize(("options", "transposes"), [((), 25), (("--fuse",), 0)])
def test_tokens_are_generated_and_their_ops_set_side_by_side(
    tmp_path: Path, options: tuple[str, ...], transposes: int
) -> None:
    """A prefill of 24 tokens and 40 times decode: their speeds, and their ops a token."""
    printed, trace = run_example("generate_tokens", *options, folder=tmp_path)
    assert functions_of(trace) == ["create_cache", "prefill", *["decode"] * 40]
    prefill, decode = trace.filter(invocation=1), trace.filter(invocation=range(2, 42))
    for part, invocations in ((prefill, 1), (decode, 40)):
        assert len(part.filter(name="*attention_with_fused_qkv")) == 6 * invocations
        assert len(part.filter(name="*matmul*")) == 25 * invocations
        assert len(part.filter(name="*transpose*")) == transposes * invocations

    tokens, fast, slow, empty, header, *rows = printed.splitlines()
    numbers = json.loads(tokens.removeprefix("24 tokens and 40 more: "))
    assert (len(numbers), numbers[:24]) == (64, list(range(7, 31)))
    length = (trace.invocations.end - trace.invocations.start) / 1000
    totals = length[1] / 24, length[2:].sum() / 40
    assert fast == f"prefill: {1e6 / totals[0]:.1f} tokens per second"
    assert slow == f"decode:  {1e6 / totals[1]:.1f} tokens per second"
    assert (empty, header.split()) == ("", ["us", "a", "token", "prefill", "decode"])
    times = time_by_op(prefill, 24), time_by_op(decode, 40)
    table = {name: figures for name, *figures in map(str.split, rows)}
    assert {*table} == {"total", *times[0], *times[1]}
    for name, figures in table.items():
        for i, total in enumerate(totals):
            spent = total if name == "total" else times[i][name]
            assert float(figures[2 * i].replace(",", "")) == pytest.approx(spent, abs=0.006)
            percent = float(figures[2 * i + 1].removesuffix("%"))
            assert percent == pytest.approx(100 * spent / total, abs=0.06)


def test_a_service_shows_the_ops_of_a_request(tmp_path: Path) -> None:
    """Three answers, and a trace from the handler down to single ops; see also tests/backends."""
    ran = subprocess.run(
        [sys.executable, str(EXAMPLES / "speech_service.py")],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(Path(relax_trace.__file__).parents[1])},
        capture_output=True,
        text=True,
        check=False,
    )
    assert ran.returncode == 0, ran.stderr
    assert list(tmp_path.iterdir()) == []
    answers, tree = ran.stdout.split("\n\n")
    assert len(set(answers.splitlines())) == 1
    assert re.fullmatch(r"(speech: \d+\.\d%\n?){3}", answers)
    lines = re.findall(r"^( *)(\S.*?) +([\d,.]+) us$", tree, re.MULTILINE)
    assert [(len(indent), name) for indent, name, _ in lines[:3]] == [
        (0, "POST /speech"),
        (2, "read sound"),
        (2, "main"),
    ]
    ops = lines[3:]
    assert {len(indent) for indent, _, _ in ops} == {4}
    assert len(ops) > 100
    assert sum("conv1d" in name for _, name, _ in ops) == 12
