"""The Llama-like decoder of generate_tokens.py: its layers, its paged KV cache, and its weights.

It is written with ``relax.frontend.nn`` as the large ones are, but small, and its weights are
random.
"""

from functools import partial

import numpy as np
import tvm
from tvm import relax, topi
from tvm.relax.frontend import nn
from tvm.relax.frontend.nn import Tensor, op, spec
from tvm.relax.frontend.nn.llm.kv_cache import PagedKVCache, RopeMode, TIRPagedKVCache
from tvm.tirx import Var

LAYERS, HIDDEN, HEADS, KV_HEADS, HEAD, INNER, VOCABULARY = 6, 256, 8, 4, 32, 688, 4096
EPSILON, ROPE_BASE = 1e-5, 10_000


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
    """Token ids to logits: after each token, what may come next."""

    def __init__(self) -> None:
        self.embedding = nn.Parameter((VOCABULARY, HIDDEN))
        self.layers = nn.ModuleList([Layer() for _ in range(LAYERS)])
        self.norm = nn.RMSNorm(HIDDEN, -1, EPSILON, bias=False)
        self.head = nn.Linear(HIDDEN, VOCABULARY, bias=False)

    def prefill(self, ids: Tensor, cache: PagedKVCache) -> tuple[Tensor, PagedKVCache]:
        """Take a prompt of any length."""
        return self.decode(ids, cache)

    def decode(self, ids: Tensor, cache: PagedKVCache) -> tuple[Tensor, PagedKVCache]:
        """Take one token."""
        embed = partial(topi.take, axis=0, mode="clip")  # no id reads outside of the table
        x = op.tensor_expr_op(embed, "embed", [self.embedding, ids])
        for number, layer in enumerate(self.layers):
            x = layer(x, cache, number)
        return self.head(self.norm(x)), cache

    def create_cache(
        self, sequences: Var, total: Var, chunk: Var, page: Var, window: Var
    ) -> PagedKVCache:
        """An empty cache for so many sequences; the other sizes are in tokens."""
        return TIRPagedKVCache(
            attn_kind="mha",
            max_batch_size=sequences,
            max_total_seq_len=total,
            prefill_chunk_size=chunk,
            page_size=page,
            support_sliding_window=window,
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


Weights = dict[str, np.ndarray]


def compile_decoder(fuse: bool = False) -> tuple[relax.VMExecutable, Weights]:
    """The decoder for this CPU, and its weights in the order of its parameters.

    With ``fuse`` each matmul reads its weights transposed; without it they are copied so first.
    """
    decoder = Decoder()
    packed = {"param_mode": "packed", "effect_mode": "none"}
    plain = {"param_mode": "none", "effect_mode": "none"}
    cache = spec.Object(object_type=PagedKVCache)
    sizes = dict.fromkeys(("sequences", "total", "chunk", "page", "window"), int)
    functions = {
        "prefill": {"ids": spec.Tensor([1, "tokens"], "int32"), "cache": cache, "$": packed},
        "decode": {"ids": spec.Tensor([1, 1], "int32"), "cache": cache, "$": packed},
        "create_cache": {**sizes, "$": plain},
    }
    module, parameters = decoder.export_tvm(spec.ModuleSpec.from_raw(functions, decoder))
    if fuse:
        module = relax.transform.FuseTransposeMatmul()(module)
    with tvm.target.Target("llvm") as target:
        module = relax.get_pipeline("zero")(module)
        return tvm.compile(module, target), _random_weights(parameters)


def _random_weights(parameters: list[tuple[str, nn.Parameter]]) -> Weights:
    """Norms near 1, and matrices that keep the magnitude of what they multiply."""
    random = np.random.default_rng(0)
    weights = {}
    for name, parameter in parameters:
        shape = [int(size) for size in parameter.shape]
        values = random.normal(len(shape) == 1, shape[-1] ** -0.5, shape)
        weights[name] = values.astype(np.float32)
    return weights
