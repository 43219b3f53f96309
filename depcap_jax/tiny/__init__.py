"""The embedded models: their weights, the task they were trained on, and the checker of its replies.

How they were trained is not part of the package: see `training/` in the repository.
"""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path

from depcap_jax.tiny.task import Problem

__all__ = ["Problem", "held_out"]


def held_out() -> list[Problem]:
    """The 500 held-out problems, none of which training has seen; kinds are mixed, so a part is fair too."""
    return list(_stored())


@cache
def _stored() -> tuple[Problem, ...]:
    text = (Path(__file__).parent / "held_out.jsonl").read_text(encoding="utf-8")
    return tuple(Problem(**json.loads(line)) for line in text.splitlines())
