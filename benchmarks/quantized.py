"""What weights in few bits cost an embedded model: `python -m benchmarks.quantized --help`.

Against float32: the logits' error in units of their spread and the share of masked positions whose most
likely token stays the same, on held-out problems with half of the answer masked; then what is right, and the
passes, of DepCap without a cache.
"""

from __future__ import annotations

import argparse
from typing import Any

import jax
import numpy as np

import depcap_jax as dc
from depcap_jax.evaluation.decoder import Decoder
from depcap_jax.evaluation.engine import Subject, evaluate
from depcap_jax.evaluation.tasks import load_task
from depcap_jax.tiny import held_out

WAYS: dict[str, dict[str, Any]] = {
    "float32": {},
    "float16": {"dtype": "float16"},
    "int8": {"quantize": "int8"},
    "int4": {"quantize": "int4"},
}
CANVAS = 160


def masked_problems(model: dc.Transformer, tokenizer: Any, count: int) -> tuple[np.ndarray, np.ndarray]:
    """Canvases [count, CANVAS] and where they are masked."""
    rng = np.random.default_rng(0)
    ids = np.full((count, CANVAS), model.config.pad_token_id, np.int32)
    masked = np.zeros(ids.shape, bool)
    for row, problem in enumerate(held_out()[:count]):
        turns = [{"role": "user", "content": problem.prompt}]
        prompt = tokenizer.apply_chat_template(turns, add_generation_prompt=True, return_dict=False)
        answer = tokenizer(problem.answer)["input_ids"]
        ids[row, : len(prompt) + len(answer)] = [*prompt, *answer]
        masked[row, len(prompt) : len(prompt) + len(answer)] = rng.random(len(answer)) < 0.5
    return np.where(masked, model.config.mask_token_id, ids).astype(np.int32), masked


def main() -> None:
    """Prints a line per way of keeping the weights."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--model", default="tiny-llada", help="default: %(default)s")
    parser.add_argument("--problems", type=int, default=200, metavar="N", help="default: %(default)s")
    arguments = parser.parse_args()
    print(f"{arguments.model}\n{'weights':10}{'MB':>6}{'error':>8}{'same':>8}{'right':>8}{'passes':>8}")
    task, expected = load_task("tiny", limit=arguments.problems), None
    for name, way in WAYS.items():
        model, tokenizer = dc.load(arguments.model, **way)
        ids, masked = masked_problems(model, tokenizer, 50)
        masked = np.roll(masked, -1, axis=1) if model.config.predicts_next else masked
        logits = np.asarray(jax.jit(model.__call__)(ids), np.float64)[masked]
        expected = logits if expected is None else expected
        error = np.sqrt(np.mean((logits - expected) ** 2)) / expected.std()
        same = np.mean(logits.argmax(-1) == expected.argmax(-1))
        subject = Subject(arguments.model, model, tokenizer, batch_size=20)
        run = evaluate(subject, task, Decoder("depcap", {"cache": dc.NoCache(), "gen_length": 128}))
        size = sum(leaf.nbytes for leaf in jax.tree.leaves(model)) / 1e6
        print(
            f"{name:10}{size:6.1f}{100 * error:6.1f} %{100 * same:6.1f} %"
            f"{100 * run.summary['accuracy']:6.1f} %{run.summary['nfe']:8.1f}",
            flush=True,
        )


if __name__ == "__main__":
    main()
