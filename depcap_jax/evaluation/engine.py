"""`evaluate`: one decoder on one task. Every number of `eval`, `table`, `sweep` and `demo` is from here."""

from __future__ import annotations

import dataclasses
import json
import os
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import cached_property
from pathlib import Path
from typing import Any

import jax

from depcap_jax.decoding.policy import check_integer
from depcap_jax.decoding.recipes import DecodeConfig
from depcap_jax.decoding.state import Status
from depcap_jax.evaluation.decoder import Decoder, describe, name_decoder
from depcap_jax.evaluation.provenance import (
    fingerprint,
    machine,
    model_fingerprint,
    source_fingerprint,
    versions,
)
from depcap_jax.evaluation.records import Records, publish_text
from depcap_jax.evaluation.summary import summarise
from depcap_jax.evaluation.tasks import Task
from depcap_jax.models import Transformer
from depcap_jax.text.batching import Batcher, Decoded
from depcap_jax.text.codec import Codec
from depcap_jax.text.spelling import Tokenizer

Progress = Callable[[int, int, float], None]
"""Told how many problems are done, of how many, and how many of them are right."""


@dataclasses.dataclass(frozen=True)
class Subject:
    """The model under test, and how it is run, whatever the decoder."""

    name: str
    """What reports call it."""
    model: Transformer
    tokenizer: Tokenizer | None
    batch_size: int = 8
    """Problems decoded together at most; it changes the time and nothing else."""
    chat: bool | None = None
    """None uses the chat template if there is one, True insists on it, False never does."""
    seed: int = 0
    """For sampling."""

    def __post_init__(self) -> None:
        check_integer("batch_size", self.batch_size, 1)
        check_integer("seed", self.seed, 0, 2**32 - 1)

    def build(self, decoder: Decoder) -> DecodeConfig:
        """The decoder for this model."""
        return decoder.build(self.tokenizer, predicts_next=self.model.config.predicts_next)

    @cached_property
    def codec(self) -> Codec:
        """Between its texts and ids."""
        return Codec(self.tokenizer, self.model.config.vocab_size, self.chat)

    def encode(self, task: Task) -> list[list[int]]:
        """The ids of the task's prompts."""
        return [self.codec.encode_prompt(p.prompt, f"problem {p.id}") for p in task.problems]

    @cached_property
    def fingerprint(self) -> str:
        """A hash of all weights."""
        return model_fingerprint(self.model)


@dataclasses.dataclass(frozen=True)
class Run:
    """A finished evaluation."""

    decoder: Decoder
    content: Mapping[str, Any]
    """All of it, as the JSON file has it."""
    path: Path | None = None
    """The JSON file, if one was written."""

    @property
    def summary(self) -> Mapping[str, Any]:
        """Accuracy, nfe, tokens per second and so on, under the names of `summarise`."""
        return self.content["summary"]


def evaluate(
    subject: Subject,
    task: Task,
    decoder: Decoder | DecodeConfig,
    folder: str | os.PathLike[str] | None = None,
    *,
    title: str = "",
    progress: Progress | None = None,
) -> Run:
    """Decodes and scores every problem that the folder does not have yet, and writes the run's JSON file.

    A run is told from others by all of its settings, its weights, its problems, the code that decodes and
    scores, and what it runs on; a run that was stopped goes on where it was, and one that is complete is only
    read. Answers, passes and block sizes are those of an unbroken run.

    Args:
      subject: the model.
      task: the problems.
      decoder: a recipe with its settings; or a decoder as such, with policies of your own, say.
      folder: where `NAME.jsonl` (a line per problem, as it goes) and `NAME.json` (all, at the end) are kept;
        None writes nothing.
      title: how reports call the decoder; by default its recipe with what was changed in it, or the names of
        its policies' classes.
      progress: called before the first batch and after each one.

    Raises:
      ValueError: if a setting is wrong, there is no problem, or a prompt does not fit the context; nothing is
        decoded then.
    """
    if not task.problems:
        raise ValueError(f"task {task.name!r} has no problem")
    if isinstance(decoder, DecodeConfig):
        config, decoder = decoder, name_decoder(decoder, title)
    else:
        config, decoder = subject.build(decoder), dataclasses.replace(decoder, title=title or decoder.title)
    prompts = subject.encode(task)
    batcher = Batcher(subject.model, config, batch_size=subject.batch_size)
    batcher.check(prompts, "problem")
    identity = identify(subject, task, prompts, decoder, config)
    path = None if folder is None else Path(folder) / f"{run_name(identity)}.json"
    with Records(path and path.with_suffix(".jsonl"), identity) as records:
        _fill(records, subject, task, batcher, prompts, progress or (lambda *_: None))
        answered = [records.problems[index] for index in range(len(prompts))]
        content = {
            "model": subject.name,
            "run": identity,
            "summary": summarise(answered, records.compile_seconds),
            "problems": answered,
        }
    if path is not None:
        publish_text(path, json.dumps(content, indent=1) + "\n")
    return Run(decoder, content, path)


def identify(
    subject: Subject, task: Task, prompts: list[list[int]], decoder: Decoder, config: DecodeConfig
) -> dict[str, Any]:
    """All that tells a run from others, as JSON; how the decoder is called is not part of it."""
    return {
        "weights": subject.fingerprint,
        "model": subject.model.config.to_dict(),
        "task": task.name,
        "problems": len(prompts),
        "data": fingerprint([task.fingerprint, prompts]),
        "sandbox": task.sandbox,
        "recipe": decoder.recipe,
        "cache": decoder.cache,
        "decoder": describe(config),
        "batch_size": subject.batch_size,
        "seed": subject.seed,
        "versions": versions(),
        "source": source_fingerprint(),
        "machine": machine(),
    }


def run_name(identity: Mapping[str, Any]) -> str:
    """What a run's files are called."""
    return "-".join([*(identity[part] for part in ("task", "recipe", "cache")), fingerprint(identity)[:12]])


def _fill(
    records: Records,
    subject: Subject,
    task: Task,
    batcher: Batcher,
    prompts: list[list[int]],
    progress: Progress,
) -> None:
    """Decodes, scores and records the problems that are missing, a batch at a time."""

    def tell() -> None:
        right = sum(record["right"] for record in records.problems.values())
        progress(len(records.problems), len(prompts), right)

    tell()
    missing = [index for index in range(len(prompts)) if index not in records.problems]
    if not missing:
        return
    records.add_compilation(batcher.compile(prompts, indices=missing))
    key = jax.random.key(subject.seed)
    with ThreadPoolExecutor(os.cpu_count()) as pool:  # scoring may mean running programs
        for batch in batcher.run(prompts, indices=missing, key=key):
            records.add(pool.map(lambda decoded: _record(decoded, subject, task), batch))
            tell()


def _record(decoded: Decoded, subject: Subject, task: Task) -> dict[str, Any]:
    problem = task.problems[decoded.index]
    answer = problem.cut(subject.codec.decode(decoded.tokens))
    return {
        "index": decoded.index,
        "id": problem.id,
        "answer": answer,
        "right": problem.score(answer) if decoded.status is Status.OK else 0.0,
        "tokens": len(decoded.tokens),
        "nfe": decoded.nfe,
        "block_sizes": list(decoded.block_sizes),
        "status": decoded.status.name,
        "seconds": decoded.seconds,
    }
