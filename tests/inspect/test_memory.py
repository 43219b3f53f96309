"""The memory that `depcap info` tells, against what the compiler plans."""

from __future__ import annotations

import dataclasses

import jax
import jax.numpy as jnp
import pytest
from small_checkpoints import DREAM_7B, LLADA_8B

from depcap_jax.checkpoints.huggingface.config_json import from_config_json
from depcap_jax.decoding.generate import _generate, as_data
from depcap_jax.decoding.recipes import recipe
from depcap_jax.inspect.accelerators import ACCELERATORS
from depcap_jax.inspect.memory import as_loaded, count_parameters, estimate
from depcap_jax.inspect.overhead import BENCH_CONFIG

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
    model = as_loaded(config, "float32")
    told = estimate(model, decoder, batch=batch, prompt_length=prompt_length)
    ids = jax.ShapeDtypeStruct((batch, prompt_length), jnp.int32)
    lengths = jax.ShapeDtypeStruct((batch,), jnp.int32)
    data = jax.eval_shape(lambda: as_data(decoder))
    planned = _generate.lower(model, ids, lengths, data, None, trace=False).compile().memory_analysis()
    assert planned is not None
    small = 4 * batch * (prompt_length + 1) + 64
    assert told.weights <= planned.argument_size_in_bytes <= told.weights + small
    assert abs((told.cache + told.work) / planned.temp_size_in_bytes - 1) < 0.15


def test_what_is_exact():
    decoder = recipe("depcap", gen_length=128, cache="dual")
    model = as_loaded(SMALL, "bfloat16")
    told = estimate(model, decoder, batch=3, prompt_length=64)
    assert told.weights == 2 * count_parameters(SMALL)
    assert told.cache == 3 * 192 * 2 * SMALL.num_layers * 4 * 16 * 2
    assert told.loading == 0
    assert estimate(model, recipe("depcap", gen_length=128)).cache == 0
    split = estimate(model, decoder, batch=3, prompt_length=64, tensor=4)
    whole = 2 * 2 * SMALL.num_layers * SMALL.width + 2 * SMALL.width  # the norms
    assert split.weights == (told.weights - whole) // 4 + whole
    assert split.cache == told.cache // 4


# Bytes that XLA plans beside the weights of two layers: `python -m benchmarks.compile_times --layers 2`.
PLANNED = [
    ("a100-40", LLADA_8B, 1, 256, 256, "dual-margin", 63_344_288),
    ("a100-40", LLADA_8B, 32, 256, 256, "dual-margin", 1_684_965_280),
    ("a100-40", LLADA_8B, 4, 2048, 512, "prefix", 576_612_512),
    ("a100-40", LLADA_8B, 1, 2048, 256, "none", 208_965_480),
    ("a100-40", DREAM_7B, 8, 256, 256, "dual-margin", 353_314_000),
    ("t4", LLADA_8B, 8, 256, 256, "dual-margin", 421_456_544),
    ("t4", LLADA_8B, 1, 1024, 256, "dual-margin", 399_571_360),
    ("t4", LLADA_8B, 2, 2048, 512, "none", 1_348_023_400),
    ("t4", DREAM_7B, 1, 1024, 256, "dual-margin", 334_423_248),
    ("v5e", LLADA_8B, 1, 256, 256, "dual-margin", 1_105_068_032),
    ("v5e", LLADA_8B, 8, 256, 256, "dual-margin", 2_562_473_984),
]


@pytest.mark.parametrize(("name", "published", "batch", "prompt", "answer", "cache", "planned"), PLANNED)
def test_the_estimate_is_near_what_is_planned_for_accelerators(
    name, published, batch, prompt, answer, cache, planned
):
    config = dataclasses.replace(from_config_json(published), num_layers=2)
    device = ACCELERATORS[name]
    model = as_loaded(config, "float16" if name == "t4" else "bfloat16", device)
    decoder = recipe("depcap", gen_length=answer, cache=cache)
    told = estimate(model, decoder, batch=batch, prompt_length=prompt, device=device)
    assert abs((told.cache + told.work) / planned - 1) < 0.15


@pytest.mark.parametrize(("name", "planned"), [("t4", 1_320_000_000), ("v5e", 807_862_272)])
def test_the_estimate_in_few_bits_is_near_what_is_planned(name, planned):
    """Of all layers, as `benchmarks/devices.jsonl` has them: a GPU has the head in full, a TPU has not."""
    config = dataclasses.replace(from_config_json(LLADA_8B), quantize="int8")
    device = ACCELERATORS[name]
    model = as_loaded(config, "float16" if name == "t4" else "bfloat16", device)
    decoder = recipe("depcap", gen_length=256, cache="dual-margin")
    told = estimate(model, decoder, batch=1, prompt_length=256, device=device)
    assert abs((told.cache + told.work) / planned - 1) < 0.16


@pytest.mark.parametrize(
    ("settings", "complaint"),
    [
        ({"batch": 0}, "batch"),
        ({"prompt_length": 0}, "prompt_length"),
        ({"tensor": 0}, "tensor"),
        ({"prompt_length": 4000}, "4000"),
    ],
)
def test_bad_counts(settings, complaint):
    with pytest.raises(ValueError, match=complaint):
        estimate(as_loaded(SMALL, "float32"), recipe("depcap", gen_length=128), **settings)
