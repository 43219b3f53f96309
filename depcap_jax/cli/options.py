"""Options that several commands share: which model, and how to decode."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING, Any

from depcap_jax.checkpoints.dtypes import DTYPES
from depcap_jax.decoding.policy import Setting, check_integer
from depcap_jax.decoding.recipes import CACHES, RECIPES, SETTINGS, DecodeConfig, recipe, recipe_settings
from depcap_jax.models.quantization import BITS
from depcap_jax.text.fitting import answer_length, fit_settings

if TYPE_CHECKING:
    import jax
    from transformers import PreTrainedTokenizerBase

    from depcap_jax.models import Transformer

DEFAULT_MODEL = "tiny-llada"

_EVERYWHERE = ("gen_length", "stop_at_eos")
"""Settings of the decoder itself; the others are those of policies."""


def add_model_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds --model, --dtype and --quantize."""
    group = parser.add_argument_group("model")
    group.add_argument(
        "--model",
        default=DEFAULT_MODEL,
        metavar="M",
        help="tiny-llada, tiny-dream, a folder (converted, or from Hugging Face), or ORG/NAME[@REVISION] on "
        "the hub; default: %(default)s",
    )
    group.add_argument("--dtype", choices=list(DTYPES), help="of the weights; default: as stored")
    group.add_argument("--quantize", choices=BITS, help="keep the matrices in few bits; default: as stored")


def add_decoder_arguments(parser: argparse.ArgumentParser, cache: str | None = None) -> None:
    """Adds --recipe, --cache with its default, --gen-length and an option for every setting of a recipe."""
    group = parser.add_argument_group("decoding")
    group.add_argument("--recipe", choices=RECIPES, default="depcap", help="default: %(default)s")
    group.add_argument("--cache", choices=CACHES, default=cache, help=f"default: {cache or 'none'}")
    for name in _EVERYWHERE:
        _add_setting(group, SETTINGS[name], "256 or half the context" if name == "gen_length" else None)
    group = parser.add_argument_group("settings", "each belongs to some recipes; others refuse it")
    for setting in SETTINGS.values():
        if setting.name not in _EVERYWHERE:
            _add_setting(group, setting)


def _add_setting(group: argparse._ArgumentGroup, setting: Setting, default: str | None = None) -> None:
    """The option of a setting: all of it, but for a default that depends on the model, is declared there."""
    option = f"--{setting.name.replace('_', '-')}"
    if setting.kind is bool:
        group.add_argument(option, action=argparse.BooleanOptionalAction, help=setting.doc)
        return
    if default is None and isinstance(setting.default, (int, float)):
        default = f"{setting.default:g}"
    if setting.name == "temperature":  # a recipe draws nothing unless it is told to
        default = "0"
    having = [name for name in RECIPES if setting.name in recipe_settings(name)]
    group.add_argument(
        option,
        type=float if setting.kind is float else int,
        nargs="+" if setting.kind is tuple else None,
        metavar="X" if setting.kind is float else "N",
        help=setting.doc
        + (f"; default: {default}" if default else "")
        + (f" ({', '.join(having)})" if len(having) < len(RECIPES) else ""),
    )


def load_model(arguments: argparse.Namespace) -> tuple[Transformer, PreTrainedTokenizerBase | None]:
    """The model and tokenizer that the options name."""
    from depcap_jax.checkpoints.loading import load
    from depcap_jax.cli.terminal import working

    with working(f"loading {arguments.model}"):
        return load(arguments.model, dtype=arguments.dtype, quantize=arguments.quantize)


def add_seed_argument(parser: argparse.ArgumentParser) -> None:
    """Adds --seed."""
    parser.add_argument("--seed", type=int, default=0, metavar="N", help="for --temperature above 0")


def sampling_key(arguments: argparse.Namespace) -> jax.Array:
    """The key of --seed."""
    import jax

    check_integer("--seed", arguments.seed, 0, 2**32 - 1)
    return jax.random.key(arguments.seed)


def given_settings(arguments: argparse.Namespace) -> dict[str, Any]:
    """The settings that were given, under the names that `recipe` knows.

    Raises:
      ValueError: if one of them would have no effect.
    """
    options = {name: getattr(arguments, name, None) for name in ("cache", *SETTINGS)}
    given = {name: tuple(x) if isinstance(x, list) else x for name, x in options.items() if x is not None}
    if not given.get("temperature") and not given.keys().isdisjoint(("top_p", "top_k")):
        raise ValueError("--top-p and --top-k need --temperature above 0: without it nothing is drawn")
    return given


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
    settings.setdefault("gen_length", answer_length(model.config.max_length))
    predicts_next = model.config.predicts_next
    return recipe(name, **fit_settings(name, settings, tokenizer=tokenizer, predicts_next=predicts_next))
