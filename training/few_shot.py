"""Teaches an embedded model to answer behind a few solved problems, for measuring caches on long prompts.

    python -m training.few_shot --model tiny-llada --minutes 40 --out runs/llada-few-shot

The embedded models learned single questions of up to 60 tokens. Here they go on at a low rate with solved
problems of the question's own kind before it, as turns of a chat: at first one or two, in the end prompts of
200 tokens and more. Which question an answer belongs to is learned sooner where there are few of them.
In every other batch the solved ones are masked too: many answers, at all places of the canvas, in one step.
The model is written every few minutes; `--model FOLDER` goes on from there.
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

ANSWER = 32
_AVERAGE = 0.98
_SAVE_SECONDS = 300


class Stage(NamedTuple):
    """A part of the run, by the length of its prompts; rows times canvas is about the same in all."""

    canvas: int
    prompt: int  # tokens of a prompt at least
    rows: int


STAGES = (Stage(112, 48, 18), Stage(160, 104, 13), Stage(256, 200, 8), Stage(256, 200, 8))
"""Each lasts for the same part of the run."""


class Conversation(NamedTuple):
    """A question behind solved ones."""

    row: Row
    shown: list[tuple[int, int]]  # where the answers before it begin and end, with their end-of-text


def conversations(encoder: Tokenizer, seed: int, stage: Stage) -> Iterator[Conversation]:
    """An endless stream; none of its questions is held out."""
    streams = {kind: task.problems((seed, kind), held_out=False, kind=kind) for kind in task.KINDS}
    for problem in task.problems(seed, held_out=False):
        question, answer = _encode(encoder, problem)
        prompt, shown = encoder.encode(vocabulary.BOS).ids, []
        while len(prompt) + len(question) < stage.prompt:
            asked, reply = _encode(encoder, next(streams[problem.kind]))
            reply += encoder.encode(vocabulary.EOS).ids
            prompt += asked + reply
            shown.append((len(prompt) - len(reply), len(prompt)))
        prompt += question
        if len(prompt) <= stage.canvas - ANSWER and len(answer) < ANSWER:
            yield Conversation(Row(prompt, answer), shown)


def _encode(encoder: Tokenizer, problem: task.Problem) -> tuple[list[int], list[int]]:
    question = f"{vocabulary.USER}{problem.prompt}{vocabulary.ASSISTANT}"
    return encoder.encode(question).ids, encoder.encode(problem.answer).ids


def batches(seed: int, stage: Stage) -> Iterator[Batch]:
    """Masked batches, by turns with all answers masked and as cached decoding meets the last one."""
    rng, stream = np.random.default_rng(seed), conversations(vocabulary.build(), seed, stage)
    for number in itertools.count():
        chunk = list(itertools.islice(stream, stage.rows))
        rows, cached = [each.row for each in chunk], number % 2 == 1
        batch = mask(rows, stage.canvas, rng, cached=cached, answer_length=ANSWER)
        yield batch if cached else _with_shown_masked(batch, chunk, rng)


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


def teach(name: str, minutes: float, rate: float, out: Path) -> None:
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
    streams = [batches(seed, stage) for seed, stage in enumerate(STAGES)]
    saver = types.SimpleNamespace(save_pretrained=vocabulary.save)

    def save() -> None:
        export(weights.model(state["average"]), out, dtype="float16", tokenizer=saver, overwrite=True)

    begin = saved = time.monotonic()
    losses = []
    with tqdm(total=round(60 * minutes), unit="s") as bar:
        while (progress := (time.monotonic() - begin) / (60 * minutes)) < 1:
            batch = next(streams[int(len(STAGES) * progress)])
            now = jnp.float32(rate_at(len(losses), progress, rate))
            state, loss = advance(state, batch, now, jnp.float32(_AVERAGE))
            losses.append(float(loss))
            bar.update(round(60 * minutes * progress) - bar.n)
            if len(losses) % 50 == 0:
                bar.write(f"step {len(losses)}: loss {np.mean(losses[-50::2]):.3f}, cached {np.mean(losses[-49::2]):.3f}")
            if time.monotonic() - saved > _SAVE_SECONDS:
                save()
                saved = time.monotonic()
    save()
    print(f"{len(losses)} steps, exported to {out}")


def main() -> None:
    """Reads the options."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--model", default="tiny-llada", help="default: %(default)s")
    parser.add_argument("--minutes", type=float, default=40.0, help="default: %(default)s")
    parser.add_argument("--rate", type=float, default=1e-3, help="learning rate; default: %(default)s")
    parser.add_argument("--out", type=Path, required=True, metavar="FOLDER", help="where the model goes")
    arguments = parser.parse_args()
    teach(arguments.model, arguments.minutes, arguments.rate, arguments.out)


if __name__ == "__main__":
    main()
