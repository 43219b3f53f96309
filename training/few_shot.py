"""Teaches an embedded model to answer behind a few solved problems, for measuring caches on long prompts.

    python -m training.few_shot --model tiny-llada --minutes 8 --out runs/llada-few-shot

The embedded models learned single questions of up to 60 tokens. Here they go on, for some minutes and at a
low rate, with prompts of 200 tokens and more: solved problems of the question's own kind, as turns of a chat.
In every other batch the solved ones are masked too: many answers, at all places of the canvas, in one step.
"""

from __future__ import annotations

import argparse
import dataclasses
import itertools
import time
import types
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from tokenizers import Tokenizer
from tqdm import tqdm

import depcap_jax as dc
from depcap_jax.checkpoints.huggingface.export import export
from depcap_jax.tiny import task
from training import vocabulary
from training.learning import State, Weights, make_step, optimizer, rate_at
from training.masking import MAX_WEIGHT, Batch, Row, mask

CANVAS, PROMPT, ANSWER = 256, 200, 32
_ROWS = 8
_RATE = 1e-3
_AVERAGE = 0.98


class Conversation(NamedTuple):
    """A question behind solved ones."""

    row: Row
    shown: list[tuple[int, int]]  # where the answers before it begin and end, with their end-of-text


def conversations(encoder: Tokenizer, seed: int) -> Iterator[Conversation]:
    """An endless stream; none of its questions is held out."""
    streams = {kind: task.problems((seed, kind), held_out=False, kind=kind) for kind in task.KINDS}
    for problem in task.problems(seed, held_out=False):
        question, answer = _encode(encoder, problem)
        prompt, shown = encoder.encode(vocabulary.BOS).ids, []
        while len(prompt) + len(question) < PROMPT:
            asked, reply = _encode(encoder, next(streams[problem.kind]))
            reply += encoder.encode(vocabulary.EOS).ids
            prompt += asked + reply
            shown.append((len(prompt) - len(reply), len(prompt)))
        prompt += question
        if len(prompt) <= CANVAS - ANSWER and len(answer) < ANSWER:
            yield Conversation(Row(prompt, answer), shown)


def _encode(encoder: Tokenizer, problem: task.Problem) -> tuple[list[int], list[int]]:
    question = f"{vocabulary.USER}{problem.prompt}{vocabulary.ASSISTANT}"
    return encoder.encode(question).ids, encoder.encode(problem.answer).ids


def batches(seed: int) -> Iterator[Batch]:
    """Masked batches, by turns with all answers masked and as cached decoding meets the last one."""
    rng, stream = np.random.default_rng(seed), conversations(vocabulary.build(), seed)
    for number in itertools.count():
        chunk = list(itertools.islice(stream, _ROWS))
        batch = mask([each.row for each in chunk], CANVAS, rng, cached=number % 2 == 1, answer_length=ANSWER)
        yield batch if number % 2 else _with_shown_masked(batch, chunk, rng)


def _with_shown_masked(batch: Batch, chunk: list[Conversation], rng: np.random.Generator) -> Batch:
    noisy, weight = batch.noisy.copy(), batch.weight.copy()
    mask_id = vocabulary.tokens().index(vocabulary.MASK)
    total = sum(end - begin for each in chunk for begin, end in each.shown)
    for row, each in enumerate(chunk):
        for begin, end in each.shown:
            share = rng.random()
            hidden = begin + np.flatnonzero(rng.random(end - begin) < share)
            noisy[row, hidden] = mask_id
            weight[row, hidden] = 1 / max(share, 1 / MAX_WEIGHT) / total
    return dataclasses.replace(batch, noisy=noisy, weight=weight)


def teach(name: str, minutes: float, out: Path) -> None:
    """Trains and exports; prints the loss as it goes."""
    model, _ = dc.load(name)
    weights = Weights(model)
    params = weights.initial
    state: State = {
        "params": params,
        "average": jax.tree.map(jnp.copy, params),
        "moments": optimizer().init(params),
    }
    advance, _ = make_step(model.config)
    begin, losses = time.monotonic(), []
    with tqdm(total=round(60 * minutes), unit="s") as bar:
        for step, batch in enumerate(batches(seed=1)):
            progress = (time.monotonic() - begin) / (60 * minutes)
            if progress >= 1:
                break
            rate = jnp.float32(rate_at(step, progress, _RATE))
            state, loss = advance(state, batch, rate, jnp.float32(_AVERAGE))
            losses.append(float(loss))
            bar.update(round(60 * minutes * progress) - bar.n)
            if step % 50 == 49:
                bar.write(f"step {step + 1}: loss {np.mean(losses[-50:]):.3f}")
    saver = types.SimpleNamespace(save_pretrained=vocabulary.save)
    export(weights.model(state["average"]), out, dtype="float16", tokenizer=saver, overwrite=True)
    print(f"{len(losses)} steps, exported to {out}")


def main() -> None:
    """Reads the options."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--model", default="tiny-llada", help="default: %(default)s")
    parser.add_argument("--minutes", type=float, default=8.0, help="default: %(default)s")
    parser.add_argument("--out", type=Path, required=True, metavar="FOLDER", help="where the model goes")
    arguments = parser.parse_args()
    teach(arguments.model, arguments.minutes, arguments.out)


if __name__ == "__main__":
    main()
