"""`evaluate`: what it records, how it resumes, and that every command gets its numbers from it.

Nearly all runs here decode with one compiled program: two rows, one width, answers of 16.
"""

from __future__ import annotations

import csv
import dataclasses
import json
import shutil
import time
from pathlib import Path
from typing import Any

import jax.monitoring
import numpy as np
import pytest
from timings import without_timing

from depcap_jax.checkpoints.loading import load
from depcap_jax.cli import build_parser
from depcap_jax.decoding.policy import policy
from depcap_jax.decoding.select import ConflictFree
from depcap_jax.evaluation import engine
from depcap_jax.evaluation.decoder import Decoder
from depcap_jax.evaluation.engine import Run, Subject, evaluate, identify, run_name
from depcap_jax.evaluation.tasks import Problem, Task, load_task
from depcap_jax.text.batching import Batcher
from depcap_jax.text.generator import TextGenerator

DECODER = Decoder("depcap", {"gen_length": 16, "tau_low": 0.3, "tau_high": 0.5})
SAMPLING = Decoder("vanilla", {"gen_length": 16, "temperature": 20.0})
COUNT = 6
TASK = load_task("tiny", limit=COUNT)
PAIR = load_task("tiny", limit=2)


@pytest.fixture(scope="module")
def subject(checkpoint: Path) -> Subject:
    return Subject("random", *load(checkpoint), batch_size=2)


@dataclasses.dataclass
class Watched:
    """A run, what it told on its way, and what was on disk when its first batch was done."""

    run: Run
    told: list[tuple[int, int, float]]
    interrupted: bytes


def watch(subject: Subject, decoder: Decoder, folder: Path) -> Watched:
    told: list[tuple[int, int, float]] = []
    contents: list[bytes] = []

    def progress(*said: Any) -> None:
        told.append(said)
        (file,) = folder.iterdir()  # and no final file yet
        contents.append(file.read_bytes())

    run = evaluate(subject, TASK, decoder, folder, progress=progress)
    return Watched(run, told, contents[1])


@pytest.fixture(scope="module")
def watched(subject: Subject, tmp_path_factory: pytest.TempPathFactory) -> Watched:
    return watch(subject, DECODER, tmp_path_factory.mktemp("run"))


def read(path: Path | None) -> Any:
    assert path is not None
    return json.loads(path.read_text(encoding="utf-8"))


def test_records_are_what_was_decoded(subject, watched):
    answer = TextGenerator(subject.model, subject.tokenizer, DECODER.build(), batch_size=2)
    prompts = [problem.prompt for problem in TASK.problems]
    replies = answer.run(prompts[::-1])[::-1]  # in other batches
    run = watched.run
    for record, reply, problem in zip(run.content["problems"], replies, TASK.problems, strict=True):
        assert record["answer"] == reply.text
        assert record["tokens"] == len(reply.tokens)
        assert record["nfe"] == reply.nfe
        assert record["block_sizes"] == list(reply.block_sizes)
        assert record["right"] == problem.score(reply.text)
    assert len({record["answer"] for record in run.content["problems"]}) > 1  # the problems do differ
    summary = run.summary
    assert summary["nfe"] == sum(reply.nfe for reply in replies) / COUNT
    assert summary["tokens"] == sum(len(reply.tokens) for reply in replies)
    assert summary["seconds"] == sum(record["seconds"] for record in run.content["problems"])
    assert summary["tokens_per_second"] == pytest.approx(summary["tokens"] / summary["seconds"])
    assert read(run.path) == run.content


def test_a_batch_shares_its_seconds_equally(watched):
    lines = [json.loads(line) for line in watched.run.path.with_suffix(".jsonl").read_text().splitlines()]
    seconds = [line["seconds"] for line in lines if "index" in line]  # batch by batch
    assert seconds[::2] == seconds[1::2]
    assert len(set(seconds)) == COUNT / 2


def test_progress_is_told_before_the_first_batch_and_after_each(watched):
    right = np.cumsum([0, *(record["right"] for record in watched.run.content["problems"])])
    assert watched.told == [(done, COUNT, right[done]) for done in range(0, COUNT + 1, 2)]


@pytest.mark.parametrize("decoder", [DECODER, SAMPLING], ids=["greedy", "sampling"])
def test_a_killed_run_goes_on(decoder, subject, watched, tmp_path):
    """From what is on disk at a kill: whole lines, each flushed before anyone is told, and a torn one."""
    unbroken = watched if decoder is DECODER else watch(subject, decoder, tmp_path / "unbroken")
    assert unbroken.run.path is not None
    assert unbroken.interrupted.count(b'"index"') == 2  # the first batch
    left = tmp_path / "killed" / unbroken.run.path.with_suffix(".jsonl").name
    left.parent.mkdir()
    left.write_bytes(unbroken.interrupted + b'{"index": 5, "id": "torn')
    resumed = evaluate(subject, TASK, decoder, left.parent)
    assert resumed.path is not None
    assert resumed.path.name == unbroken.run.path.name
    assert without_timing(read(resumed.path)) == without_timing(read(unbroken.run.path))
    assert len({record["answer"] for record in resumed.content["problems"]}) > 1
    lines = left.read_bytes()
    assert lines.startswith(unbroken.interrupted)  # nothing was decoded or counted again
    indices = [json.loads(line).get("index") for line in lines.splitlines()[1:]]
    assert sorted(index for index in indices if index is not None) == list(range(COUNT))


def test_a_complete_run_is_only_read(subject, watched, tmp_path):
    shutil.copytree(watched.run.path.parent, tmp_path, dirs_exist_ok=True)
    told = []
    again = evaluate(subject, TASK, DECODER, tmp_path, progress=lambda *said: told.append(said))
    assert again.content == watched.run.content  # timing too
    assert told == watched.told[-1:]
    assert len(list(tmp_path.iterdir())) == 2


def test_without_a_folder_nothing_is_written(subject, watched, tmp_path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    run = evaluate(subject, TASK, DECODER)
    assert run.path is None
    assert without_timing(run.content) == without_timing(watched.run.content)
    assert list(tmp_path.iterdir()) == []


@policy
class Careful(ConflictFree):
    """A policy of one's own, as in a notebook."""


def test_a_decoder_needs_no_recipe(subject, watched, tmp_path):
    config = DECODER.build()
    given = evaluate(subject, TASK, config, tmp_path)
    answers = [[record["answer"] for record in run.content["problems"]] for run in (given, watched.run)]
    assert answers[0] == answers[1]
    assert (given.decoder.label, given.decoder.cache) == ("DepGABlocks+ConflictFree", "none")
    assert given.path is not None
    assert given.path.name.startswith("tiny-DepGABlocks+ConflictFree-none-")
    own = dataclasses.replace(config, select=Careful(tau_low=0.3, tau_high=0.5))
    titled = evaluate(subject, PAIR, own, title="mine")
    assert titled.decoder.label == "mine"
    assert titled.content["run"]["recipe"] == "DepGABlocks+Careful"
    assert "code" in titled.content["run"]["decoder"]["select"]
    assert "code" not in titled.content["run"]["decoder"]["partition"]


def name_of(subject: Subject, task: Task = PAIR, decoder: Decoder = DECODER) -> str:
    """What evaluating it would call its files."""
    return run_name(identify(subject, task, subject.encode(task), decoder, subject.build(decoder)))


def test_a_run_is_called_by_what_it_is(subject, watched):
    assert watched.run.path.stem == name_of(subject, TASK)
    assert name_of(subject, decoder=DECODER.change("called otherwise")) == name_of(subject)


def test_other_settings_never_resume(subject):
    changed = Task("tiny", (Problem("0", PAIR.problems[0].prompt, lambda _: 1.0, ("x",)), PAIR.problems[1]))
    names = {
        name_of(subject),
        name_of(subject, decoder=DECODER.change(tau_low=0.35)),
        name_of(subject, decoder=DECODER.change(cache="dual")),
        name_of(subject, load_task("tiny", limit=3)),
        name_of(subject, changed),
        name_of(subject, dataclasses.replace(PAIR, sandbox="landlock")),
    }
    assert len(names) == 6


def test_another_model_never_resumes(subject, checkpoint, monkeypatch: pytest.MonkeyPatch):
    other = load(checkpoint)[0]
    other.config = dataclasses.replace(other.config, rope_theta=1000.0)
    changed = load(checkpoint)[0]
    changed.embed[...] = changed.embed[...].at[0, 0].add(1.0)
    changes = ({}, {"model": other}, {"model": changed}, {"seed": 1}, {"batch_size": 1}, {"chat": False})
    names = [name_of(dataclasses.replace(subject, **change)) for change in changes]
    monkeypatch.setattr(engine, "source_fingerprint", lambda: "another")
    names.append(name_of(subject))
    assert len(set(names)) == 7


def test_compilation_is_apart(subject):
    """After `compile` a run traces and compiles nothing."""
    batcher = Batcher(subject.model, Decoder("vanilla", {"gen_length": 16}).build(), batch_size=2)
    prompts = [[5] * length for length in (3, 40, 20)]
    events: list[str] = []

    def listen(event: str, duration_secs: float, **_: Any) -> None:
        events.append(event)

    jax.monitoring.register_event_duration_secs_listener(listen)
    try:
        begin = time.perf_counter()
        compiling = batcher.compile(prompts)
        assert 0.5 * (time.perf_counter() - begin) < compiling <= time.perf_counter() - begin
        assert events
        events.clear()
        begin = time.perf_counter()
        done = [decoded for batch in batcher.run(prompts) for decoded in batch]
        assert 0 < sum(decoded.seconds for decoded in done) <= time.perf_counter() - begin
        assert events == []
    finally:
        jax.monitoring.unregister_event_duration_listener(listen)
    assert sorted(decoded.index for decoded in done) == [0, 1, 2]
    assert done[0].index == 1  # the widest first: what does not fit into memory fails at once


def test_what_cannot_be_decoded_is_said_before_anything_is(subject, tmp_path):
    length = subject.model.config.max_length
    long = Task("long", (PAIR.problems[0], Problem("1", "cat " * length, float)))
    with pytest.raises(ValueError, match="problem 1 "):
        evaluate(subject, long, DECODER, tmp_path)
    with pytest.raises(ValueError, match="task 'none' has no problem"):
        evaluate(subject, Task("none", ()), DECODER, tmp_path)
    assert list(tmp_path.iterdir()) == []


def command(*words: str) -> None:
    arguments = build_parser().parse_args(words)
    arguments.run(arguments)


def test_commands_give_the_same_numbers(checkpoint, tmp_path, capsys):
    common = ["--model", str(checkpoint), "--limit", "3", "--gen-length", "16", "--batch-size", "2"]
    command("eval", *common, "--recipe", "depcap", "--out", str(tmp_path / "eval"))
    (line,) = [line for line in capsys.readouterr().out.splitlines() if line.startswith("depcap ")]
    command(
        "table", *common, "--no-plots", "--recipes", "depcap", "vanilla", "--out", str(tmp_path / "table")
    )
    assert any(shown.startswith("vanilla  ") for shown in capsys.readouterr().out.splitlines())
    command("sweep", *common, "--no-plots", "--vary", "gamma=-16,-8", "--out", str(tmp_path / "sweep"))
    (evaluated,) = (tmp_path / "eval").glob("*.json")
    for folder in ("table", "sweep"):
        same = tmp_path / folder / evaluated.name
        assert without_timing(read(same)) == without_timing(read(evaluated))
    (table,) = (tmp_path / "table").glob("table-tiny-*.csv")
    rows = list(csv.DictReader(table.open()))
    assert [row["recipe"] for row in rows] == ["vanilla", "depcap"]
    assert float(rows[1]["nfe"]) == read(evaluated)["summary"]["nfe"]
    speeds = [float(row["tokens_per_second"]) for row in rows]
    assert float(rows[1]["speed_up"]) == pytest.approx(speeds[1] / speeds[0])
    (markdown,) = (tmp_path / "sweep").glob("*.md")
    assert f"{read(evaluated)['summary']['nfe']:.1f}" in line
    assert "| depcap, gamma -8 | none |" in markdown.read_text()
