"""Options that several commands share: which model, and how to decode."""

from __future__ import annotations

import argparse
import dataclasses
from typing import TYPE_CHECKING, Any

from depcap_jax.checkpoints.dtypes import DTYPES
from depcap_jax.decoding.partition import AdaBlocks, DepGABlocks, FixedBlocks
from depcap_jax.decoding.policy import check_count
from depcap_jax.decoding.recipes import CACHES, RECIPES, DecodeConfig, recipe, recipe_settings
from depcap_jax.decoding.select import ConfidenceThreshold, ConflictFree, FactorThreshold
from depcap_jax.text.fitting import answer_length, fit_settings

if TYPE_CHECKING:
    import jax
    from transformers import PreTrainedTokenizerBase

    from depcap_jax.models import Transformer

DEFAULT_MODEL = "tiny-llada"

_MEANING = {
    "block_length": "length of every block",
    "default_block_length": "length where no delimiter is confident",
    "delimiter_ids": "ids of the delimiter; those of a line break by default",
    "delimiter_threshold": "least confidence of a delimiter that ends a block",
    "l_min": "shortest block",
    "l_max": "longest block",
    "top_k_cache": "tokens kept of each distribution",
    "lambda_u": "weight of uncertainty against influence",
    "certainty_floor": "a position whose entropy is below never ends a block",
    "threshold": "least confidence of what is committed",
    "factor": "Fast-dLLM's factor f",
    "tau_low": "least confidence of a candidate",
    "tau_high": "what has this confidence is committed whatever it conflicts with",
    "gamma": "two positions conflict where their score is above",
    "temperature": "0 takes the most likely token",
    "top_p": "draw from the fewest tokens with this much probability",
    "top_k": "draw from this many most likely tokens",
}


def add_model_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds --model and --dtype."""
    group = parser.add_argument_group("model")
    group.add_argument(
        "--model",
        default=DEFAULT_MODEL,
        metavar="M",
        help="tiny-llada, tiny-dream, or a folder: converted, or from Hugging Face; default: %(default)s",
    )
    group.add_argument("--dtype", choices=list(DTYPES), help="of the weights; default: as stored")


def add_decoder_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds --recipe, --cache, --gen-length and an option for every setting of every recipe."""
    group = parser.add_argument_group("decoding")
    group.add_argument("--recipe", choices=RECIPES, default="depcap", help="default: %(default)s")
    group.add_argument("--cache", choices=CACHES, help="default: none")
    group.add_argument(
        "--gen-length",
        type=int,
        metavar="N",
        help="positions of an answer; default: 256 or half the context",
    )
    group.add_argument(
        "--stop-at-eos",
        action=argparse.BooleanOptionalAction,
        help="end an answer at its end-of-text token (the default), or fill all of it",
    )
    group = parser.add_argument_group("settings", "each belongs to some recipes; others refuse it")
    defaults = _defaults()
    for name, meaning in _MEANING.items():
        default = f"; default: {defaults[name]:g}" if name in defaults else ""
        whole = isinstance(defaults.get(name), int) or name in ("delimiter_ids", "top_k")
        group.add_argument(
            f"--{name.replace('_', '-')}",
            type=int if whole else float,
            nargs="+" if name == "delimiter_ids" else None,
            metavar="N" if whole else "X",
            help=f"{meaning}{default} ({', '.join(_recipes_with(name))})",
        )


def load_model(arguments: argparse.Namespace) -> tuple[Transformer, PreTrainedTokenizerBase | None]:
    """The model and tokenizer that the options name."""
    from depcap_jax.checkpoints.loading import load
    from depcap_jax.cli.terminal import working

    with working(f"loading {arguments.model}"):
        return load(arguments.model, dtype=arguments.dtype)


def add_seed_argument(parser: argparse.ArgumentParser) -> None:
    """Adds --seed."""
    parser.add_argument("--seed", type=int, default=0, metavar="N", help="for --temperature above 0")


def sampling_key(arguments: argparse.Namespace) -> jax.Array:
    """The key of --seed."""
    import jax

    check_count("--seed", arguments.seed, 0, 2**32 - 1)
    return jax.random.key(arguments.seed)


def given_settings(arguments: argparse.Namespace) -> dict[str, Any]:
    """The settings that were given, under the names that `recipe` knows."""
    names = ("cache", "gen_length", "stop_at_eos", *_MEANING)
    given = {name: getattr(arguments, name, None) for name in names}
    return {name: tuple(x) if isinstance(x, list) else x for name, x in given.items() if x is not None}


def build_config(
    arguments: argparse.Namespace,
    model: Transformer,
    tokenizer: PreTrainedTokenizerBase | None,
    name: str | None = None,
) -> DecodeConfig:
    """The decoder that the options describe; `name` stands in for --recipe where there is none.

    Raises:
      ValueError: naming the setting that the recipe does not have, or the value that is out of range.
    """
    name = name or str(arguments.recipe)
    settings = given_settings(arguments)
    if not settings.get("temperature") and not settings.keys().isdisjoint(("top_p", "top_k")):
        raise ValueError("--top-p and --top-k need --temperature above 0: without it nothing is drawn")
    settings.setdefault("gen_length", answer_length(model.config.max_length))
    predicts_next = model.config.predicts_next
    return recipe(name, **fit_settings(name, settings, tokenizer=tokenizer, predicts_next=predicts_next))


def _defaults() -> dict[str, Any]:
    parts = (FixedBlocks, AdaBlocks, DepGABlocks, ConfidenceThreshold, FactorThreshold, ConflictFree)
    fields = (field for part in parts for field in dataclasses.fields(part))
    return {field.name: field.default for field in fields if field.default is not dataclasses.MISSING}


def _recipes_with(setting: str) -> tuple[str, ...]:
    having = tuple(name for name in RECIPES if setting in recipe_settings(name))
    return ("all",) if having == RECIPES else having
