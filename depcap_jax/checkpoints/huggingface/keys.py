"""Where each PyTorch tensor goes: one table per layout, `{i}` standing for the layer.

PyTorch stores a linear layer's weight (out, in); kernels here are (in, out), so they are transposed.
"""

from __future__ import annotations

import dataclasses
import re

from depcap_jax.models import ModelConfig
from depcap_jax.models.config import Family
from depcap_jax.models.parameters import leaf_shapes

LLADA = {
    "embed": "model.transformer.wte",
    "norm": "model.transformer.ln_f",
    "head": "model.transformer.ff_out",
    "layers.{i}.attn_norm": "model.transformer.blocks.{i}.attn_norm",
    "layers.{i}.ff_norm": "model.transformer.blocks.{i}.ff_norm",
    "layers.{i}.attn.q": "model.transformer.blocks.{i}.q_proj",
    "layers.{i}.attn.k": "model.transformer.blocks.{i}.k_proj",
    "layers.{i}.attn.v": "model.transformer.blocks.{i}.v_proj",
    "layers.{i}.attn.o": "model.transformer.blocks.{i}.attn_out",
    "layers.{i}.ff.gate": "model.transformer.blocks.{i}.ff_proj",
    "layers.{i}.ff.up": "model.transformer.blocks.{i}.up_proj",
    "layers.{i}.ff.down": "model.transformer.blocks.{i}.ff_out",
}

LLAMA = {
    "embed": "model.embed_tokens",
    "norm": "model.norm",
    "head": "lm_head",
    "layers.{i}.attn_norm": "model.layers.{i}.input_layernorm",
    "layers.{i}.ff_norm": "model.layers.{i}.post_attention_layernorm",
    "layers.{i}.attn.q": "model.layers.{i}.self_attn.q_proj",
    "layers.{i}.attn.k": "model.layers.{i}.self_attn.k_proj",
    "layers.{i}.attn.v": "model.layers.{i}.self_attn.v_proj",
    "layers.{i}.attn.q_norm": "model.layers.{i}.self_attn.q_norm",
    "layers.{i}.attn.k_norm": "model.layers.{i}.self_attn.k_norm",
    "layers.{i}.attn.o": "model.layers.{i}.self_attn.o_proj",
    "layers.{i}.ff.gate": "model.layers.{i}.mlp.gate_proj",
    "layers.{i}.ff.up": "model.layers.{i}.mlp.up_proj",
    "layers.{i}.ff.down": "model.layers.{i}.mlp.down_proj",
}

TABLES: dict[Family, dict[str, str]] = {
    "llada": LLADA,
    **dict.fromkeys(("dream", "illada", "qwen2", "qwen3"), LLAMA),
}
"""From our modules to PyTorch's, for each family."""


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
    return f"{TABLES[config.family]['head']}.weight"


def entries(config: ModelConfig) -> list[Entry]:
    """Every tensor that a checkpoint with this config has: no more, no fewer."""
    shapes = leaf_shapes(dataclasses.replace(config, quantize=None))
    return [_entry(TABLES[config.family], leaf, shape) for leaf, shape in shapes.items()]


def _entry(table: dict[str, str], leaf: str, shape: tuple[int, ...]) -> Entry:
    module, _, kind = leaf.rpartition(".")
    layer = re.search(r"\d+", module)
    key = table[re.sub(r"\d+", "{i}", module or leaf)].format(i=layer and layer[0])
    transposed = leaf == "head" or kind == "kernel"
    suffix = "bias" if kind == "bias" else "weight"
    return Entry(f"{key}.{suffix}", leaf, shape[::-1] if transposed else shape, transposed)
