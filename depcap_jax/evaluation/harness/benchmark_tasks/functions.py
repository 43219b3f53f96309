"""What the task files beside this one call."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

from depcap_jax.evaluation.harness.data import load_splits
from depcap_jax.evaluation.scoring.benchmark_scores import SCORERS


def _data(name: str, data: str | None = None, **_: Any) -> dict[str, Any]:
    return load_splits(name, data)


def _score(name: str, document: Mapping[str, Any], results: Sequence[str]) -> dict[str, float]:
    return {"acc": SCORERS[name](document, results[0])}


gsm8k_data, gsm8k_score = partial(_data, "gsm8k"), partial(_score, "gsm8k")
math500_data, math500_score = partial(_data, "math500"), partial(_score, "math500")
mbpp_data, mbpp_score = partial(_data, "mbpp"), partial(_score, "mbpp")
humaneval_data, humaneval_score = partial(_data, "humaneval"), partial(_score, "humaneval")


def math500_shots() -> list[dict[str, str]]:
    """Four worked examples of our own: MATH's training problems do not come with MATH-500."""
    return [
        {
            "problem": r"Find the sum of the solutions of $x^2 - 7x + 10 = 0$.",
            "solution": r"The equation factors as $(x - 2)(x - 5) = 0$, so the solutions are $2$ and $5$. "
            r"Their sum is $2 + 5 = \boxed{7}$.",
        },
        {
            "problem": r"A fair die is rolled twice. What is the probability that the two numbers add up to "
            r"$5$? Express your answer as a common fraction.",
            "solution": r"There are $6 \cdot 6 = 36$ equally likely outcomes. The pairs $(1,4)$, $(2,3)$, "
            r"$(3,2)$ and $(4,1)$ add up to $5$, which makes $4$ of them. The probability is "
            r"$\frac{4}{36} = \boxed{\frac{1}{9}}$.",
        },
        {
            "problem": r"In a right triangle the legs have lengths $5$ and $12$. How long is the altitude to "
            r"the hypotenuse?",
            "solution": r"The hypotenuse is $\sqrt{5^2 + 12^2} = 13$. Twice the area is $5 \cdot 12 = 60$, "
            r"and it is also $13$ times the altitude. The altitude is $\boxed{\frac{60}{13}}$.",
        },
        {
            "problem": r"For which values of $x$ is $\sqrt{3x - 6}$ real? Answer in interval notation.",
            "solution": r"The radicand must not be negative: $3x - 6 \ge 0$, that is $x \ge 2$. "
            r"So $x \in \boxed{[2, \infty)}$.",
        },
    ]
