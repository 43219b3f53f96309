"""How many problems does a decoder get right?"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING

from depcap_jax.decoding.model import DiffusionLM
from depcap_jax.decoding.recipes import DecodeConfig
from depcap_jax.text.generator import Reply, TextGenerator
from depcap_jax.tiny.task import Problem

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


@dataclasses.dataclass(frozen=True)
class Scores:
    """A decoder's answers to some problems."""

    problems: tuple[Problem, ...]
    replies: tuple[Reply, ...]
    """An answer to each."""
    seconds: float
    """Of decoding, compilation excluded."""

    @property
    def right(self) -> tuple[bool, ...]:
        """Which answers the checker accepts."""
        pairs = zip(self.problems, self.replies, strict=True)
        return tuple(problem.check(reply.text) for problem, reply in pairs)

    @property
    def accuracy(self) -> float:
        """The share of right answers."""
        return sum(self.right) / len(self.right)

    @property
    def passes(self) -> float:
        """Forward passes an answer, on average."""
        return sum(reply.nfe for reply in self.replies) / len(self.replies)

    @property
    def tokens(self) -> int:
        """Visible tokens of all answers: what an end-of-text token ends, without it."""
        return sum(len(reply.tokens) for reply in self.replies)

    def by_kind(self) -> dict[str, float]:
        """The accuracy for each kind of problem."""
        found: dict[str, list[bool]] = {}
        for problem, right in zip(self.problems, self.right, strict=True):
            found.setdefault(problem.kind, []).append(right)
        return {kind: sum(answers) / len(answers) for kind, answers in sorted(found.items())}


def score(
    model: DiffusionLM,
    tokenizer: PreTrainedTokenizerBase | None,
    problems: Sequence[Problem],
    config: DecodeConfig,
    *,
    batch_size: int = 8,
    progress: bool | None = False,
) -> Scores:
    """Decodes every problem; rows do not see each other, so the batch size changes nothing but the time.

    Raises:
      ValueError: if there is no problem.
    """
    if not problems:
        raise ValueError("there is no problem to score")
    generator = TextGenerator(model, tokenizer, config, batch_size=batch_size, progress=progress)
    prompts = [problem.prompt for problem in problems]
    generator.prepare(prompts)
    begin = time.perf_counter()
    replies = generator.run(prompts)
    return Scores(tuple(problems), tuple(replies), time.perf_counter() - begin)
