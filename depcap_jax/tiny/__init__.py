"""Two small diffusion language models that were really trained, and the task whose answers can be checked."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path

from depcap_jax.tiny.task import Problem

MODELS = {"tiny-llada": "llada", "tiny-dream": "dream"}
"""The embedded models by name, and the folder of each beside this file."""

__all__ = ["MODELS", "Problem", "held_out", "path"]


def path(name: str) -> Path:
    """The folder of an embedded model, in the published PyTorch layout.

    Raises:
      ValueError: if there is no embedded model of that name.
    """
    if name not in MODELS:
        raise ValueError(f"no embedded model {name!r}; there are {' and '.join(MODELS)}")
    return Path(__file__).parent / MODELS[name]


def held_out() -> list[Problem]:
    """The 500 held-out problems, none of which training has seen; kinds are mixed, so a part is fair too."""
    return list(_stored())


@cache
def _stored() -> tuple[Problem, ...]:
    text = (Path(__file__).parent / "held_out.jsonl").read_text(encoding="utf-8")
    return tuple(Problem(**json.loads(line)) for line in text.splitlines())
