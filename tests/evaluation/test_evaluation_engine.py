from __future__ import annotations

import argparse
import csv
import dataclasses
import importlib
import json
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from depcap_jax.checkpoints.loading import load
from depcap_jax.evaluation import engine
from depcap_jax.evaluation.batches import BatchDecoder
from depcap_jax.evaluation.decoder import Setting, describe
from depcap_jax.evaluation.engine import Subject, evaluate, without_timing
from depcap_jax.evaluation.records import RecordFile, publish_text
from depcap_jax.evaluation.tasks import Problem, Task, load_task
from depcap_jax.text.generator import TextGenerator
from training import vocabulary as tiny_tokenizer

jitted_generate: Any = importlib.import_module("depcap_jax.decoding.generate")._generate

GOLDEN = Path(__file__).parents[1] / "golden"
SETTING = Setting("depcap", {"gen_length": 16, "tau_low": 0.3, "tau_high": 0.5, "l_max": 16})
COUNT = 6


@pytest.fixture(scope="module")
def subject(checkpoint: Path) -> Subject:
    return Subject("random", *load(checkpoint), batch_size=2)


def read(path: Path):
    return json.loads(path.read_text(encoding="utf-8"))


def test_records_are_what_was_decoded(subject, tmp_path):
    task = load_task("tiny", limit=COUNT)
    run = evaluate(subject, task, SETTING, tmp_path)
    answer = TextGenerator(subject.model, subject.tokenizer, SETTING.build(), batch_size=3)
    replies = answer.run([problem.prompt for problem in task.problems])
    for record, reply, problem in zip(run.content["problems"], replies, task.problems, strict=True):
        assert record["answer"] == reply.text
        assert record["tokens"] == len(reply.tokens)
        assert record["nfe"] == reply.nfe
        assert record["block_sizes"] == list(reply.block_sizes)
        assert record["right"] == problem.score(reply.text)
    assert len({record["answer"] for record in run.content["problems"]}) > 1  # the problems do differ
    summary = run.summary
    assert summary["nfe"] == sum(reply.nfe for reply in replies) / COUNT
    assert summary["tokens"] == sum(len(reply.tokens) for reply in replies)
    assert summary["tokens_per_second"] == pytest.approx(summary["tokens"] / summary["seconds"])
    assert read(run.path) == run.content


KILLED = """
import os, signal, sys
from pathlib import Path
from depcap_jax.checkpoints.loading import load
from depcap_jax.evaluation import engine, records
from test_evaluation_engine import COUNT, SETTING, Subject, load_task

add = records.RecordFile.add
def add_and_die(self, lines):
    add(self, lines)
    self._file.write(b'{"index": 5, "id": "torn')
    self._file.flush()
    os.kill(os.getpid(), signal.SIGKILL)
records.RecordFile.add = add_and_die
subject = Subject("random", *load(sys.argv[1]), batch_size=2)
engine.evaluate(subject, load_task("tiny", limit=COUNT), SETTING, sys.argv[2])
"""


def test_a_killed_run_goes_on(subject, checkpoint, tmp_path):
    here = Path(__file__).parents[1]
    killed = subprocess.run(
        [sys.executable, "-c", KILLED, str(checkpoint), str(tmp_path / "killed")],
        env={"PYTHONPATH": f"{here}:{here.parent}", "PATH": "", "JAX_PLATFORMS": "cpu"},
        check=False,
    )
    assert killed.returncode == -signal.SIGKILL
    (record,) = (tmp_path / "killed").iterdir()  # and no final file
    before = record.read_bytes().splitlines()
    assert before[-1].endswith(b"torn")
    task = load_task("tiny", limit=COUNT)
    unbroken = evaluate(subject, task, SETTING, tmp_path / "unbroken")
    resumed = evaluate(subject, task, SETTING, tmp_path / "killed")
    assert resumed.path.name == unbroken.path.name
    assert without_timing(read(resumed.path)) == without_timing(read(unbroken.path))
    after = record.read_bytes().splitlines()
    assert after[: len(before) - 1] == before[:-1]  # nothing was decoded or counted again
    indices = [json.loads(line).get("index") for line in after[1:]]
    assert sorted(index for index in indices if index is not None) == list(range(COUNT))


def test_a_complete_run_is_only_read(subject, tmp_path):
    task = load_task("tiny", limit=2)
    first = evaluate(subject, task, SETTING, tmp_path)
    again = evaluate(subject, task, SETTING, tmp_path)
    assert again.content == first.content  # timing too
    assert len(list(tmp_path.iterdir())) == 2


def test_other_settings_never_resume(subject, tmp_path):
    task = load_task("tiny", limit=2)
    changed = Task("tiny", (Problem("0", task.problems[0].prompt, lambda _: 1.0, ("x",)), task.problems[1]))
    paths = {
        evaluate(subject, task, SETTING, tmp_path).path,
        evaluate(subject, task, SETTING.change(tau_low=0.35), tmp_path).path,
        evaluate(subject, task, SETTING.change(cache="dual"), tmp_path).path,
        evaluate(subject, load_task("tiny", limit=3), SETTING, tmp_path).path,
        evaluate(subject, changed, SETTING, tmp_path).path,
    }
    assert len(paths) == 5


def test_another_model_never_resumes(subject, tmp_path, monkeypatch: pytest.MonkeyPatch):
    task = load_task("tiny", limit=2)
    other = load(GOLDEN / "llada")[0]
    other.config = dataclasses.replace(other.config, rope_theta=1000.0)
    weights = {"weights": other.embed[...].at[0, 0].add(1.0)}
    changed = load(GOLDEN / "llada")[0]
    changed.embed[...] = weights["weights"]
    paths = [
        evaluate(dataclasses.replace(subject, **change), task, SETTING, tmp_path).path
        for change in ({}, {"model": other}, {"model": changed}, {"seed": 1}, {"batch_size": 1})
    ]
    monkeypatch.setattr(engine, "source_fingerprint", lambda: "another")
    paths.append(evaluate(subject, task, SETTING, tmp_path).path)
    assert len(set(paths)) == 6


def test_a_title_is_no_setting(subject, tmp_path):
    task = load_task("tiny", limit=2)
    titled = SETTING.change("called otherwise")
    assert evaluate(subject, task, titled, tmp_path).path == evaluate(subject, task, SETTING, tmp_path).path


def test_record_file(tmp_path):
    path = tmp_path / "run.jsonl"
    with RecordFile(path, {"a": 1}) as records:
        records.add([{"index": 0}, {"index": 2}])
        records.add_compilation(1.5)
        with pytest.raises(ValueError, match="problem 2 is recorded already"):
            records.add([{"index": 2}])
        with pytest.raises(ValueError, match="another process"):
            RecordFile(path, {"a": 1})
    with RecordFile(path, {"a": 1}) as records:
        assert sorted(records.problems) == [0, 2]
        assert records.compile_seconds == 1.5
    with pytest.raises(ValueError, match="other settings"):
        RecordFile(path, {"a": 2})
    path.write_bytes(path.read_bytes() + b"damaged\n")
    with pytest.raises(ValueError, match="line 5, is damaged"):
        RecordFile(path, {"a": 1})


def test_publish_text_leaves_the_old_file_on_an_error(tmp_path):
    path = tmp_path / "a.json"
    publish_text(path, "old")
    with pytest.raises(UnicodeEncodeError):
        publish_text(path, "\ud800")
    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]


def test_compilation_is_apart(subject):
    config = Setting("confidence", {"gen_length": 24, "block_length": 8}).build()
    decoder = BatchDecoder(subject.model, config, [[5] * length for length in (3, 40, 20)], batch_size=2)
    decoder.compile([0, 1, 2])
    compiled = jitted_generate._cache_size()
    done = [decoded.index for batch in decoder.run([0, 1, 2]) for decoded in batch]
    assert jitted_generate._cache_size() == compiled
    assert done == [1, 0, 2]


def test_sampling_does_not_depend_on_what_was_done_before(subject):
    config = Setting("confidence", {"gen_length": 16, "block_length": 8, "temperature": 20.0}).build()
    decoder = BatchDecoder(subject.model, config, [[5, 6]] * 5, batch_size=4, seed=3)
    whole = {decoded.index: decoded.tokens for batch in decoder.run(range(5)) for decoded in batch}
    part = {decoded.index: decoded.tokens for batch in decoder.run([3, 1]) for decoded in batch}
    assert part == {index: whole[index] for index in (1, 3)}
    assert len(set(whole.values())) > 1


def test_a_prompt_that_does_not_fit(subject):
    length = subject.model.config.max_length
    with pytest.raises(ValueError, match=f"problem 1 has a prompt of {length} tokens; at most"):
        BatchDecoder(subject.model, SETTING.build(), [[1], [1] * length], batch_size=2)


def test_describe_tells_all_settings():
    described = describe(Setting("depcap", {"cache": "dual"}).build())
    assert described["partition"]["policy"] == "DepGABlocks"
    assert described["select"]["gamma"] == -16.0
    assert described["cache"]["policy"] == "DualCache"
    assert described["gen_length"] == 256
    json.dumps(described)
    as_ints, as_floats = (
        describe(Setting("depcap", {"gamma": kind(-16), "lambda_u": kind(1)}).build())
        for kind in (int, float)
    )
    assert json.dumps(as_ints) == json.dumps(as_floats)


def test_adablock_takes_its_threshold_from_the_family(subject):
    ada = Setting("adablock", {"delimiter_ids": (7,)})
    thresholds = [
        describe(ada.build(predicts_next=dream))["partition"]["delimiter_threshold"]
        for dream in (False, True)
    ]
    assert thresholds == pytest.approx([0.3, 0.5])
    given = ada.change(delimiter_threshold=0.4).build(predicts_next=True)
    assert describe(given)["partition"]["delimiter_threshold"] == pytest.approx(0.4)
    assert describe(subject.build(Setting("adablock")))["partition"]["delimiter_ids"] == [
        tiny_tokenizer.vocabulary().index("\n")
    ]


def test_tasks():
    assert len(load_task("tiny").problems) == 500
    problem = load_task("tiny", limit=3).problems[2]
    assert problem.score("") == 0.0
    with pytest.raises(ValueError, match="unknown task 'sums'; known: tiny, gsm8k"):
        load_task("sums")
    with pytest.raises(ValueError, match="limit must be a whole number of at least 1, got 0"):
        load_task("tiny", limit=0)
    with pytest.raises(ValueError, match="takes no data folder, got '/x'"):
        load_task("tiny", data="/x")
    with pytest.raises(ValueError, match="--allow-code-execution"):
        load_task("humaneval")
    assert Problem("", "", float, ("b", "\n")).cut("a\nbc") == "a"


def command(name: str, *words: str) -> None:
    module = importlib.import_module(f"depcap_jax.cli.{name}")
    parser = argparse.ArgumentParser()
    module.add_arguments(parser)
    module.run(parser.parse_args(words))


def test_commands_give_the_same_numbers(checkpoint, tmp_path, capsys):
    common = ["--model", str(checkpoint), "--limit", "3", "--gen-length", "16", "--batch-size", "2"]
    command("eval", *common, "--recipe", "depcap", "--out", str(tmp_path / "eval"))
    (line,) = [line for line in capsys.readouterr().out.splitlines() if line.startswith("depcap ")]
    command("table", *common, "--no-plots", "--recipes", "depcap", "cap", "--out", str(tmp_path / "table"))
    assert any(shown.startswith("cap, block_length 32") for shown in capsys.readouterr().out.splitlines())
    command("sweep", *common, "--no-plots", "--vary", "gamma=-16,-8", "--out", str(tmp_path / "sweep"))
    (evaluated,) = (tmp_path / "eval").glob("*.json")
    for folder in ("table", "sweep"):
        same = tmp_path / folder / evaluated.name
        assert without_timing(read(same)) == without_timing(read(evaluated))
    (table,) = (tmp_path / "table").glob("table-tiny-*.csv")
    rows = list(csv.DictReader(table.open()))
    assert [row["recipe"] for row in rows] == ["cap", "depcap"]
    assert float(rows[1]["nfe"]) == read(evaluated)["summary"]["nfe"]
    (markdown,) = (tmp_path / "sweep").glob("*.md")
    assert f"{read(evaluated)['summary']['nfe']:.1f}" in line
    assert "| depcap, gamma -8 | none |" in markdown.read_text()
