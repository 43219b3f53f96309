"""Teaches an embedded model to answer behind a few solved problems, for measuring caches on long prompts.

    python -m training.few_shot --model tiny-llada --minutes 8 --out runs/llada-few-shot

The embedded models learned single questions of up to 60 tokens. Here they go on, for some minutes and at a
low rate, with prompts of 200 tokens and more: solved problems of the question's own kind, as turns of a chat.
"""

from __future__ import annotations

import argparse
import itertools
import time
import types
from collections.abc import Iterator
from pathlib import Path

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
from training.masking import Batch, Row, mask

CANVAS, PROMPT, ANSWER = 256, 200, 32
_ROWS = 8
_RATE = 1.5e-3
_AVERAGE = 0.98
_CACHED_SHARE = 0.5


def rows(encoder: Tokenizer, seed: int) -> Iterator[Row]:
    """An endless stream of questions behind solved ones; none of them is held out."""
    streams = {kind: task.problems((seed, kind), held_out=False, kind=kind) for kind in task.KINDS}
    for problem in task.problems(seed, held_out=False):
        answer = encoder.encode(problem.answer).ids
        prompt = encoder.encode(f"{vocabulary.USER}{problem.prompt}{vocabulary.ASSISTANT}").ids
        while len(prompt) + 1 < PROMPT:
            shown = next(streams[problem.kind])
            turns = f"{vocabulary.USER}{shown.prompt}{vocabulary.ASSISTANT}{shown.answer}{vocabulary.EOS}"
            prompt = encoder.encode(turns).ids + prompt
        prompt = encoder.encode(vocabulary.BOS).ids + prompt
        if len(prompt) <= CANVAS - ANSWER and len(answer) < ANSWER:
            yield Row(prompt, answer)


def batches(seed: int) -> Iterator[Batch]:
    """Masked batches, every other one as cached decoding meets it."""
    rng, stream = np.random.default_rng(seed), rows(vocabulary.build(), seed)
    while True:
        chunk = list(itertools.islice(stream, _ROWS))
        yield mask(chunk, CANVAS, rng, cached=rng.random() < _CACHED_SHARE, answer_length=ANSWER)


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
