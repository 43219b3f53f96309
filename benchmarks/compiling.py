"""Compiles programs for devices that need not be here; weights are shapes only, and nothing is run."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental import topologies
from jax.sharding import Mesh, NamedSharding, PartitionSpec

import depcap_jax as dc
from benchmarks.gpus import GPUS, describe
from depcap_jax.decoding.generate import _generate, as_data
from depcap_jax.inspect.overhead import BENCH_CONFIG

LLADA_8B = dataclasses.replace(
    BENCH_CONFIG,
    vocab_size=126464,
    embedding_size=126464,
    width=4096,
    num_layers=32,
    num_heads=32,
    num_kv_heads=32,
    head_dim=128,
    ff_width=12288,
    mask_token_id=126336,
    pad_token_id=126081,
    eos_token_ids=(126081, 126348),
)
DREAM_7B = dataclasses.replace(
    BENCH_CONFIG,
    family="dream",
    vocab_size=152064,
    embedding_size=152064,
    width=3584,
    num_layers=28,
    num_heads=28,
    num_kv_heads=4,
    head_dim=128,
    ff_width=18944,
    rope_theta=1_000_000.0,
    norm_eps=1e-6,
    qkv_bias=True,
    max_length=2048,
    mask_token_id=151666,
    pad_token_id=151643,
    eos_token_ids=(151643, 151645),
    predicts_next=True,
)
MODELS = {"bench": BENCH_CONFIG, "llada-8b": LLADA_8B, "dream-7b": DREAM_7B}


class Target(NamedTuple):
    """What to compile for."""

    platform: str
    mesh: Mesh

    @classmethod
    def find(cls, name: str | None, count: int) -> Target:
        """The first `count` devices of a target, as the mesh axis "tensor".

        Args:
          name: None: this machine's CPU; one of `GPUS` (with JAX's CUDA plugin); or a TPU topology such as
            "v5e:2x4" (with libtpu).
          count: devices.

        Raises:
          ValueError: if there are not as many.
        """
        platform, devices = _find_devices(name)
        if not 1 <= count <= len(devices):
            raise ValueError(f"{count} devices: there are {len(devices)}")
        return cls(platform, Mesh(np.asarray(devices[:count]), ("tensor",)))

    def whole(self, tree: Any) -> Any:
        """Shapes as arguments that each device holds all of."""
        sharding = NamedSharding(self.mesh, PartitionSpec())
        return jax.tree.map(
            lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=sharding), tree
        )

    def lower(self, function: Callable[..., Any], *arguments: Any, **static: Any) -> jax.stages.Lowered:
        """A jitted function of placed shapes, for this platform."""
        jitted: Any = function
        return jitted.trace(*arguments, **static).lower(lowering_platforms=(self.platform,))

    def lower_generate(
        self, model: dc.Transformer, decoder: dc.DecodeConfig, batch: int, prompt_length: int
    ) -> jax.stages.Lowered:
        """The whole of `generate`, of a placed model."""
        ids = jax.ShapeDtypeStruct((batch, prompt_length), jnp.int32)
        lengths = jax.ShapeDtypeStruct((batch,), jnp.int32)
        rest = self.whole((ids, lengths, jax.eval_shape(lambda: as_data(decoder))))
        return self.lower(_generate, model, *rest, None, trace=False)


def _find_devices(target: str | None) -> tuple[str, Sequence[Any]]:
    if target is None:
        return "cpu", jax.devices("cpu")
    if target in GPUS:
        described = topologies.get_topology_desc(
            platform="cuda",
            topology_name="any",
            target_config=describe(target),
            topology="1x1x1",
        )
        return "cuda", described.devices
    os.environ.setdefault("TPU_SKIP_MDS_QUERY", "1")
    one = {"chips_per_host_bounds": [1, 1, 1]} if target.endswith("1x1") else {}
    return "tpu", topologies.get_topology_desc(platform="tpu", topology_name=target, **one).devices
