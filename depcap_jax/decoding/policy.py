"""What all policies share: they are frozen dataclasses, pytrees, and check their settings when made."""

from __future__ import annotations

import dataclasses
import math
from typing import Any, TypeVar, dataclass_transform

import jax
import numpy as np

_T = TypeVar("_T")


def static(*, default: Any = dataclasses.MISSING) -> Any:
    """A policy's field that shapes depend on: changing it compiles anew. All other fields are data."""
    return dataclasses.field(default=default, metadata={"static": True})


@dataclass_transform(frozen_default=True, field_specifiers=(dataclasses.field, static))
def policy(cls: type[_T]) -> type[_T]:
    """Makes a class a frozen dataclass and a pytree whose leaves are its data fields.

    Unlike `jax.tree_util.register_dataclass` it does not run `__post_init__` when JAX rebuilds an
    instance around tracers or placeholders: only what a person writes is checked.
    """
    cls = dataclasses.dataclass(frozen=True)(cls)
    fields = dataclasses.fields(cls)  # type: ignore[arg-type]  # made a dataclass in the line above
    meta = [field.name for field in fields if field.metadata.get("static", False)]
    data = [field.name for field in fields if field.name not in meta]

    def flatten_with_keys(instance: Any) -> Any:
        leaves = [(jax.tree_util.GetAttrKey(name), getattr(instance, name)) for name in data]
        return leaves, tuple(getattr(instance, name) for name in meta)

    def unflatten(aux: tuple[Any, ...], leaves: Any) -> Any:
        instance = object.__new__(cls)
        for name, value in zip(meta + data, [*aux, *leaves], strict=True):
            object.__setattr__(instance, name, value)
        return instance

    jax.tree_util.register_pytree_with_keys(cls, flatten_with_keys, unflatten)
    return cls


def check_range(name: str, value: Any, low: float | None, high: float | None) -> None:
    """Raises ValueError unless low <= value <= high; a bound of None is open.

    Arrays pass: a traced threshold has no value yet.
    """
    allowed = _interval(low, high)
    if isinstance(value, (bool, str)) or value is None:
        raise ValueError(f"{name} must be a number {allowed}, got {value!r}")
    if not isinstance(value, (int, float, np.number)):
        return
    below = low is not None and value < low
    above = high is not None and value > high
    if math.isnan(value) or below or above:
        raise ValueError(f"{name} must be a number {allowed}, got {value!r}")


def check_count(name: str, value: Any, low: int, high: int | None = None) -> None:
    """Raises ValueError unless value is a whole number in [low, high]; lengths are always static."""
    whole = isinstance(value, (int, np.integer)) and not isinstance(value, bool)
    if not whole or value < low or (high is not None and value > high):
        raise ValueError(f"{name} must be a whole number {_interval(low, high)}, got {value!r}")


def _interval(low: float | None, high: float | None) -> str:
    # Whole numbers in full: 4294967295 is not 4.29497e+09.
    shown = [f"{bound:g}" if isinstance(bound, float) else str(bound) for bound in (low, high)]
    if low is None:
        return "(finite or infinite)" if high is None else f"of at most {shown[1]}"
    return f"of at least {shown[0]}" if high is None else f"in [{shown[0]}, {shown[1]}]"
