"""Settings that depend on the model: a recipe gets them from here unless a person gives them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from depcap_jax.decoding.recipes import recipe_settings

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

_LONGEST_ANSWER = 256
"""Positions of an answer in the paper."""

_DREAM_DELIMITER_THRESHOLD = 0.5
"""What AdaBlock's authors use for Dream; for LLaDA they use 0.3, the recipe's default."""


def fit_settings(
    name: str,
    settings: Mapping[str, Any],
    *,
    tokenizer: PreTrainedTokenizerBase | None = None,
    predicts_next: bool = False,
) -> dict[str, Any]:
    """The settings of the recipe `name`, completed with those that AdaBlock needs to know of the model.

    Its delimiter is the tokenizer's line break, and its threshold depends on the model's family. What is
    given in `settings` stays as it is.

    Args:
      name: one of `RECIPES`.
      settings: what was given.
      tokenizer: the model's; None leaves the delimiter to be given.
      predicts_next: whether the model is of Dream's family.
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
    """Positions of an answer by default: as many as in the paper, but at most half of the context."""
    return min(_LONGEST_ANSWER, context // 2)
