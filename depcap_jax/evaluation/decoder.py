"""One line of a table: a recipe with its settings, and how it is called."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from depcap_jax.decoding.recipes import DecodeConfig, recipe
from depcap_jax.text.fitting import fit_settings

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


@dataclasses.dataclass(frozen=True)
class Setting:
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
        if self.title:
            return self.title
        hidden = (
            "cache",
            "gen_length",
            "delimiter_ids",
        )  # in a column of their own, or the same in all lines
        changes = [f"{name} {_short(value)}" for name, value in self.settings.items() if name not in hidden]
        return ", ".join([self.recipe, *changes])

    def change(self, title: str = "", **settings: Any) -> Setting:
        """The same with some settings changed."""
        return Setting(self.recipe, {**self.settings, **settings}, title)

    def build(
        self, tokenizer: PreTrainedTokenizerBase | None = None, *, predicts_next: bool = False
    ) -> DecodeConfig:
        """The decoder for a model with this tokenizer, of Dream's family or not.

        Raises:
          ValueError: naming the setting that the recipe does not have, or the value that is out of range.
        """
        settings = fit_settings(self.recipe, self.settings, tokenizer=tokenizer, predicts_next=predicts_next)
        return recipe(self.recipe, **settings)


def describe(config: DecodeConfig) -> dict[str, Any]:
    """Every setting of a decoder, defaults included, as JSON: two decoders are alike if these are."""
    described: dict[str, Any] = {}
    for field in dataclasses.fields(config):  # type: ignore[arg-type]  # a policy is a dataclass
        part = getattr(config, field.name)
        if not dataclasses.is_dataclass(part):
            described[field.name] = _plain(part)
            continue
        values = {
            inner.name: _plain(getattr(part, inner.name), inner.metadata.get("static", False))
            for inner in dataclasses.fields(part)
        }
        described[field.name] = {"policy": type(part).__name__, **values}
    return described


def _plain(value: Any, static: bool = True) -> Any:
    if isinstance(value, (tuple, list)):
        return [_plain(item) for item in value]
    if value is None or isinstance(value, (bool, str)) or (static and isinstance(value, int)):
        return value
    # Decoding computes thresholds in float32: -16, -16.0 and a float32 array of it are one.
    return float(np.float32(value))


def _short(value: Any) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value)
