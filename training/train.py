"""Trains an embedded model, in a checkout of the repository.

    python -m training.train --family llada --minutes 80 --out runs/llada

The masked-diffusion objective of LLaDA (Nie et al., 2025) on the project's own transformer: cross-entropy on
masked answer tokens, weighted 1 / t. Muon moves the matrices and AdamW the rest; an exponential average of
the weights is what is kept. A run that was stopped goes on with `--resume`, and `--minutes` or `--steps` may
then be changed: the learning rate falls to zero at the new end. A Dream need not begin anew:
`--family dream --start runs/llada --minutes 13 --rate 3e-4` goes on from LLaDA's weights (`shift.py`), and
`--start tiny-llada` from those of the embedded model. That
rate is low, since Muon moves every matrix by as much as the rate says, also those that are right already.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
import types
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from tqdm import tqdm

from depcap_jax.checkpoints.huggingface.export import export
from depcap_jax.checkpoints.loading import load
from depcap_jax.models import Transformer
from depcap_jax.models.config import Family
from training import task, vocabulary
from training.batches import BUCKETS, EASY_ROUNDS, LONG, Batches, fixed_masks
from training.learning import (
    PEAK_RATE,
    State,
    Weights,
    head_start,
    make_step,
    optimizer,
    rate_at,
)
from training.masking import Batch
from training.shift import dream_from_llada
from training.sizes import model_config

_AVERAGE = 0.995
_SAVE_SECONDS = 60.0
# A process that was suspended must not find its learning rate gone when it wakes.
_LONGEST_STEP = 60.0
_LOG_STEPS = 50
_EVALUATE_STEPS = 250


class Run:
    """One training run in a folder: `state.npz` to resume from, `log.jsonl` with the loss curve."""

    def __init__(
        self, family: Family, folder: Path, *, seed: int = 0, resume: bool = False, start: Path | None = None
    ):
        self.config, self.folder = model_config(family), folder
        self.weights = Weights(Transformer(self.config, rngs=nnx.Rngs(seed)))
        params = head_start(self.weights.initial)
        self.state: State = {
            "params": params,
            "average": jax.tree.map(jnp.copy, params),
            "moments": optimizer().init(params),
        }
        self.step, self.seconds, self.round, self.offset, self.seed = 0, 0.0, 0, 0, seed
        folder.mkdir(parents=True, exist_ok=True)
        if resume and (folder / "state.npz").exists():
            self._restore()
        elif start is not None:
            self._start_from(start)
        self._advance, self._judge = make_step(self.config)
        self._data = Batches(self.seed)
        self._trials: dict[str, Batch] = {}

    def save(self) -> None:
        """Writes `state.npz` in one move, so that a kill leaves the old one or the new one."""
        leaves = {f"leaf{i}": np.asarray(leaf) for i, leaf in enumerate(jax.tree.leaves(self.state))}
        # Leaves come in the order of their keys, so the averaged weights are the first.
        names = json.dumps(sorted(self.state["average"]))
        facts = {name: getattr(self, name) for name in ("step", "seconds", "round", "offset", "seed")}
        new = self.folder / "state.new.npz"
        facts_text = json.dumps({**facts, "model": self.config.to_dict()})
        np.savez(new, facts=facts_text, names=names, **leaves)  # type: ignore[arg-type]  # names, not options
        os.replace(new, self.folder / "state.npz")

    def _restore(self) -> None:
        with np.load(self.folder / "state.npz") as stored:
            facts = json.loads(str(stored["facts"]))
            if facts.pop("model") != self.config.to_dict():
                raise ValueError(f"{self.folder / 'state.npz'} belongs to a model of other sizes")
            leaves, structure = jax.tree.flatten(self.state)
            loaded = [jnp.asarray(stored[f"leaf{i}"]) for i in range(len(leaves))]
        self.state = jax.tree.unflatten(structure, loaded)
        for name, value in facts.items():
            setattr(self, name, value)

    def _start_from(self, folder: Path) -> None:
        """Takes a model's weights, or a run's averaged ones, of its family or a LLaDA's; no easy problems."""
        if (folder / "state.npz").exists():
            with np.load(folder / "state.npz") as stored:
                family = json.loads(str(stored["facts"]))["model"]["family"]
                names = json.loads(str(stored["names"]))
                params = {name: jnp.asarray(stored[f"leaf{i}"]) for i, name in enumerate(names)}
        else:
            model, _ = load(str(folder), dtype="float32")
            family, params = model.config.family, Weights(model).initial
        if (family, self.config.family) == ("llada", "dream"):
            params = dream_from_llada(params, self.state["params"], self.config)
        given, needed = ({name: p.shape for name, p in ps.items()} for ps in (params, self.state["params"]))
        if given != needed:
            raise ValueError(f"{folder} holds a {family} of other sizes than this {self.config.family}")
        self.state |= {"params": params, "average": jax.tree.map(jnp.copy, params)}
        self.round = EASY_ROUNDS

    def train(
        self,
        *,
        minutes: float | None = None,
        steps: int | None = None,
        peak: float = PEAK_RATE,
        quiet: bool = False,
    ) -> list[float]:
        """Trains up to a total of so many minutes or steps, earlier parts of a resumed run included.

        Returns the losses of the steps that were taken.
        """
        if (minutes is None) == (steps is None):
            raise ValueError("give either minutes or steps")
        losses: list[float] = []
        last = saved = time.monotonic()
        batches = self._data.round(self.round)
        total = steps if steps is not None else round((minutes or 0) * 60)
        bar = tqdm(
            total=total, unit="step" if steps is not None else "s", disable=quiet or not sys.stderr.isatty()
        )
        while True:
            now = time.monotonic()
            self.seconds, last = self.seconds + min(now - last, _LONGEST_STEP), now
            done = self.step if steps is not None else self.seconds
            if done >= total:
                break
            if self.offset == len(batches):
                self.round, self.offset = self.round + 1, 0
                batches = self._data.round(self.round)
            rate = rate_at(self.step, done / total, peak)
            keep = min(_AVERAGE, (1 + self.step) / (10 + self.step))
            self.state, loss = self._advance(
                self.state, batches[self.offset], jnp.float32(rate), jnp.float32(keep)
            )
            self.offset, self.step = self.offset + 1, self.step + 1
            losses.append(float(loss))
            bar.update(int(done) - bar.n)
            bar.set_postfix(loss=f"{np.mean(losses[-_LOG_STEPS:]):.3f}", step=self.step)
            if self.step % _LOG_STEPS == 0:
                self._log(loss=round(float(np.mean(losses[-_LOG_STEPS:])), 4), rate=round(rate, 6))
            if self.step % _EVALUATE_STEPS == 0:
                self._log(trial=self.evaluate())
            if time.monotonic() - saved > _SAVE_SECONDS:
                self.save()
                saved = time.monotonic()
        bar.close()
        self.save()
        return losses

    def evaluate(self) -> dict[str, float]:
        """The averaged weights' loss by kind on a few problems, always the same ones with the same masks.

        They are not held-out ones: those are for judging a model that is done.
        """
        if not self._trials:
            streams = {kind: task.problems("trial", held_out=False, kind=kind) for kind in task.KINDS}
            streams["several"] = task.several("trial", held_out=False)
            for kind, stream in streams.items():
                length, rows = (LONG if kind == "several" else BUCKETS)[-1]
                self._trials[kind] = fixed_masks([next(stream) for _ in range(rows)], length)
        average = self.state["average"]
        return {kind: round(float(self._judge(average, batch)), 4) for kind, batch in self._trials.items()}

    def _log(self, **facts: Any) -> None:
        line = json.dumps({"step": self.step, "minutes": round(self.seconds / 60, 2), **facts})
        with (self.folder / "log.jsonl").open("a", encoding="utf-8") as file:
            file.write(line + "\n")
        if not sys.stderr.isatty():
            print(line, flush=True)

    def model(self) -> Transformer:
        """The model with the averaged weights."""
        return self.weights.model(self.state["average"])

    def export(self) -> Path:
        """Writes the averaged weights in float16, in the published layout, to the run's folder `model`."""
        saver = types.SimpleNamespace(save_pretrained=vocabulary.save)
        return export(self.model(), self.folder / "model", dtype="float16", tokenizer=saver, overwrite=True)


def draw(folder: Path) -> None:
    """Draws the loss curve of a run as `loss.png`, if matplotlib is there."""
    try:
        from matplotlib.figure import Figure
    except ImportError:
        return
    log = folder / "log.jsonl"
    lines = map(json.loads, log.read_text(encoding="utf-8").splitlines() if log.exists() else ())
    curve = [(line["step"], line["loss"]) for line in lines if "loss" in line]
    if not curve:  # a run of a few steps
        return
    figure = Figure(figsize=(6, 3.5), layout="constrained")
    axes = figure.subplots()
    axes.plot(*zip(*curve, strict=True))
    axes.set(xlabel="step", ylabel="loss", yscale="log")
    figure.savefig(folder / "loss.png")


def main(arguments: list[str] | None = None) -> None:
    """Reads the command line and trains."""
    parser = argparse.ArgumentParser(
        prog="python -m training.train",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--family", choices=("llada", "dream"), required=True)
    parser.add_argument("--out", type=Path, help="the run's folder; runs/FAMILY by default")
    budget = parser.add_mutually_exclusive_group()
    budget.add_argument("--minutes", type=float, help="train for so long in all; 80 by default")
    budget.add_argument("--steps", type=int, help="train for so many steps in all")
    parser.add_argument("--resume", action="store_true", help="go on where the run in the folder stopped")
    parser.add_argument(
        "--start",
        type=Path,
        help="begin with the weights of this model, or of the run in this folder; a Dream may begin "
        "with a LLaDA's",
    )
    parser.add_argument("--rate", type=float, default=PEAK_RATE, help="highest learning rate; %(default)s")
    parser.add_argument("--seed", type=int, default=0)
    chosen = parser.parse_args(arguments)
    folder = chosen.out or Path("runs") / chosen.family
    if not chosen.resume and (folder / "state.npz").exists():
        parser.error(f"{folder} holds a run already: give --resume to go on with it, or another --out")
    if chosen.resume and chosen.start:
        parser.error("--resume goes on with a run's own weights: leave out --start")
    for name in ("minutes", "steps", "rate"):
        value = getattr(chosen, name)
        if value is not None and not value > 0:
            parser.error(f"--{name} must be above 0, got {value}")
    try:
        run = Run(chosen.family, folder, seed=chosen.seed, resume=chosen.resume, start=chosen.start)
    except (OSError, ValueError) as error:
        parser.error(str(error))
    minutes = 80.0 if chosen.minutes is None and chosen.steps is None else chosen.minutes
    run.train(minutes=minutes, steps=chosen.steps, peak=chosen.rate)
    print(f"the model is in {run.export()}")
    draw(folder)


if __name__ == "__main__":
    main()
