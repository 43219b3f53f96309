"""`evaluate`: one decoder on one task. Every number of `eval`, `table` and `sweep` comes from here."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import os
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tqdm import tqdm

from depcap_jax.decoding.policy import check_integer
from depcap_jax.decoding.recipes import DecodeConfig
from depcap_jax.decoding.state import Status
from depcap_jax.evaluation.batches import BatchDecoder, Decoded
from depcap_jax.evaluation.decoder import Setting, describe
from depcap_jax.evaluation.provenance import machine, model_fingerprint, source_fingerprint, versions
from depcap_jax.evaluation.records import RecordFile, publish_text
from depcap_jax.evaluation.summary import summarise
from depcap_jax.evaluation.tasks import Task
from depcap_jax.text.codec import Codec

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

    from depcap_jax.models import Transformer


@dataclasses.dataclass(frozen=True)
class Subject:
    """The model under test, and how it is run, whatever the decoder."""

    name: str
    """What reports call it."""
    model: Transformer
    tokenizer: PreTrainedTokenizerBase | None
    batch_size: int = 8
    """Problems decoded together at most; it changes the time and nothing else."""
    chat: bool | None = None
    """None uses the chat template if there is one, True insists on it, False never does."""
    seed: int = 0
    """For sampling."""

    def __post_init__(self) -> None:
        check_integer("batch_size", self.batch_size, 1)
        check_integer("seed", self.seed, 0, 2**32 - 1)

    def build(self, setting: Setting) -> DecodeConfig:
        """The decoder of a setting, for this model."""
        return setting.build(self.tokenizer, predicts_next=self.model.config.predicts_next)

    @cached_property
    def codec(self) -> Codec:
        """Between its texts and ids."""
        return Codec(self.tokenizer, self.model.config.vocab_size, self.chat)

    @cached_property
    def fingerprint(self) -> str:
        """A hash of all weights."""
        return model_fingerprint(self.model)


@dataclasses.dataclass(frozen=True)
class Run:
    """A finished evaluation, as its JSON file has it."""

    setting: Setting
    path: Path
    """The JSON file."""
    content: Mapping[str, Any]

    @property
    def summary(self) -> Mapping[str, Any]:
        """Accuracy, nfe, tokens per second and so on, under the names of `summarise`."""
        return self.content["summary"]


def evaluate(
    subject: Subject,
    task: Task,
    setting: Setting,
    folder: str | os.PathLike[str],
    *,
    progress: bool | None = None,
) -> Run:
    """Decodes and scores every problem that the folder does not have yet, and writes the run's JSON file.

    A run is told from others by all of its settings, its weights, its problems and what it runs on; a run
    that was stopped goes on where it was, and one that is complete is only read. Answers, passes and block
    sizes are those of an unbroken run.

    Args:
      subject: the model.
      task: the problems.
      setting: the decoder.
      folder: where `NAME.jsonl` (a line a problem, as it goes) and `NAME.json` (all, at the end) are kept.
      progress: False shows no bar; None shows one if stderr is a terminal; True always does.

    Raises:
      ValueError: if a setting is wrong or a prompt does not fit the context; nothing is decoded then.
    """
    config = subject.build(setting)
    prompts = [subject.codec.encode_prompt(p.prompt, f"problem {p.id}") for p in task.problems]
    decoder = BatchDecoder(subject.model, config, prompts, batch_size=subject.batch_size, seed=subject.seed)
    identity = {
        "weights": subject.fingerprint,
        "model": subject.model.config.to_dict(),
        "task": task.name,
        "problems": len(prompts),
        "data": _hash([task.fingerprint, prompts]),
        "recipe": setting.recipe,
        "decoder": describe(config),
        "batch_size": subject.batch_size,
        "seed": subject.seed,
        "versions": versions(),
        "source": source_fingerprint(),
        "machine": machine(),
    }
    name = "-".join([task.name, setting.recipe, setting.cache, _hash(identity)[:12]])
    path = Path(folder) / f"{name}.json"
    with RecordFile(path.with_suffix(".jsonl"), identity) as records:
        missing = [index for index in range(len(prompts)) if index not in records.problems]
        if missing:
            records.add_compilation(decoder.compile(missing))
        _fill(records, missing, subject, task, decoder, f"{setting.label} ({setting.cache})", progress)
        answered = [records.problems[index] for index in range(len(prompts))]
        content = {
            "model": subject.name,
            "run": identity,
            "summary": summarise(answered, records.compile_seconds),
            "problems": answered,
        }
    publish_text(path, json.dumps(content, indent=1) + "\n")
    return Run(setting, path, content)


def without_timing(content: Any) -> Any:
    """A run's JSON content without what differs from one execution to the next."""
    timing = ("seconds", "tokens_per_second", "compile_seconds")
    if isinstance(content, Mapping):
        return {key: without_timing(value) for key, value in content.items() if key not in timing}
    return [without_timing(value) for value in content] if isinstance(content, list) else content


def _fill(
    records: RecordFile,
    missing: Sequence[int],
    subject: Subject,
    task: Task,
    decoder: BatchDecoder,
    label: str,
    progress: bool | None,
) -> None:
    """Decodes, scores and records the missing problems, a batch at a time."""
    right = sum(record["right"] for record in records.problems.values())
    disable = None if progress is None else not progress
    with (
        ThreadPoolExecutor(os.cpu_count()) as pool,  # scoring may mean running programs
        tqdm(
            total=len(task.problems),
            initial=len(records.problems),
            desc=label,
            unit="problem",
            disable=disable,
            leave=False,
            dynamic_ncols=True,
        ) as bar,
    ):
        for batch in decoder.run(missing):
            scored = list(pool.map(lambda decoded: _record(decoded, subject, task), batch))
            records.add(scored)
            right += sum(record["right"] for record in scored)
            bar.set_postfix_str(f"accuracy {100 * right / len(records.problems):.1f} %")
            bar.update(len(batch))


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


def _hash(value: Any) -> str:
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()
