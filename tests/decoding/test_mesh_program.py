"""What the compiler makes of `generate` on a mesh, read off the program of one device."""

from __future__ import annotations

import dataclasses
import math
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import Mesh, NamedSharding, PartitionSpec

import depcap_jax as dc
from depcap_jax.decoding.compute.prediction import TILE
from depcap_jax.decoding.generate import _generate, as_data
from depcap_jax.inspect.overhead import BENCH_CONFIG
from depcap_jax.models.parameters import on_mesh

DEVICES = 8
# Sizes that are not each other's multiples by chance: an array's shape tells what it is.
ROWS, PROMPT, ANSWER = 2, 41, 48
CANVAS = PROMPT + ANSWER
CONFIG = dataclasses.replace(
    BENCH_CONFIG,
    vocab_size=9216,
    embedding_size=9216,
    mask_token_id=9200,
    pad_token_id=9201,
    eos_token_ids=(9201,),
    width=64,
    num_layers=1,
    num_heads=DEVICES,
    num_kv_heads=DEVICES,
    head_dim=24,
    ff_width=320,
)
COLLECTIVE = re.compile(
    r" = (?P<shapes>\(?[a-z].*?) (?:all-gather|all-reduce|all-to-all|collective-permute|reduce-scatter)"
    r"(?:-start)?\("
)


@pytest.fixture(scope="module")
def program() -> str:
    mesh = Mesh(np.asarray(jax.devices()), ("tensor",))
    assert mesh.size == DEVICES
    decoder = dc.recipe("depcap", cache="dual-margin", gen_length=ANSWER, l_max=16)
    model = on_mesh(dc.Transformer.abstract(CONFIG), mesh)
    whole = NamedSharding(mesh, PartitionSpec())
    ids = jax.ShapeDtypeStruct((ROWS, PROMPT), jnp.int32, sharding=whole)
    lengths = jax.ShapeDtypeStruct((ROWS,), jnp.int32, sharding=whole)
    data = jax.tree.map(
        lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=whole),
        jax.eval_shape(lambda: as_data(decoder)),
    )
    text = _generate.lower(model, ids, lengths, data, None, trace=False).compile().as_text()
    assert text is not None
    return text


def shapes(text: str) -> set[tuple[int, ...]]:
    """Of all arrays that a text names."""
    return {tuple(map(int, found.split(","))) for found in re.findall(r"\b[a-z]+\d+\[([\d,]+)\]", text)}


@pytest.mark.compiler
def test_each_device_keeps_the_keys_and_values_of_its_heads(program):
    kept = {shape for shape in shapes(program) if shape[-2:] == (CONFIG.head_dim, CANVAS) and len(shape) == 4}
    assert (ROWS, CONFIG.num_kv_heads // DEVICES, CONFIG.head_dim, CANVAS) in kept
    assert {heads for _, heads, *_ in kept} == {CONFIG.num_kv_heads // DEVICES}


@pytest.mark.compiler
def test_no_device_has_all_logits_of_a_position(program):
    """Nor the whole embedding or head: nothing in the program is as large as the vocabulary."""
    per_device = CONFIG.embedding_size // DEVICES
    assert any(shape[-1] == per_device for shape in shapes(program))
    assert [shape for shape in shapes(program) if CONFIG.embedding_size in shape] == []


@pytest.mark.compiler
def test_what_devices_tell_each_other_is_small(program):
    """A row's hidden states, and what is left of a tile of logits: less than a device's own part of one."""
    told = {
        shape
        for line in program.splitlines()
        if (found := COLLECTIVE.search(line))
        for shape in shapes(found["shapes"])
    }
    assert told
    assert max(map(math.prod, told)) < ROWS * TILE * CONFIG.embedding_size // DEVICES
