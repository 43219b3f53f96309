"""How each family's published `config.json` describes a model: one table per family."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

from depcap_jax.models.config import Family


class ModelType(NamedTuple):
    """What a `model_type` tells that the fields beside it may leave out."""

    architecture: str
    predicts_next: bool | None
    """None: models of both kinds are published as this type."""
    mask_ids: Mapping[int, int] = MappingProxyType({})
    """The mask token's id by the vocabulary's size, where neither the file nor the tokenizer has it."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Dialect:
    """How one family's `config.json` describes a model."""

    model_types: Mapping[str, ModelType]
    names: Mapping[str, str]
    """From a field of `ModelConfig` to its name in the file; a field without a name follows from others."""
    defaults: Mapping[str, Any]
    """Fields of `ModelConfig` where the file does not say."""
    only: Mapping[str, tuple[Any, ...]]
    """The values that the transformer implements; the first is the default, and what is written."""
    longest: int | None = None
    """The longest canvas that the authors advise, whatever the file says."""
    turn_end_ids: Mapping[int, tuple[int, ...]]
    """Ids that end an answer besides `eos_token_id`, by the vocabulary's size.

    The published files do not list them, so they are recognised by the published size.
    """


_SHARED = {name: name for name in ("vocab_size", "rope_theta", "mask_token_id", "pad_token_id")}
_SHARED["norm_eps"] = "rms_norm_eps"

_LLADA = Dialect(
    model_types={"llada": ModelType("LLaDAModelLM", False)},
    names={
        **_SHARED,
        "embedding_size": "embedding_size",
        "width": "d_model",
        "num_layers": "n_layers",
        "num_heads": "n_heads",
        "num_kv_heads": "n_kv_heads",
        "ff_width": "mlp_hidden_size",
        "qkv_bias": "include_qkv_bias",
        "tie_embeddings": "weight_tying",
        "max_length": "max_sequence_length",
    },
    defaults={"norm_eps": 1e-5},
    only={
        **dict.fromkeys(("rope", "rope_full_precision", "layer_norm_with_affine"), (True,)),
        **dict.fromkeys(("alibi", "attention_layer_norm", "bias_for_layer_norm", "include_bias"), (False,)),
        **dict.fromkeys(("input_emb_norm", "scale_logits"), (False,)),
        **dict.fromkeys(("rope_scaling", "clip_qkv"), (None,)),
        "block_type": ("llama",),
        "block_group_size": (1,),
        "activation_type": ("silu", "swiglu"),
        "layer_norm_type": ("rms",),
    },
    turn_end_ids={126464: (126348,)},  # <|eot_id|>
)

_DREAM = Dialect(
    model_types={"Dream": ModelType("DreamModel", True)},
    names={
        **_SHARED,
        "width": "hidden_size",
        "num_layers": "num_hidden_layers",
        "num_heads": "num_attention_heads",
        "num_kv_heads": "num_key_value_heads",
        "head_dim": "head_dim",
        "ff_width": "intermediate_size",
        "qkv_bias": "attention_bias",
        "tie_embeddings": "tie_word_embeddings",
        "max_length": "max_position_embeddings",
    },
    defaults={"norm_eps": 1e-6, "qkv_bias": True},
    only={
        "hidden_act": ("silu",),
        "rope_scaling": (None,),
        "use_mrope": (False,),
        "use_sliding_window": (False,),
        "layer_types": (None, "full_attention"),
    },
    longest=2048,  # although its rotary table reaches further
    turn_end_ids={152064: (151645,)},  # <|im_end|>
)

# The types a2d-... are those of https://github.com/ZHZisZZ/dllm: transformers' own classes without the causal
# mask, sampled without a shift; <|mask|> is the first id behind the tokenizer's own.
_QWEN2 = dataclasses.replace(
    _DREAM,
    model_types={
        "qwen2": ModelType("Qwen2ForCausalLM", None),
        "a2d-qwen2": ModelType("A2DQwen2LMHeadModel", False, {151936: 151665}),
    },
    longest=None,
    # <|endoftext|> and <|im_end|>, as the generation_config.json of Qwen2.5 and Qwen3 has them.
    turn_end_ids={151936: (151643, 151645)},
)

# What these call attention_bias is one bias more than the transformer has.
_WITHOUT_BIAS = {name: key for name, key in _DREAM.names.items() if name != "qkv_bias"}

_QWEN3 = dataclasses.replace(
    _QWEN2,
    model_types={
        "qwen3": ModelType("Qwen3ForCausalLM", None),
        "a2d-qwen3": ModelType("A2DQwen3LMHeadModel", False, {151936: 151669}),
    },
    names=_WITHOUT_BIAS,
    defaults={"norm_eps": 1e-6, "head_dim": 128, "qk_norm": True},
    only={**_DREAM.only, "attention_bias": (False,)},
)

# https://huggingface.co/GSAI-ML/iLLaDA-8B-Base: Llama's layers and names. Its README decodes with mask id 5;
# its tokenizer has that token, <[MASK]>, but not as its mask token.
_ILLADA = dataclasses.replace(
    _DREAM,
    model_types={"illada": ModelType("ILLaDAForCausalLM", False, {155136: 5})},
    names={name: key for name, key in _WITHOUT_BIAS.items() if name != "head_dim"},
    defaults={"norm_eps": 1e-6, "tie_embeddings": True},
    only={
        "hidden_act": ("silu",),
        "rope_scaling": (None,),
        "attention_bias": (False,),
        "mlp_bias": (False,),
        "layer_norm_eps": (None,),
    },
    longest=None,
    turn_end_ids={},
)

DIALECTS: dict[Family, Dialect] = {
    "llada": _LLADA,
    "dream": _DREAM,
    "illada": _ILLADA,
    "qwen2": _QWEN2,
    "qwen3": _QWEN3,
}

REPOSITORIES: dict[str, dict[str, Any]] = {
    # Its <M> is an added token, and https://github.com/pengzhangzhi/Open-dLLM samples as Dream does.
    "fredzzp/open-dcoder-0.5B": {"mask_token_id": 151665, "predicts_next": True},
    # As the models beside them on the hub, but for what a position sees: its own block and those before it.
    "dllm-hub/Qwen2.5-Coder-0.5B-Instruct-diffusion-bd3lm-v0.1": {"block_causal": True},
    "dllm-hub/Qwen3-0.6B-diffusion-bd3lm-v0.1": {"block_causal": True},
}
"""What the files of a repository on the hub do not tell of it."""
