"""The memory that `depcap info` tells, against what the compiler plans."""

from __future__ import annotations

import dataclasses

import jax
import jax.numpy as jnp
import pytest

from depcap_jax.decoding.generate import _generate, as_data
from depcap_jax.decoding.recipes import recipe
from depcap_jax.inspect.memory import count_parameters, estimate
from depcap_jax.inspect.overhead import BENCH_CONFIG
from depcap_jax.models import Transformer

SMALL = dataclasses.replace(
    BENCH_CONFIG, width=64, num_layers=2, ff_width=256, num_heads=4, num_kv_heads=4, head_dim=16
)
MANY_WORDS = dataclasses.replace(SMALL, vocab_size=16384)
FEW_WORDS = {
    "vocab_size": 512,
    "embedding_size": 512,
    "mask_token_id": 500,
    "pad_token_id": 501,
    "eos_token_ids": (501,),
}


@pytest.mark.compiler
@pytest.mark.parametrize(
    ("config", "batch", "prompt_length", "gen_length", "cache"),
    [
        (MANY_WORDS, 2, 64, 128, "dual"),  # the head's logits are the most
        (
            dataclasses.replace(SMALL, num_heads=8, num_kv_heads=8, head_dim=8, **FEW_WORDS),
            4,
            384,
            128,
            "none",
        ),
        (dataclasses.replace(SMALL, ff_width=4096, **FEW_WORDS), 8, 64, 64, "prefix"),
    ],
    ids=["head", "attention", "feed-forward"],
)
def test_the_estimate_is_near_the_compilers_plan(config, batch, prompt_length, gen_length, cache):
    decoder = recipe("depcap", gen_length=gen_length, cache=cache)
    told = estimate(config, decoder, batch=batch, prompt_length=prompt_length, dtype=jnp.float32)
    ids = jax.ShapeDtypeStruct((batch, prompt_length), jnp.int32)
    lengths = jax.ShapeDtypeStruct((batch,), jnp.int32)
    model = Transformer.abstract(config)
    data = jax.eval_shape(lambda: as_data(decoder))
    planned = _generate.lower(model, ids, lengths, data, None, trace=False).compile().memory_analysis()
    assert planned is not None
    small = 4 * batch * (prompt_length + 1) + 64
    assert told.weights <= planned.argument_size_in_bytes <= told.weights + small
    assert 2 / 3 < (told.cache + told.work) / planned.temp_size_in_bytes < 3 / 2


def test_what_is_exact():
    decoder = recipe("depcap", gen_length=128, cache="dual")
    told = estimate(SMALL, decoder, batch=3, prompt_length=64, dtype=jnp.bfloat16)
    assert told.weights == 2 * count_parameters(SMALL)
    assert told.cache == 3 * 192 * 2 * SMALL.num_layers * 4 * 16 * 2
    assert estimate(SMALL, recipe("depcap", gen_length=128)).cache == 0


@pytest.mark.parametrize(
    ("settings", "complaint"),
    [({"batch": 0}, "batch"), ({"prompt_length": 0}, "prompt_length"), ({"prompt_length": 4000}, "4000")],
)
def test_bad_counts(settings, complaint):
    with pytest.raises(ValueError, match=complaint):
        estimate(SMALL, recipe("depcap", gen_length=128), **settings)
