"""Options that several commands share: which model, and how to decode."""

from __future__ import annotations

import argparse
from typing import Any

import jax

from depcap_jax.checkpoints.dtypes import DTYPES
from depcap_jax.checkpoints.loading import load
from depcap_jax.cli.terminal import working
from depcap_jax.decoding.policy import Setting, check_integer
from depcap_jax.decoding.recipes import CACHES, RECIPES, SETTINGS, recipe_settings
from depcap_jax.evaluation.decoder import Decoder
from depcap_jax.models import Transformer
from depcap_jax.models.quantization import BITS
from depcap_jax.text.batching import answer_length
from depcap_jax.text.generator import TextGenerator
from depcap_jax.text.spelling import Tokenizer

_EVERYWHERE = ("gen_length", "stop_at_eos")
"""Settings of the decoder itself; the others are those of policies."""


_SOURCES = "a folder (converted, or from Hugging Face), or ORG/NAME[@REVISION] on the hub"
"""What a model is loaded from, beside the embedded ones."""


def add_model_arguments(
    parser: argparse.ArgumentParser, sources: str = _SOURCES, dtype: str = "of the weights"
) -> None:
    """Adds --model from such `sources`, --dtype, --quantize, --mask-id and --predicts-next."""
    group = parser.add_argument_group("model")
    about = f"tiny-llada, tiny-dream, {sources}; default: %(default)s"
    group.add_argument("--model", default="tiny-llada", metavar="M", help=about)
    group.add_argument("--dtype", choices=list(DTYPES), help=f"{dtype}; default: as stored")
    group.add_argument("--quantize", choices=BITS, help="keep the matrices in few bits; default: as stored")
    add_hint_arguments(group)


def add_hint_arguments(group: argparse._ActionsContainer) -> None:
    """Adds --mask-id and --predicts-next, which the files of some checkpoints do not tell."""
    group.add_argument(
        "--mask-id", type=int, metavar="N", help="id of the mask token; default: as the checkpoint tells"
    )
    group.add_argument(
        "--predicts-next",
        action=argparse.BooleanOptionalAction,
        help="whether the output at a position predicts the one after it; default: as the checkpoint tells",
    )


def hints(arguments: argparse.Namespace) -> dict[str, Any]:
    """What these two options say, as `load` takes it."""
    return {"mask_token_id": arguments.mask_id, "predicts_next": arguments.predicts_next}


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


def add_generation_arguments(parser: argparse.ArgumentParser, cache: str | None = None) -> None:
    """Adds --special-tokens, --seed and the options of a model and of a decoder."""
    parser.add_argument(
        "--special-tokens", action="store_true", help="<|endoftext|> and its like in a prompt are no text"
    )
    parser.add_argument("--seed", type=int, default=0, metavar="N", help="for --temperature above 0")
    add_model_arguments(parser)
    add_decoder_arguments(parser, cache)


def load_model(arguments: argparse.Namespace) -> tuple[Transformer, Tokenizer | None]:
    """The model and tokenizer that the options name."""
    with working(f"loading {arguments.model}"):
        return load(arguments.model, dtype=arguments.dtype, quantize=arguments.quantize, **hints(arguments))


def load_generator(arguments: argparse.Namespace, **settings: Any) -> TextGenerator:
    """The model, tokenizer and decoder that the options name."""
    model, tokenizer = load_model(arguments)
    decoder = chosen_decoder(arguments, model)
    config = decoder.build(tokenizer, predicts_next=model.config.predicts_next)
    return TextGenerator(model, tokenizer, config, special_tokens=arguments.special_tokens, **settings)


def sampling_key(arguments: argparse.Namespace) -> jax.Array:
    """The key of --seed."""
    check_integer("--seed", arguments.seed, 0, 2**32 - 1)
    return jax.random.key(arguments.seed)


def given_settings(arguments: argparse.Namespace) -> dict[str, Any]:
    """The settings that were given, under the names that `recipe` knows.

    Raises:
      ValueError: if one of them would have no effect.
    """
    options = {name: getattr(arguments, name, None) for name in ("cache", *SETTINGS)}
    settings = {name: tuple(x) if isinstance(x, list) else x for name, x in options.items() if x is not None}
    if not settings.get("temperature") and not settings.keys().isdisjoint(("top_p", "top_k")):
        raise ValueError("--top-p and --top-k need --temperature above 0: without it nothing is drawn")
    return settings


def chosen_decoder(arguments: argparse.Namespace, model: Transformer) -> Decoder:
    """The decoder that the options describe; how long an answer is depends on the model by default."""
    gen_length = answer_length(model.config.max_length)
    return Decoder(arguments.recipe, {"gen_length": gen_length, **given_settings(arguments)})
