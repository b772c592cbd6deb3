"""Generate tokens with a Llama-like decoder, and compare where prefill and decode spend their time.

Prefill takes the whole prompt at once, decode one token at a time; TVM's paged KV cache keeps what
both have seen. The decoder is in llama_decoder.py; its weights are random, so that its tokens mean
nothing, but its ops are those of the large ones: pip install "relax-trace[examples]"

The table shows that decode transposes its weights for each token, and that this takes about half
of its time. `python generate_tokens.py --fuse` shows what is left without that.
"""

import re
import sys
from collections import Counter

import numpy as np
import tvm
from tvm import relax
from tvm.runtime import ShapeTuple

import relax_trace
from llama_decoder import compile_decoder

PROMPT, NEW = list(range(7, 31)), 40  # token ids, and how many more to generate
CACHE = {"sequences": 1, "total": 256, "chunk": 128, "page": 16, "window": 0}  # most in tokens


def new_cache(vm: relax.VirtualMachine) -> tvm.runtime.Object:
    """A cache that holds one empty sequence, number 0."""
    cache = vm["create_cache"](*(ShapeTuple([size]) for size in CACHE.values()))
    tvm.get_global_func("vm.builtin.kv_state_add_sequence")(cache, 0)
    return cache


def feed(
    vm: relax.VirtualMachine,
    parameters: list[tvm.runtime.Tensor],
    cache: tvm.runtime.Object,
    tokens: list[int],
) -> np.ndarray:
    """Append tokens to the sequence; the logits after each, of shape (tokens, vocabulary)."""
    begin = tvm.get_global_func("vm.builtin.kv_state_begin_forward")
    begin(cache, ShapeTuple([0]), ShapeTuple([len(tokens)]))
    ids = tvm.runtime.tensor(np.array([tokens], np.int32))
    logits, _ = vm["prefill" if len(tokens) > 1 else "decode"](ids, cache, parameters)
    tvm.get_global_func("vm.builtin.kv_state_end_forward")(cache)
    return logits.numpy()[0]


def generate(
    vm: relax.VirtualMachine, parameters: list[tvm.runtime.Tensor]
) -> tuple[list[int], np.ndarray]:
    """The prompt with NEW tokens after it, always the likeliest, and the logits after each."""
    tokens, cache = list(PROMPT), new_cache(vm)
    logits = feed(vm, parameters, cache, tokens)
    for _ in range(NEW):
        tokens.append(int(logits[-1].argmax()))
        logits = np.append(logits, feed(vm, parameters, cache, tokens[-1:]), axis=0)
    return tokens, logits


def function_trace(trace: relax_trace.Trace, function: str) -> relax_trace.Trace:
    """The calls of one entry function."""
    functions = [trace.names[name] for name in trace.invocations.function]
    rows = [row for row, name in enumerate(functions) if name == function]
    return trace.filter(invocation=rows)


def times(trace: relax_trace.Trace, tokens: int) -> Counter[str]:
    """Microseconds a token by op; ops that differ in their numbers alone are taken together."""
    report = trace.report()
    durations = np.bincount(report.calls.name, report.calls.duration, len(report.calls.names))
    result = Counter({"total": report.longest_total / 1000 / tokens})
    for name, duration in zip(report.calls.names, durations, strict=True):
        result[re.sub(r"\d+(?=_|$)", "", name)] += duration / 1000 / tokens
    return result


def side_by_side(prefill: Counter[str], decode: Counter[str]) -> str:
    """A row for each op, with its microseconds a token and its share of the total, twice."""
    lines = [f"{'us a token':56}{'prefill':>12}{'decode':>20}"]
    for name, _ in (prefill + decode).most_common():
        row = f"{name:56}"
        for part in (prefill, decode):
            row += f"{part[name]:12,.2f}{part[name] / part['total']:8.1%}"
        lines.append(row)
    return "\n".join(lines)


def main() -> None:
    """Generate, check, show."""
    executable, weights = compile_decoder(fuse="--fuse" in sys.argv)
    vm = relax.VirtualMachine(executable, tvm.cpu())
    parameters = [tvm.runtime.tensor(weight) for weight in weights.values()]
    feed(vm, parameters, new_cache(vm), PROMPT)  # to warm up
    with relax_trace.record(vm) as recording:
        tokens, logits = generate(vm, parameters)
    print(f"{len(PROMPT)} tokens and {NEW} more: {tokens}")
    if not np.allclose(logits, feed(vm, parameters, new_cache(vm), tokens), atol=1e-4):
        sys.exit("error: one prefill of all the tokens should give the same logits")
    trace = recording.trace
    prefill = times(function_trace(trace, "prefill"), len(PROMPT))
    decode = times(function_trace(trace, "decode"), NEW)
    print(f"prefill: {1e6 / prefill['total']:.1f} tokens per second")
    print(f"decode:  {1e6 / decode['total']:.1f} tokens per second\n")
    print(side_by_side(prefill, decode))
    trace.save("generate_tokens.json")
    print("\nwrote generate_tokens.json: open it in https://ui.perfetto.dev")


if __name__ == "__main__":
    main()
