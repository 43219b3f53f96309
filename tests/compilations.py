"""Counts what JAX compiles."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

_EVENT = "/jax/core/compile/backend_compile_duration"
# Outside of jit each operation is a little program of JAX's own.
_ONE_OPERATION = {*dir(jnp), *dir(lax), "stage", "threefry_seed", "threefry_fold_in", "threefry_split"}


@dataclasses.dataclass
class Compilations:
    """What was compiled so far."""

    programs: list[str] = dataclasses.field(default_factory=list)
    """The names of the jitted functions, once for every compilation."""
    seconds: float = 0.0
    """Spent on compiling them."""

    def __len__(self) -> int:
        return len(self.programs)


@contextmanager
def compilations() -> Iterator[Compilations]:
    """Watches what is compiled inside the block, whether or not a cache on disk has it.

    with compilations() as compiled:
        generate(...)
    assert len(compiled) == 1, compiled
    """
    compiled = Compilations()

    def listen(event: str, duration_secs: float, **details: Any) -> None:
        name = str(details.get("fun_name")).removeprefix("jit(").removesuffix(")")
        if event == _EVENT and name.lstrip("_") not in _ONE_OPERATION:
            compiled.programs.append(name)
            compiled.seconds += duration_secs

    jax.monitoring.register_event_duration_secs_listener(listen)
    try:
        yield compiled
    finally:
        jax.monitoring.unregister_event_duration_listener(listen)
