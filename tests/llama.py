"""A small Llama-like decoder with TVM's paged KV cache, and the same in plain numpy."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import tvm
from tvm import relax, te, tirx
from tvm.relax.frontend import nn
from tvm.relax.frontend.nn import Tensor, op, spec
from tvm.relax.frontend.nn.llm.kv_cache import PagedKVCache, RopeMode, TIRPagedKVCache
from tvm.runtime import ShapeTuple

LAYERS, HIDDEN, HEADS, KV_HEADS, HEAD, INNER, VOCABULARY = 4, 128, 4, 2, 32, 256, 512
EPSILON, ROPE_BASE = 1e-5, 10_000
CACHE_SIZES = ("max_batch", "max_total", "prefill_chunk", "page_size", "sliding_window")


class Layer(nn.Module):
    """Attention over the cache, then a gated feed-forward part."""

    def __init__(self) -> None:
        self.attention_norm = nn.RMSNorm(HIDDEN, -1, EPSILON, bias=False)
        self.qkv = nn.Linear(HIDDEN, (HEADS + 2 * KV_HEADS) * HEAD, bias=False)
        self.out = nn.Linear(HEADS * HEAD, HIDDEN, bias=False)
        self.feed_norm = nn.RMSNorm(HIDDEN, -1, EPSILON, bias=False)
        self.up = nn.Linear(HIDDEN, 2 * INNER, bias=False)
        self.down = nn.Linear(INNER, HIDDEN, bias=False)

    def forward(self, x: Tensor, cache: PagedKVCache, number: int) -> Tensor:
        """``x`` is of shape (1, tokens, HIDDEN)."""
        _, tokens, _ = x.shape
        qkv = op.reshape(self.qkv(self.attention_norm(x)), (1, tokens, HEADS + 2 * KV_HEADS, HEAD))
        seen = cache.attention_with_fused_qkv(number, qkv, HEADS, sm_scale=HEAD**-0.5)
        x = x + self.out(op.reshape(seen, (1, tokens, HEADS * HEAD)))
        gate, value = op.split(self.up(self.feed_norm(x)), 2, axis=-1)
        return x + self.down(op.silu(gate) * value)


class Decoder(nn.Module):
    """Token ids to the logits of the token after the last."""

    def __init__(self) -> None:
        self.embedding = nn.Embedding(VOCABULARY, HIDDEN)
        self.layers = nn.ModuleList([Layer() for _ in range(LAYERS)])
        self.norm = nn.RMSNorm(HIDDEN, -1, EPSILON, bias=False)
        self.head = nn.Linear(HIDDEN, VOCABULARY, bias=False)

    def prefill(self, ids: Tensor, cache: PagedKVCache) -> tuple[Tensor, PagedKVCache]:
        """Take a prompt of any length."""
        return self.decode(ids, cache)

    def decode(self, ids: Tensor, cache: PagedKVCache) -> tuple[Tensor, PagedKVCache]:
        """Take one token more."""
        x = self.embedding(ids)
        for number, layer in enumerate(self.layers):
            x = layer(x, cache, number)
        return self.head(op.tensor_expr_op(_last, "take_last", [self.norm(x)])), cache

    def create_cache(
        self,
        max_batch: tirx.Var,
        max_total: tirx.Var,
        prefill_chunk: tirx.Var,
        page_size: tirx.Var,
        sliding_window: tirx.Var,
    ) -> PagedKVCache:
        """An empty cache."""
        return TIRPagedKVCache(
            attn_kind="mha",
            max_batch_size=max_batch,
            max_total_seq_len=max_total,
            prefill_chunk_size=prefill_chunk,
            page_size=page_size,
            support_sliding_window=sliding_window,
            layer_partition=relax.ShapeExpr([0, LAYERS]),
            num_hidden_layers=LAYERS,
            num_attention_heads=HEADS,
            num_key_value_heads=KV_HEADS,
            qk_head_dim=HEAD,
            v_head_dim=HEAD,
            mla_original_qk_head_dim=0,
            mla_original_v_head_dim=0,
            rope_mode=RopeMode.NORMAL,
            rope_scale=1,
            rope_theta=ROPE_BASE,
            rope_scaling={},
            rope_ext_factors=relax.prim_value(0),
            rotary_dim=HEAD,
            enable_disaggregation=False,
            dtype="float32",
            target=tvm.target.Target("llvm"),
        )


def _last(x: te.Tensor) -> te.Tensor:
    _, tokens, size = x.shape
    return te.compute((1, 1, size), lambda i, _, k: x[i, tokens - 1, k], name="take_last")


@dataclass(frozen=True)
class Compiled:
    """The executable, and its weights in the order of its parameters."""

    executable: relax.VMExecutable
    weights: dict[str, np.ndarray]


def compile_decoder() -> Compiled:
    """Compile for this CPU, with random weights."""
    decoder = Decoder()
    packed = {"param_mode": "packed", "effect_mode": "none"}
    cache = spec.Object(object_type=PagedKVCache)
    functions = {
        "prefill": {"ids": spec.Tensor([1, "tokens"], "int32"), "cache": cache, "$": packed},
        "decode": {"ids": spec.Tensor([1, 1], "int32"), "cache": cache, "$": packed},
        "create_cache": {
            **dict.fromkeys(CACHE_SIZES, int),
            "$": {"param_mode": "none", "effect_mode": "none"},
        },
    }
    module, parameters = decoder.export_tvm(spec.ModuleSpec.from_raw(functions, decoder))
    random = np.random.default_rng(0)
    weights = {
        name: random.normal(0, 0.1, [int(d) for d in weight.shape]).astype(np.float32)
        for name, weight in parameters
    }
    target = tvm.target.Target("llvm")
    with target:
        module = relax.get_pipeline("zero")(module)
    return Compiled(tvm.compile(module, target=target), weights)


def generate(
    vm: relax.VirtualMachine, weights: dict[str, np.ndarray], steps: Sequence[Sequence[int]]
) -> list[np.ndarray]:
    """Feed the tokens of each step to a fresh cache; the logits after each step."""
    call = tvm.get_global_func
    parameters = [tvm.runtime.tensor(weight) for weight in weights.values()]
    cache = vm["create_cache"](*(ShapeTuple([size]) for size in (1, 256, 64, 16, 0)))
    call("vm.builtin.kv_state_add_sequence")(cache, 0)
    logits = []
    for tokens in steps:
        ids = tvm.runtime.tensor(np.array([tokens], np.int32))
        function = "prefill" if len(tokens) > 1 else "decode"
        call("vm.builtin.kv_state_begin_forward")(cache, ShapeTuple([0]), ShapeTuple([len(tokens)]))
        output, _ = vm[function](ids, cache, parameters)
        call("vm.builtin.kv_state_end_forward")(cache)
        logits.append(output.numpy()[0, 0])
    return logits


def reference(weights: dict[str, np.ndarray], tokens: Sequence[int]) -> np.ndarray:
    """Logits after each token, of shape (tokens, VOCABULARY), without a cache and without TVM."""
    x = weights["embedding.weight"][np.asarray(tokens)]
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
