"""What is evaluated: a decoder, and how reports call it."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

import numpy as np

from depcap_jax.decoding.recipes import CACHES, DecodeConfig, recipe, recipe_settings
from depcap_jax.evaluation.provenance import module_fingerprint
from depcap_jax.text.spelling import Tokenizer

_NOT_IN_LABEL = ("cache", "gen_length", "delimiter_ids")
"""In a column of their own, or the same in all lines."""

_DREAM_DELIMITER_THRESHOLD = 0.5
"""What AdaBlock's authors use for Dream; for LLaDA they use 0.3, the recipe's default."""


@dataclasses.dataclass(frozen=True)
class Decoder:
    """A decoder by its recipe's name and the settings that differ from the recipe's own."""

    recipe: str
    settings: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    title: str = ""
    """How reports call it; the recipe and what was changed in it by default."""

    @property
    def cache(self) -> str:
        """Its cache's name."""
        return self.settings.get("cache", "none")

    @property
    def label(self) -> str:
        """Such as `confidence, block_length 16`."""
        changes = (
            f"{name} {value:g}" if isinstance(value, float) else f"{name} {value}"
            for name, value in self.settings.items()
            if name not in _NOT_IN_LABEL
        )
        return self.title or ", ".join([self.recipe, *changes])

    def change(self, title: str = "", **settings: Any) -> Decoder:
        """The same with some settings changed."""
        return Decoder(self.recipe, {**self.settings, **settings}, title)

    def build(self, tokenizer: Tokenizer | None = None, *, predicts_next: bool = False) -> DecodeConfig:
        """The decoder for a model with this tokenizer, of Dream's family or not.

        Unless they are given, AdaBlock's delimiter is the tokenizer's line break, and its threshold follows
        the family.

        Raises:
          ValueError: naming the setting that the recipe does not have, or the value that is out of range.
        """
        fitted, known = dict(self.settings), recipe_settings(self.recipe)
        if "delimiter_ids" in known and tokenizer is not None:
            line_break: Any = tokenizer.encode("\n", add_special_tokens=False)
            fitted.setdefault("delimiter_ids", tuple(line_break))
        if "delimiter_threshold" in known and predicts_next:
            fitted.setdefault("delimiter_threshold", _DREAM_DELIMITER_THRESHOLD)
        return recipe(self.recipe, **fitted)


def name_decoder(config: DecodeConfig, title: str = "") -> Decoder:
    """How reports call a decoder that has no recipe: by its title, or by its policies' classes.

    What it returns has a name and a cache for tables; it cannot be built from them.
    """
    policies = f"{type(config.partition).__name__}+{type(config.select).__name__}"
    named = {name: describe(recipe("vanilla", cache=name).cache) for name in CACHES}
    mine = describe(config.cache)
    cache = next((name for name, known in named.items() if known == mine), type(config.cache).__name__)
    return Decoder(policies, {"cache": cache}, title)


def describe(part: Any) -> Any:
    """Every setting of a decoder, or of a part of it, as JSON: two decoders are alike if these are.

    Defaults are included. A policy that is not this package's own comes with a fingerprint of its code.
    """
    if dataclasses.is_dataclass(part):
        settings = {field.name: describe(getattr(part, field.name)) for field in dataclasses.fields(part)}
        module = type(part).__module__
        code = {} if module.startswith("depcap_jax.") else {"code": module_fingerprint(module)}
        return {"policy": type(part).__name__, **settings, **code}
    if isinstance(part, (tuple, list)):
        return [describe(item) for item in part]
    if part is None or isinstance(part, (bool, str)):
        return part
    if callable(part):
        return {"function": part.__qualname__, "code": module_fingerprint(part.__module__)}
    # Decoding computes thresholds in float32: -16, -16.0 and a float32 array of it are one.
    number = np.asarray(part, np.float32).tolist()
    if isinstance(number, list):
        return describe(number)
    return int(number) if number.is_integer() else number
