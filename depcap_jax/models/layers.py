"""The pieces of the transformer: RMSNorm, RoPE, attention over a key/value cache, SwiGLU.

Axis letters: B rows, Q query positions, T canvas positions, D width, A heads, G key/value heads, H head size.
Weights live in the compute dtype; norms, rotations, softmax and logits are float32.
"""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp
from flax import nnx
from jax import lax
from jax.typing import DTypeLike

from depcap_jax.models.config import ModelConfig


class LayerCache(NamedTuple):
    """One layer's keys (after RoPE) and values for every canvas position.

    Positions are the last axis: that is how the products of attention read them, without a copy.
    """

    k: jax.Array  # [B, G, H, T]
    v: jax.Array  # [B, G, H, T]

    def write(self, k: jax.Array, v: jax.Array, start: jax.Array | None, mask: jax.Array) -> LayerCache:
        """Stores k and v [B, Q, G, H] at [start, start + Q) of each row, where `mask` [B, Q] allows."""
        return LayerCache(_write(self.k, k, start, mask), _write(self.v, v, start, mask))

    def read(self) -> tuple[jax.Array, jax.Array]:
        """Keys and values as attention takes them [B, T, G, H]; the compiler sees through the transposes."""
        return self.k.transpose(0, 3, 1, 2), self.v.transpose(0, 3, 1, 2)


def _write(old: jax.Array, new: jax.Array, start: jax.Array | None, mask: jax.Array) -> jax.Array:
    new, mask = new.transpose(0, 2, 3, 1), mask[:, None, None, :]
    if start is None:
        return jnp.where(mask, new, old)

    def write_row(row: jax.Array, row_new: jax.Array, row_start: jax.Array, row_mask: jax.Array) -> jax.Array:
        span = lax.dynamic_slice_in_dim(row, row_start, row_new.shape[-1], axis=-1)
        return lax.dynamic_update_slice_in_dim(row, jnp.where(row_mask, row_new, span), row_start, axis=-1)

    return jax.vmap(write_row)(old, new, start, mask)


def random_param(rngs: nnx.Rngs, shape: tuple[int, ...], dtype: DTypeLike) -> nnx.Param[jax.Array]:
    """A weight drawn from N(0, 0.02 ** 2), for training and tests; loading never draws one."""
    return nnx.Param(0.02 * jax.random.normal(rngs.params(), shape, dtype))


class RMSNorm(nnx.Module):
    """x / rms(x), computed in float32, cast back, then scaled."""

    def __init__(self, config: ModelConfig, *, dtype: DTypeLike):
        self.eps = config.norm_eps
        self.scale = nnx.Param(jnp.ones((config.width,), dtype))

    def __call__(self, x: jax.Array) -> jax.Array:
        """Normalises the last axis."""
        x32 = x.astype(jnp.float32)
        normed = x32 * jax.lax.rsqrt(jnp.mean(jnp.square(x32), axis=-1, keepdims=True) + self.eps)
        return normed.astype(x.dtype) * jnp.broadcast_to(self.scale[...], x.shape)


class Linear(nnx.Module):
    """x @ kernel + bias with the kernel stored (in, out)."""

    def __init__(self, in_size: int, out_size: int, *, bias: bool = False, dtype: DTypeLike, rngs: nnx.Rngs):
        self.kernel = random_param(rngs, (in_size, out_size), dtype)
        self.bias = nnx.Param(jnp.zeros((out_size,), dtype)) if bias else None

    def __call__(self, x: jax.Array) -> jax.Array:
        """Maps [..., in] to [..., out]."""
        # As one matrix: the product in the kernel's gradient then needs no transposed copy of x.
        y = (x.reshape(-1, x.shape[-1]) @ self.kernel[...]).reshape(*x.shape[:-1], -1)
        return y if self.bias is None else y + jnp.broadcast_to(self.bias[...], y.shape)


class Rotation(NamedTuple):
    """RoPE's cosines and sines at the query positions, shared by all layers of a pass."""

    cos: jax.Array  # [B, Q, 1, H / 2] float32
    sin: jax.Array

    @classmethod
    def at(cls, positions: jax.Array, config: ModelConfig) -> Rotation:
        """The rotation of integer `positions` [B, Q]."""
        exponent = jnp.arange(0, config.head_dim, 2, dtype=jnp.float32) / config.head_dim
        frequency = 1.0 / jnp.float32(config.rope_theta) ** exponent
        angle = positions.astype(jnp.float32)[:, :, None, None] * frequency[None, None, None, :]
        return cls(jnp.cos(angle), jnp.sin(angle))

    def __call__(self, x: jax.Array) -> jax.Array:
        """Rotates heads x [B, Q, heads, H] whose halves form the pairs."""
        first, second = jnp.split(x.astype(jnp.float32), 2, axis=-1)
        turned = [first * self.cos - second * self.sin, second * self.cos + first * self.sin]
        return jnp.concatenate(turned, axis=-1).astype(x.dtype)


class Queries(NamedTuple):
    """Where the queries of a pass are and what they may see: the same for all layers."""

    rotation: Rotation
    valid: jax.Array  # [B, T] this and the next two: as in `Transformer.hidden`
    start: jax.Array | None  # [B]
    write: jax.Array  # [B, Q]


def _attend(q: jax.Array, k: jax.Array, v: jax.Array, mask: jax.Array) -> jax.Array:
    """Attention of q [B, Q, A, H] over k and v [B, T, G, H], its softmax in float32."""

    def as_given(q: jax.Array, k: jax.Array, v: jax.Array, mask: jax.Array) -> jax.Array:
        with jax.numpy_dtype_promotion("standard"):  # JAX's own function needs it for half precision
            return jax.nn.dot_product_attention(q, k, v, mask=mask)

    def in_float32(q: jax.Array, k: jax.Array, v: jax.Array, mask: jax.Array) -> jax.Array:
        wide = (x.astype(jnp.float32) for x in (q, k, v))
        return jax.nn.dot_product_attention(*wide, mask=mask).astype(q.dtype)

    if q.dtype != jnp.float16:
        return as_given(q, k, v, mask)
    # Only GPUs have a float16 product that sums in float32.
    return lax.platform_dependent(q, k, v, mask, cuda=as_given, rocm=as_given, default=in_float32)


class Attention(nnx.Module):
    """Bidirectional attention with grouped key/value heads."""

    def __init__(self, config: ModelConfig, *, dtype: DTypeLike, rngs: nnx.Rngs):
        self.config = config
        q_size, kv_size = config.num_heads * config.head_dim, config.num_kv_heads * config.head_dim
        self.q = Linear(config.width, q_size, bias=config.qkv_bias, dtype=dtype, rngs=rngs)
        self.k = Linear(config.width, kv_size, bias=config.qkv_bias, dtype=dtype, rngs=rngs)
        self.v = Linear(config.width, kv_size, bias=config.qkv_bias, dtype=dtype, rngs=rngs)
        self.o = Linear(q_size, config.width, dtype=dtype, rngs=rngs)

    def __call__(
        self, x: jax.Array, queries: Queries, cache: LayerCache | None
    ) -> tuple[jax.Array, LayerCache | None]:
        """Mixes x [B, Q, D] with what the queries may see; returns the updated cache too."""

        def heads(y: jax.Array, count: int) -> jax.Array:
            return y.reshape(*y.shape[:2], count, self.config.head_dim)

        q = queries.rotation(heads(self.q(x), self.config.num_heads))
        k = queries.rotation(heads(self.k(x), self.config.num_kv_heads))
        v = heads(self.v(x), self.config.num_kv_heads)
        if cache is not None:
            cache = cache.write(k, v, queries.start, queries.write)
            k, v = cache.read()
        mixed = _attend(q, k, v, queries.valid[:, None, None, :])
        return self.o(mixed.reshape(*x.shape[:2], -1)), cache


class FeedForward(nnx.Module):
    """SwiGLU: down(silu(gate(x)) * up(x))."""

    def __init__(self, config: ModelConfig, *, dtype: DTypeLike, rngs: nnx.Rngs):
        self.gate = Linear(config.width, config.ff_width, dtype=dtype, rngs=rngs)
        self.up = Linear(config.width, config.ff_width, dtype=dtype, rngs=rngs)
        self.down = Linear(config.ff_width, config.width, dtype=dtype, rngs=rngs)

    def __call__(self, x: jax.Array) -> jax.Array:
        """Maps [..., D] to [..., D]."""
        return self.down(jax.nn.silu(self.gate(x)) * self.up(x))


class Block(nnx.Module):
    """One pre-norm layer."""

    def __init__(self, config: ModelConfig, *, dtype: DTypeLike, rngs: nnx.Rngs):
        self.attn_norm = RMSNorm(config, dtype=dtype)
        self.attn = Attention(config, dtype=dtype, rngs=rngs)
        self.ff_norm = RMSNorm(config, dtype=dtype)
        self.ff = FeedForward(config, dtype=dtype, rngs=rngs)

    def __call__(
        self, x: jax.Array, queries: Queries, cache: LayerCache | None
    ) -> tuple[jax.Array, LayerCache | None]:
        """Maps x [B, Q, D] to [B, Q, D]; returns the updated cache too."""
        mixed, cache = self.attn(self.attn_norm(x), queries, cache)
        x = x + mixed
        return x + self.ff(self.ff_norm(x)), cache
