"""The sizes of the embedded models."""

from __future__ import annotations

from depcap_jax.models import ModelConfig
from depcap_jax.models.config import Family
from training import vocabulary


def model_config(family: Family) -> ModelConfig:
    """The sizes of an embedded model; Dream's has biases, and one layer more to shift by a position."""
    dream = family == "dream"
    ids = {token: vocabulary.SPECIAL.index(token) for token in vocabulary.SPECIAL}
    size = len(vocabulary.tokens())
    return ModelConfig(
        family=family,
        vocab_size=size,
        embedding_size=size,
        width=256,
        num_layers=5 if dream else 4,
        num_heads=8,
        num_kv_heads=4,
        head_dim=32,
        ff_width=448,
        rope_theta=10_000.0,
        norm_eps=1e-6 if dream else 1e-5,
        qkv_bias=dream,
        tie_embeddings=False,
        max_length=256,
        mask_token_id=ids[vocabulary.MASK],
        pad_token_id=ids[vocabulary.EOS],
        eos_token_ids=(ids[vocabulary.EOS],),
        predicts_next=dream,
    )
