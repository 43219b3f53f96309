"""The embedded models: their weights, problems that training has not seen, and the checker of replies.

How they were trained and how problems are drawn is not part of the package: see `training/`.
"""

from __future__ import annotations

import dataclasses
import json
from functools import cache
from pathlib import Path

from depcap_jax.tiny.checker import check

__all__ = ["Problem", "held_out"]


@dataclasses.dataclass(frozen=True)
class Problem:
    """A prompt, the kind that says how replies are checked, and one right reply."""

    kind: str
    prompt: str
    answer: str

    def check(self, text: str) -> bool:
        """True if and only if `text` is a right reply, whole and without extras."""
        return check(self.kind, self.prompt, text)


def held_out(*, long: bool = False) -> list[Problem]:
    """The 500 held-out problems, none of which training has seen; kinds are mixed, so a part is fair too.

    With `long`, 400 others: each asks for two to seven things at once, and is answered in 60 to 120 tokens.
    """
    return list(_stored("held_out_long.jsonl" if long else "held_out.jsonl"))


@cache
def _stored(name: str) -> tuple[Problem, ...]:
    text = (Path(__file__).parent / name).read_text(encoding="utf-8")
    return tuple(Problem(**json.loads(line)) for line in text.splitlines())
