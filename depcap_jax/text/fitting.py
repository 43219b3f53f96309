"""What a recipe takes from the model that it is to decode, unless it is told otherwise."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from depcap_jax.decoding.recipes import recipe_settings

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

LONGEST_ANSWER = 256
"""The paper's answers; a model with a shorter context gives half of it."""

_DREAM_DELIMITER_THRESHOLD = 0.5
"""AdaBlock's authors use it for Dream, and the recipe's 0.3 for LLaDA."""


def fit_settings(
    name: str,
    settings: Mapping[str, Any],
    *,
    tokenizer: PreTrainedTokenizerBase | None = None,
    predicts_next: bool = False,
) -> dict[str, Any]:
    """The settings of the recipe `name`, with what AdaBlock takes from the model where it is not given.

    Its delimiter is the tokenizer's line break, its threshold that of the family.
    """
    fitted = dict(settings)
    known = recipe_settings(name)
    if "delimiter_ids" in known and tokenizer is not None:
        line_break: Any = tokenizer.encode("\n", add_special_tokens=False)
        fitted.setdefault("delimiter_ids", tuple(line_break))
    if "delimiter_threshold" in known and predicts_next:
        fitted.setdefault("delimiter_threshold", _DREAM_DELIMITER_THRESHOLD)
    return fitted


def answer_length(context: int) -> int:
    """Positions of an answer for a model with so long a context."""
    return min(LONGEST_ANSWER, context // 2)
