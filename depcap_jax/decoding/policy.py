"""What a policy is: a frozen, keyword-only dataclass that is a pytree and declares each setting once.

    @policy
    class ConfidenceThreshold:
        threshold: float = setting(default=0.9, low=0, high=1, doc="least confidence of what is committed")

From that one line come the setting's check, whether it is data or static, its option on the command line
with its help, and its name in a recipe and in a sweep.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from typing import Any, NamedTuple, TypeVar, dataclass_transform

import jax
import jax.numpy as jnp
import numpy as np

Number = float | jax.Array
"""A threshold: a Python number, or an array, which may be traced."""

_Class = TypeVar("_Class", bound=type)

_LARGEST = 2**31 - 1  # of an int32, which lengths, counts and ids become


class Setting(NamedTuple):
    """The declaration of one setting."""

    name: str
    kind: Any
    """float, int, bool or tuple (of integers)."""
    default: Any
    """`dataclasses.MISSING` if it must be given."""
    low: float | None
    high: float | None
    doc: str
    static: bool

    def check(self, value: Any) -> None:
        """Raises ValueError, with the name, the value and what is allowed, unless the value is allowed."""
        if value is None and self.default is None:
            return
        if self.kind is bool:
            if not isinstance(value, bool):
                raise ValueError(f"{self.name} must be True or False, got {value!r}")
        elif self.kind is tuple:
            if not isinstance(value, (tuple, list)):
                raise ValueError(f"{self.name} must be a tuple of integers, got {value!r}")
            if not value:
                raise ValueError(f"{self.name} must hold at least one integer, got ()")
            for item in value:
                check_integer(self.name, item, self.low, self.high)
        elif self.kind is int and (self.static or not isinstance(value, jax.Array)):
            check_integer(self.name, value, self.low, self.high)
        else:
            check_number(self.name, value, self.low, self.high)

    def convert(self, value: Any) -> Any:
        """A Python number or sequence as the declared kind: 1 and 1.0 are one threshold; arrays stay."""
        if value is None:
            return None
        if self.kind is tuple:
            return tuple(value)
        return self.kind(value) if isinstance(value, (bool, int, float, np.number)) else value


def setting(
    *,
    default: Any = dataclasses.MISSING,
    kind: type | None = None,
    low: float | None = None,
    high: float | None = None,
    doc: str = "",
    static: bool | None = None,
) -> Any:
    """Declares a setting of a policy.

    Args:
      default: None makes the setting optional; without a default it must be given.
      kind: float, int, bool or tuple (of integers); that of the default if it has one.
      low: the least allowed value.
      high: the greatest allowed value.
      doc: what it means, in a few words: the help of its option.
      static: shapes may depend on it, and a change of it compiles anew. By default numbers of kind float
        are data, so that a sweep of them runs one compiled program, and everything else is static.
    """
    kind = type(default) if kind is None else kind
    static = kind is not float if static is None else static
    declared = {"kind": kind, "low": low, "high": high, "doc": doc, "static": static}
    return dataclasses.field(default=default, metadata={"static": static, "setting": declared})


@dataclass_transform(frozen_default=True, kw_only_default=True, field_specifiers=(setting, dataclasses.field))
def policy(cls: _Class) -> _Class:
    """Makes a class a frozen, keyword-only dataclass and a pytree whose leaves are its data settings.

    Settings are checked when a person makes an instance, and then the class's own `__post_init__` runs;
    neither happens when JAX rebuilds one around tracers or placeholders.
    """
    own_check = getattr(cls, "__post_init__", None)

    def __post_init__(self: Any) -> None:  # noqa: N807 (it becomes the method of that name)
        for declared in settings_of(cls):
            value = getattr(self, declared.name)
            declared.check(value)
            object.__setattr__(self, declared.name, declared.convert(value))
        if own_check is not None:
            own_check(self)

    cls.__post_init__ = __post_init__
    made = dataclasses.dataclass(frozen=True, kw_only=True)(cls)
    fields = dataclasses.fields(made)
    static = tuple(field.name for field in fields if field.metadata.get("static", False))
    data = tuple(field.name for field in fields if field.name not in static)

    def flatten_with_keys(instance: Any) -> Any:
        leaves = [(jax.tree_util.GetAttrKey(name), getattr(instance, name)) for name in data]
        return leaves, tuple(getattr(instance, name) for name in static)

    def unflatten(aux: tuple[Any, ...], leaves: Any) -> Any:
        instance = object.__new__(made)
        vars(instance).update(zip(static + data, [*aux, *leaves], strict=True))
        return instance

    jax.tree_util.register_pytree_with_keys(made, flatten_with_keys, unflatten)
    return made


@functools.cache
def settings_of(cls: type) -> tuple[Setting, ...]:
    """The settings that a policy's class declares, in order."""
    return tuple(
        Setting(field.name, default=field.default, **field.metadata["setting"])
        for field in dataclasses.fields(cls)
        if "setting" in field.metadata
    )


def in_three(policy: Any, answer: Any) -> tuple[Any, Any, Any]:
    """A policy's answer, if there are three parts of it."""
    if not isinstance(answer, tuple) or len(answer) != 3 or answer[0] is None:
        raise ValueError(
            f"{type(policy).__name__} must return its decision, its memory and what it tells, "
            f"got {answer!r:.80}"
        )
    return answer


def checked(policy: Any, decision: Any, kind: Any, shape: tuple[int, ...]) -> jax.Array:
    """What a policy decided, if it is of this kind and shape."""
    decision = jnp.asarray(decision)
    if decision.shape != shape or not jnp.issubdtype(decision.dtype, kind):
        raise ValueError(
            f"{type(policy).__name__} must return {'flags' if kind is jnp.bool_ else 'integers'} of shape "
            f"{list(shape)}, got {decision.dtype} {list(decision.shape)}"
        )
    return decision


def check_number(name: str, value: Any, low: float | None, high: float | None) -> None:
    """Raises ValueError unless low <= value <= high; a bound of None is open.

    JAX's arrays pass: a traced threshold has no value yet.
    """
    if isinstance(value, jax.Array):
        return
    if isinstance(value, np.ndarray) and value.ndim:
        raise ValueError(f"{name} must be one number{_interval(low, high)}, got {value!r:.80}")
    number = value[()] if isinstance(value, np.ndarray) else value
    if not _is_number(number) or _outside(number, low, high):
        raise ValueError(f"{name} must be a number{_interval(low, high)}, got {value!r:.80}")


def check_integer(name: str, value: Any, low: float | None, high: float | None = None) -> None:
    """Raises ValueError unless value is an integer in [low, high]; a high of None is what 32 bits hold."""
    good = isinstance(value, (int, np.integer)) and not isinstance(value, bool)
    if good and high is None and value > _LARGEST:
        high = _LARGEST
    if not good or _outside(value, low, high):
        raise ValueError(f"{name} must be an integer{_interval(low, high)}, got {value!r:.80}")


def _is_number(value: Any) -> bool:
    if not isinstance(value, (int, float, np.number)) or isinstance(value, bool):
        return False
    try:
        return not math.isnan(value)
    except OverflowError:  # an integer larger than any float
        return False


def _outside(value: Any, low: float | None, high: float | None) -> bool:
    return (low is not None and value < low) or (high is not None and value > high)


def _interval(low: float | None, high: float | None) -> str:
    # Integers in full: 4294967295 is not 4.29497e+09.
    shown = [f"{bound:g}" if isinstance(bound, float) else str(bound) for bound in (low, high)]
    if low is None:
        return "" if high is None else f" of at most {shown[1]}"
    return f" of at least {shown[0]}" if high is None else f" in [{shown[0]}, {shown[1]}]"
