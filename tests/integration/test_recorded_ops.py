"""Real models: what is recorded of a run is what a plain Python instrument sees of it."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import tvm

import llama
import models
from integration.plain_instrument import record_as_seen, recorded_ops
from relax_trace.trace import BUILTIN, KERNEL


@pytest.mark.parametrize("model", models.ALL, ids=lambda model: model.__wrapped__.__name__)
def test_a_model_is_recorded_call_by_call(model: Callable[[], models.Model]) -> None:
    """Names, order, nesting, arguments, devices and kinds are exact, and the results right."""
    compiled = model()
    trace = record_as_seen(compiled.vm, lambda: compiled.check(compiled.run()))
    functions = set(trace.invocations.function.tolist())
    for i, name in enumerate(trace.names):
        if i not in functions:
            assert trace.kinds[i] == (BUILTIN if name.startswith("vm.builtin.") else KERNEL)
    assert len(trace.filter(kind="kernel")) >= 20  # some of them fused ops


def test_shapes_follow_an_input_of_another_size_at_every_call() -> None:
    """Speech detection with batches of four sizes, one of them twice."""
    vm, sizes = models.silero_dynamic().vm, (1, 4, 2, 1, 7)

    def run() -> None:
        for size in sizes:
            vm["main"](*map(tvm.runtime.tensor, models.silero_inputs(size).values()))

    trace = record_as_seen(vm, run)
    checked = trace.filter(name="vm.builtin.check_tensor_info")
    assert [op.arguments for op in recorded_ops(checked)] == [
        text for n in sizes for text in (f"float32[{n}, 576]", "int64[]", f"float32[2, {n}, 128]")
    ]
    assert len(trace) == len(sizes) * len(trace.filter(invocation=0))


def test_a_decoder_is_recorded_with_prompts_of_other_lengths() -> None:
    """Three conversations, each with a cache of its own, a prompt, and two more tokens."""
    decoder = models.decoder()
    vm, weights, _ = decoder.run.args  # type: ignore[attr-defined]
    lengths = (3, 17, 40)

    def run() -> None:
        for length in lengths:
            llama.generate(vm, weights, [list(range(length)), [1], [2]])

    trace = record_as_seen(vm, run)
    attention = trace.filter(name="*attention_with_fused_qkv")
    tokens = [length for prompt in lengths for length in (prompt, 1, 1)]
    heads = llama.HEADS + 2 * llama.KV_HEADS
    assert [op.arguments for op in recorded_ops(attention)] == [
        f"float32[{n}, {heads}, {llama.HEAD}], float32[{n}, {llama.HEADS}, {llama.HEAD}]"
        for n in tokens
        for _ in range(llama.LAYERS)
    ]
