"""How many held-out problems does a decoder get right? `python -m depcap_jax.tiny.score --recipe vanilla`."""

from __future__ import annotations

import argparse
import dataclasses
import json
from collections.abc import Sequence
from typing import Any

import numpy as np
from tqdm import tqdm

from depcap_jax.checkpoint import load
from depcap_jax.config import RECIPES, DecodeConfig, recipe
from depcap_jax.generate import generate
from depcap_jax.models import Transformer
from depcap_jax.tiny import Problem, held_out, tokenizer
from depcap_jax.tiny.batches import ANSWER_LENGTH, encode
from depcap_jax.types import raise_for_status

_PROMPT_BUCKET = 40


@dataclasses.dataclass(frozen=True)
class Reply:
    """What a decoder answered to a problem."""

    problem: Problem
    text: str
    passes: int
    """Forward passes that this answer took."""

    @property
    def right(self) -> bool:
        """Whether the checker accepts it."""
        return self.problem.check(self.text)


def replies(
    model: Transformer, problems: Sequence[Problem], config: DecodeConfig, *, batch: int = 50
) -> list[Reply]:
    """Decodes every problem; rows do not see each other, so the batch size changes nothing but the time."""
    encoder = tokenizer.build()
    rows = encode(encoder, problems)
    # Answers of about one length end together.
    order = sorted(range(len(rows)), key=lambda i: len(rows[i].answer))
    found: dict[int, Reply] = {}
    for begin in tqdm(range(0, len(order), batch), leave=False, disable=None):
        chosen = order[begin : begin + batch]
        filled = chosen + chosen[-1:] * (min(batch, len(order)) - len(chosen))  # one shape, one compilation
        prompts = np.zeros((len(filled), _PROMPT_BUCKET), np.int32)
        for line, i in zip(prompts, filled, strict=True):
            line[: len(rows[i].prompt)] = rows[i].prompt
        result = generate(model, prompts, np.array([len(rows[i].prompt) for i in filled]), config=config)
        raise_for_status(result)
        answers, lengths, passes = map(np.asarray, (result.tokens, result.lengths, result.nfe))
        for row, i in enumerate(chosen):
            text = encoder.decode(answers[row, : lengths[row]].tolist())
            found[i] = Reply(problems[i], text, int(passes[row]))
    return [found[i] for i in range(len(problems))]


def summary(answered: Sequence[Reply]) -> dict[str, Any]:
    """The share of right replies, in all and by kind, and the mean number of forward passes."""
    kinds = dict.fromkeys(reply.problem.kind for reply in answered)
    by_kind = {kind: [reply.right for reply in answered if reply.problem.kind == kind] for kind in kinds}
    return {
        "problems": len(answered),
        "right": round(float(np.mean([reply.right for reply in answered])), 4),
        "passes": round(float(np.mean([reply.passes for reply in answered])), 2),
        "by kind": {kind: round(float(np.mean(right)), 3) for kind, right in sorted(by_kind.items())},
    }


def main(arguments: list[str] | None = None) -> None:
    """Reads the command line and prints the summary as one line of JSON."""
    parser = argparse.ArgumentParser(prog="python -m depcap_jax.tiny.score", description=__doc__)
    parser.add_argument("--model", required=True, help="a checkpoint's folder")
    parser.add_argument("--recipe", choices=RECIPES, default="depcap")
    parser.add_argument("--set", nargs="*", default=[], metavar="NAME=VALUE", help="the recipe's settings")
    parser.add_argument("--count", type=int, default=500, help="the first so many held-out problems")
    parser.add_argument("--dtype", default="float32")
    parser.add_argument("--wrong", type=int, default=0, help="show so many wrong replies")
    chosen = parser.parse_args(arguments)
    settings: dict[str, Any] = {"gen_length": ANSWER_LENGTH}
    for setting in chosen.set:
        name, _, value = setting.partition("=")
        settings[name] = value if name == "cache" else json.loads(value)
    if chosen.recipe == "adablock":
        settings.setdefault("delimiter_ids", (tokenizer.build().token_to_id("\n"),))
    try:
        config = recipe(chosen.recipe, **settings)
    except ValueError as error:
        parser.error(str(error))
    model, _ = load(chosen.model, dtype=chosen.dtype)
    answered = replies(model, held_out()[: chosen.count], config)
    for reply in [reply for reply in answered if not reply.right][: chosen.wrong]:
        print(f"{reply.problem.prompt}\n{reply.text}\n")
    print(json.dumps({"model": chosen.model, "recipe": chosen.recipe, **settings, **summary(answered)}))


if __name__ == "__main__":
    main()
