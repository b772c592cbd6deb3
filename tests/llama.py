"""The decoder of examples/ on steps that a test chooses, and the same in plain numpy."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import tvm
from tvm import relax

sys.path.insert(0, str(Path(__file__).parents[1] / "examples"))

from generate_tokens import feed, new_cache
from llama_decoder import EPSILON, HEAD, HEADS, KV_HEADS, LAYERS, ROPE_BASE, compile_decoder

__all__ = ["HEAD", "HEADS", "KV_HEADS", "LAYERS", "compile_decoder", "generate", "reference"]


def generate(
    vm: relax.VirtualMachine, weights: dict[str, np.ndarray], steps: Sequence[Sequence[int]]
) -> list[np.ndarray]:
    """Feed the tokens of each step to a fresh cache; the logits after each step."""
    parameters = [tvm.runtime.tensor(weight) for weight in weights.values()]
    cache = new_cache(vm)
    return [feed(vm, parameters, cache, list(tokens))[-1] for tokens in steps]


def reference(weights: dict[str, np.ndarray], tokens: Sequence[int]) -> np.ndarray:
    """Logits after each token, of shape (tokens, vocabulary), without a cache and without TVM."""
    x = weights["embedding"][np.asarray(tokens)]
    for number in range(LAYERS):
        layer = {name.removeprefix(f"layers.{number}."): weight for name, weight in weights.items()}
        x = x + _attention(layer, _normalized(x, layer["attention_norm.weight"]))
        up = _normalized(x, layer["feed_norm.weight"]) @ layer["up.weight"].T
        gate, value = np.split(up, 2, axis=-1)
        x = x + (gate / (1 + np.exp(-gate)) * value) @ layer["down.weight"].T
    return _normalized(x, weights["norm.weight"]) @ weights["head.weight"].T


def _normalized(x: np.ndarray, weight: np.ndarray) -> np.ndarray:
    return x / np.sqrt(np.mean(x * x, -1, keepdims=True) + EPSILON) * weight


def _attention(layer: dict[str, np.ndarray], x: np.ndarray) -> np.ndarray:
    heads = (x @ layer["qkv.weight"].T).reshape(len(x), -1, HEAD).swapaxes(0, 1)
    query, key, value = np.split(heads, [HEADS, HEADS + KV_HEADS])
    key, value = (np.repeat(shared, HEADS // KV_HEADS, axis=0) for shared in (key, value))
    scores = _rotated(query) @ _rotated(key).swapaxes(1, 2) * HEAD**-0.5
    scores += np.triu(np.full(scores.shape[1:], -np.inf), 1)  # no token sees a later one
    shares = np.exp(scores - scores.max(-1, keepdims=True))
    seen = shares / shares.sum(-1, keepdims=True) @ value
    return seen.swapaxes(0, 1).reshape(len(x), -1) @ layer["out.weight"].T


def _rotated(x: np.ndarray) -> np.ndarray:
    """Rotary position embedding of ``x``, of shape (heads, tokens, HEAD)."""
    frequencies = ROPE_BASE ** (-np.arange(HEAD // 2) / (HEAD // 2))
    angles = np.arange(x.shape[1])[:, None] * np.concatenate([frequencies, frequencies])
    first, second = np.split(x, 2, axis=-1)
    return x * np.cos(angles) + np.concatenate([-second, first], -1) * np.sin(angles)
