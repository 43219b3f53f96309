"""The dtypes that weights may have, and casting between them."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Iterable
from typing import TypeVar

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
from jax.typing import DTypeLike

from depcap_jax.checkpoints.errors import CheckpointError
from depcap_jax.models import ModelConfig
from depcap_jax.models.quantization import BITS, Bits

Array = TypeVar("Array", np.ndarray, jax.Array)

DTYPES: dict[str, np.dtype] = {
    "float32": np.dtype(np.float32),
    "bfloat16": np.dtype(ml_dtypes.bfloat16),
    "float16": np.dtype(np.float16),
}
"""The dtypes that weights may have."""


def dtype_name(dtype: DTypeLike) -> str:
    """The name of one of the dtypes that weights may have; raises `CheckpointError` for others."""
    try:
        name = jnp.dtype(dtype).name
    except TypeError:
        name = str(dtype)
    if name not in DTYPES:
        raise CheckpointError(f"dtype must be one of {', '.join(DTYPES)}, got {name!r}")
    return name


def common_dtype(dtypes: Iterable[DTypeLike]) -> str:
    """The name of the smallest of `DTYPES` that holds arrays of all these dtypes exactly.

    Integers, which hold weights in few bits, do not count.
    """
    floats = [dtype_name(dtype) for dtype in dtypes if not jnp.issubdtype(dtype, jnp.integer)]
    return functools.reduce(lambda a, b: a if a == b else "float32", floats)


def with_bits(config: ModelConfig, bits: Bits | None) -> ModelConfig:
    """The config of the same model with its weights in `bits`; None: as they are.

    Raises:
      CheckpointError: for other bits than there are, or than the weights are kept in already.
    """
    if bits is None:
        return config
    if bits not in BITS:
        raise CheckpointError(f"quantize must be one of {', '.join(BITS)}, got {bits!r}")
    if config.quantize not in (None, bits):
        raise CheckpointError(f"the weights are kept in {config.quantize} already; {bits} needs the original")
    return dataclasses.replace(config, quantize=bits)


def cast_values(values: Array, dtype: str, what: str) -> Array:
    """Casts an array, where it lies, unless it holds weights in few bits.

    Raises:
      CheckpointError: naming `what`, if a number exceeds float16.
    """
    if jnp.issubdtype(values.dtype, jnp.integer):
        return values
    with np.errstate(over="ignore"):
        cast = values.astype(DTYPES[dtype], copy=False)
    if dtype == "float16" and values.dtype != cast.dtype:
        xp = np if isinstance(values, np.ndarray) else jnp
        overflown = xp.isinf(cast) & ~xp.isinf(values)
        if overflown.any():
            raise CheckpointError(
                f"{what} holds {float(values[overflown][0]):.6g}; "
                "float16 ends at 65504: choose bfloat16 or float32"
            )
    return cast
