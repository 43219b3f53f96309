"""Where each PyTorch tensor goes: one table per layout, `{i}` standing for the layer.

PyTorch stores a linear layer's weight (out, in); kernels here are (in, out), so they are transposed.
"""

from __future__ import annotations

import dataclasses

from depcap_jax.models import ModelConfig
from depcap_jax.models.config import Family
from depcap_jax.models.parameters import leaf_shapes

LLADA = {
    "model.transformer.wte.weight": "embed",
    "model.transformer.ln_f.weight": "norm.scale",
    "model.transformer.ff_out.weight": "head",
    "model.transformer.blocks.{i}.attn_norm.weight": "layers.{i}.attn_norm.scale",
    "model.transformer.blocks.{i}.ff_norm.weight": "layers.{i}.ff_norm.scale",
    "model.transformer.blocks.{i}.q_proj.weight": "layers.{i}.attn.q.kernel",
    "model.transformer.blocks.{i}.k_proj.weight": "layers.{i}.attn.k.kernel",
    "model.transformer.blocks.{i}.v_proj.weight": "layers.{i}.attn.v.kernel",
    "model.transformer.blocks.{i}.q_proj.bias": "layers.{i}.attn.q.bias",
    "model.transformer.blocks.{i}.k_proj.bias": "layers.{i}.attn.k.bias",
    "model.transformer.blocks.{i}.v_proj.bias": "layers.{i}.attn.v.bias",
    "model.transformer.blocks.{i}.attn_out.weight": "layers.{i}.attn.o.kernel",
    "model.transformer.blocks.{i}.ff_proj.weight": "layers.{i}.ff.gate.kernel",
    "model.transformer.blocks.{i}.up_proj.weight": "layers.{i}.ff.up.kernel",
    "model.transformer.blocks.{i}.ff_out.weight": "layers.{i}.ff.down.kernel",
}

LLAMA = {
    "model.embed_tokens.weight": "embed",
    "model.norm.weight": "norm.scale",
    "lm_head.weight": "head",
    "model.layers.{i}.input_layernorm.weight": "layers.{i}.attn_norm.scale",
    "model.layers.{i}.post_attention_layernorm.weight": "layers.{i}.ff_norm.scale",
    "model.layers.{i}.self_attn.q_proj.weight": "layers.{i}.attn.q.kernel",
    "model.layers.{i}.self_attn.k_proj.weight": "layers.{i}.attn.k.kernel",
    "model.layers.{i}.self_attn.v_proj.weight": "layers.{i}.attn.v.kernel",
    "model.layers.{i}.self_attn.q_proj.bias": "layers.{i}.attn.q.bias",
    "model.layers.{i}.self_attn.k_proj.bias": "layers.{i}.attn.k.bias",
    "model.layers.{i}.self_attn.v_proj.bias": "layers.{i}.attn.v.bias",
    "model.layers.{i}.self_attn.q_norm.weight": "layers.{i}.attn.q_norm.scale",
    "model.layers.{i}.self_attn.k_norm.weight": "layers.{i}.attn.k_norm.scale",
    "model.layers.{i}.self_attn.o_proj.weight": "layers.{i}.attn.o.kernel",
    "model.layers.{i}.mlp.gate_proj.weight": "layers.{i}.ff.gate.kernel",
    "model.layers.{i}.mlp.up_proj.weight": "layers.{i}.ff.up.kernel",
    "model.layers.{i}.mlp.down_proj.weight": "layers.{i}.ff.down.kernel",
}

TABLES: dict[Family, dict[str, str]] = {
    "llada": LLADA,
    "dream": LLAMA,
    "illada": LLAMA,
    "qwen2": LLAMA,
    "qwen3": LLAMA,
}
"""The layout of each family."""


@dataclasses.dataclass(frozen=True)
class Entry:
    """One tensor under both its names."""

    key: str
    """Its name in the PyTorch checkpoint."""
    leaf: str
    """The dotted name of the parameter it becomes."""
    shape: tuple[int, ...]
    """Its shape in the PyTorch checkpoint."""
    transposed: bool
    """True if the parameter has the axes the other way round."""


def head_key(config: ModelConfig) -> str:
    """The head's name in the PyTorch checkpoint, also where the model has none of its own."""
    return next(key for key, leaf in TABLES[config.family].items() if leaf == "head")


def entries(config: ModelConfig) -> list[Entry]:
    """Every tensor that a checkpoint with this config has: no more, no fewer.

    A row of the table whose parameter this config lacks (biases, a head of its own) is left out.
    """
    shapes = leaf_shapes(dataclasses.replace(config, quantize=None))
    keys = {
        leaf.format(i=i): key.format(i=i)
        for key, leaf in TABLES[config.family].items()
        for i in range(config.num_layers if "{i}" in key else 1)
    }
    return [_entry(keys[leaf], leaf, shape) for leaf, shape in shapes.items()]


def _entry(key: str, leaf: str, shape: tuple[int, ...]) -> Entry:
    transposed = leaf == "head" or leaf.endswith(".kernel")
    return Entry(key, leaf, shape[::-1] if transposed else shape, transposed)
