"""The pieces of the transformer: RMSNorm, RoPE, attention over a key/value cache, SwiGLU.

Weights live in the compute dtype, or in few bits (`quantization.py`); norms, rotations, softmax and logits
are float32. float16 ends at 65504, which the residual stream and the feed-forward's inner numbers exceed in
models of billions of parameters: with it, these two are float32 too.
"""

from __future__ import annotations

import functools
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jax import lax
from jax.typing import DTypeLike

from depcap_jax.models.config import ModelConfig
from depcap_jax.models.key_values import KeyValues
from depcap_jax.models.quantization import Bits, Quantized, dequantize, quantize
from depcap_jax.models.sparse_key_values import SparseKeyValues
from depcap_jax.models.watching import Looked

LayerCache = KeyValues | SparseKeyValues


def random_matrix(
    rngs: nnx.Rngs, shape: tuple[int, int], dtype: DTypeLike, bits: Bits | None, axis: int
) -> tuple[nnx.Param[jax.Array], nnx.Param[jax.Array] | None]:
    """A weight drawn from N(0, 0.02 ** 2) and, if it is kept in few bits, its scales.

    For training and tests; loading never draws one. Products sum over `axis`.
    """
    weights = 0.02 * jax.random.normal(rngs.params(), shape, dtype)
    if bits is None:
        return nnx.Param(weights), None
    quantized = quantize(weights, bits, axis, dtype)
    return nnx.Param(quantized.values), nnx.Param(quantized.scale)


def read_matrix(values: nnx.Param[jax.Array], scale: nnx.Param[jax.Array] | None, axis: int) -> jax.Array:
    """A weight as products take it."""
    return values[...] if scale is None else dequantize(Quantized(values[...], scale[...]), axis)


class RMSNorm(nnx.Module):
    """x / rms(x), computed in float32, cast back, then scaled."""

    def __init__(self, size: int, eps: float, *, dtype: DTypeLike):
        self.eps = eps
        self.scale = nnx.Param(jnp.ones((size,), dtype))

    def __call__(self, x: jax.Array) -> jax.Array:
        """Normalises the last axis."""
        x32 = x.astype(jnp.float32)
        normed = x32 * jax.lax.rsqrt(jnp.mean(jnp.square(x32), axis=-1, keepdims=True) + self.eps)
        scale = self.scale[...]
        return normed.astype(scale.dtype) * jnp.broadcast_to(scale, x.shape)


def stream_dtype(dtype: DTypeLike) -> jnp.dtype:
    """What the residual stream is kept in."""
    return jnp.dtype(jnp.float32 if dtype == jnp.float16 else dtype)


def _product(x: jax.Array, kernel: jax.Array, dtype: DTypeLike) -> jax.Array:
    """x [..., in] @ kernel [in, out] in `dtype`, summed in float32."""

    def narrowed(x: jax.Array, kernel: jax.Array) -> jax.Array:
        return jnp.matmul(x, kernel, preferred_element_type=jnp.float32).astype(dtype)

    def apart(x: jax.Array, kernel: jax.Array) -> jax.Array:
        # Else XLA makes one product of those that share x: on a T4 it copies their kernels side by side in
        # each pass, and for TPUs it keeps transposed copies of them.
        return jnp.matmul(*lax.optimization_barrier((x, kernel)))

    if x.dtype == jnp.float32:
        return x @ kernel
    if dtype != x.dtype:
        return narrowed(x, kernel)
    # CPUs have a product from half precision to float32; for any other XLA converts the kernel, every time.
    return lax.platform_dependent(x, kernel, cpu=narrowed, default=apart)


class Linear(nnx.Module):
    """x @ kernel + bias with the kernel stored (in, out)."""

    def __init__(
        self,
        in_size: int,
        out_size: int,
        *,
        bias: bool = False,
        bits: Bits | None = None,
        dtype: DTypeLike,
        rngs: nnx.Rngs,
    ):
        self.kernel, self.kernel_scale = random_matrix(rngs, (in_size, out_size), dtype, bits, axis=0)
        self.bias = nnx.Param(jnp.zeros((out_size,), dtype)) if bias else None

    def __call__(self, x: jax.Array, dtype: DTypeLike | None = None) -> jax.Array:
        """Maps [..., in] to [..., out], of x's dtype unless told otherwise."""
        # As one matrix: the product in the kernel's gradient then needs no transposed copy of x.
        kernel = read_matrix(self.kernel, self.kernel_scale, axis=0)
        y = _product(x.reshape(-1, x.shape[-1]), kernel, dtype or x.dtype).reshape(*x.shape[:-1], -1)
        return y if self.bias is None else y + jnp.broadcast_to(self.bias[...], y.shape)


class Rotation(NamedTuple):
    """RoPE's cosines and sines at some positions."""

    cos: jax.Array  # [..., H / 2] float32
    sin: jax.Array

    @classmethod
    def of_canvas(cls, length: int, config: ModelConfig) -> Rotation:
        """At the positions of a canvas [length]."""
        exponent = np.arange(0, config.head_dim, 2, dtype=np.float32) / np.float32(config.head_dim)
        frequency = 1 / np.float32(config.rope_theta) ** exponent
        angle = jnp.arange(length, dtype=jnp.float32)[:, None] * frequency[None]
        return cls(jnp.cos(angle), jnp.sin(angle))

    def at(self, positions: jax.Array) -> Rotation:
        """Of a canvas: at its `positions` [B, Q], for all heads [B, Q, 1]."""
        return Rotation(*(x.at[positions].get(mode="promise_in_bounds")[:, :, None] for x in self))

    def __call__(self, x: jax.Array) -> jax.Array:
        """Rotates heads x [B, Q, M or S, H] whose halves form the pairs; self is [B or 1, Q, 1]."""
        first, second = jnp.split(x.astype(jnp.float32), 2, axis=-1)
        turned = [first * self.cos - second * self.sin, second * self.cos + first * self.sin]
        return jnp.concatenate(turned, axis=-1).astype(x.dtype)


class Queries(NamedTuple):
    """Where the queries of a pass are and what they may see: the same for all layers."""

    rotation: Rotation  # [B or 1, Q, 1]
    lengths: jax.Array  # [B] this and the next three: as in `Transformer.hidden`
    start: jax.Array | None  # [B]
    write: jax.Array  # [B, Q]
    rows: jax.Array | None  # [B] of the cache
    fused: bool  # with cuDNN's attention


def _attend(q: jax.Array, k: jax.Array, v: jax.Array, lengths: jax.Array, fused: bool) -> jax.Array:
    """Attention of q [B, Q, M, H] to the first `lengths` [B] of k, v [B, T, S, H]; softmax in float32."""
    if fused:
        return jax.nn.dot_product_attention(q, k, v, key_value_seq_lengths=lengths, implementation="cudnn")
    mask = (jnp.arange(k.shape[1], dtype=jnp.int32)[None] < lengths[:, None])[:, None, None, :]

    def as_given(q: jax.Array, k: jax.Array, v: jax.Array, mask: jax.Array) -> jax.Array:
        with jax.numpy_dtype_promotion("standard"):  # JAX's own function needs it for half precision
            return jax.nn.dot_product_attention(q, k, v, mask=mask)

    def in_float32(q: jax.Array, k: jax.Array, v: jax.Array, mask: jax.Array) -> jax.Array:
        wide = (x.astype(jnp.float32) for x in (q, k, v))
        return jax.nn.dot_product_attention(*wide, mask=mask).astype(q.dtype)

    def row_by_row(*batch: jax.Array) -> jax.Array:
        return lax.map(lambda row: in_float32(*(x[None] for x in row))[0], batch)

    if q.dtype == jnp.float32:
        return as_given(q, k, v, mask)
    # CPUs compute in float32 anyway: a row at a time, or the scores of all rows fill the memory. Beside them
    # only GPUs have a float16 product that sums in float32.
    default = in_float32 if q.dtype == jnp.float16 else as_given
    return lax.platform_dependent(
        q, k, v, mask, cpu=row_by_row, cuda=as_given, rocm=as_given, default=default
    )


class Attention(nnx.Module):
    """Bidirectional attention with grouped key/value heads."""

    def __init__(self, config: ModelConfig, *, dtype: DTypeLike, rngs: nnx.Rngs):
        self.config = config
        q_size, kv_size = config.num_heads * config.head_dim, config.num_kv_heads * config.head_dim
        linear = functools.partial(Linear, bits=config.quantize, dtype=dtype, rngs=rngs)
        self.q = linear(config.width, q_size, bias=config.qkv_bias)
        self.k = linear(config.width, kv_size, bias=config.qkv_bias)
        self.v = linear(config.width, kv_size, bias=config.qkv_bias)
        self.o = linear(q_size, config.width)
        self.q_norm = RMSNorm(config.head_dim, config.norm_eps, dtype=dtype) if config.qk_norm else None
        self.k_norm = RMSNorm(config.head_dim, config.norm_eps, dtype=dtype) if config.qk_norm else None

    def __call__(
        self, x: jax.Array, queries: Queries, cache: LayerCache | None, layer: jax.Array | None
    ) -> tuple[jax.Array, LayerCache | None, Looked]:
        """Mixes x [B, Q, D] with what the queries may see; returns the updated cache, and how it looked."""

        def heads(y: jax.Array, count: int, norm: RMSNorm | None = None) -> jax.Array:
            y = y.reshape(*y.shape[:2], count, self.config.head_dim)
            return y if norm is None else norm(y)

        q = queries.rotation(heads(self.q(x), self.config.num_heads, self.q_norm))
        k = queries.rotation(heads(self.k(x), self.config.num_kv_heads, self.k_norm))
        v = heads(self.v(x), self.config.num_kv_heads)
        lengths = queries.lengths
        if cache is not None:
            cache, k, v, lengths = cache.exchange(q, k, v, queries, layer)
        mixed = _attend(q, k, v, lengths, queries.fused)
        mixed = self.o(mixed.reshape(*x.shape[:2], -1), stream_dtype(x.dtype))
        return mixed, cache, Looked(q, k, lengths)


# Numbers below 2 ** 15 leave room in float16 for what rounds up.
_FLOAT16_BITS = 15.0


class FeedForward(nnx.Module):
    """SwiGLU: down(silu(gate(x)) * up(x))."""

    def __init__(self, config: ModelConfig, *, dtype: DTypeLike, rngs: nnx.Rngs):
        linear = functools.partial(Linear, bits=config.quantize, dtype=dtype, rngs=rngs)
        self.gate = linear(config.width, config.ff_width)
        self.up = linear(config.width, config.ff_width)
        self.down = linear(config.ff_width, config.width)

    def __call__(self, x: jax.Array) -> jax.Array:
        """Maps [..., D] to [..., D], of the residual stream's dtype."""
        wide = stream_dtype(x.dtype)
        inner = jax.nn.silu(self.gate(x, wide)) * self.up(x, wide)
        if wide == x.dtype:
            return self.down(inner)
        # A power of two per position, so that nothing is rounded twice.
        largest = jnp.max(jnp.abs(inner), axis=-1, keepdims=True)
        factor = jnp.exp2(jnp.maximum(jnp.ceil(jnp.log2(largest)) - _FLOAT16_BITS, 0.0))
        return self.down((inner / factor).astype(x.dtype), wide) * factor


class Block(nnx.Module):
    """One pre-norm layer."""

    def __init__(self, config: ModelConfig, *, dtype: DTypeLike, rngs: nnx.Rngs):
        self.attn_norm = RMSNorm(config.width, config.norm_eps, dtype=dtype)
        self.attn = Attention(config, dtype=dtype, rngs=rngs)
        self.ff_norm = RMSNorm(config.width, config.norm_eps, dtype=dtype)
        self.ff = FeedForward(config, dtype=dtype, rngs=rngs)

    def __call__(
        self, x: jax.Array, queries: Queries, cache: LayerCache | None, layer: jax.Array | None = None
    ) -> tuple[jax.Array, LayerCache | None, Looked]:
        """Maps x [B, Q, D] to [B, Q, D]; returns the updated cache too, and how attention looked.

        The cache is of this layer alone; or of all layers, and `layer` [] tells which one this is.
        """
        mixed, cache, looked = self.attn(self.attn_norm(x), queries, cache, layer)
        x = x + mixed
        return x + self.ff(self.ff_norm(x)), cache, looked
