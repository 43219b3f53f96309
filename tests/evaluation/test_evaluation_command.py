"""`depcap lm-eval`: our part of lm-eval's command line, which needs no lm-eval."""

from __future__ import annotations

import sys

import pytest

from depcap_jax.cli import main
from depcap_jax.cli.commands.depcap_lm_eval import lm_eval_arguments
from depcap_jax.evaluation.harness.benchmarks import TASK_FOLDER
from depcap_jax.evaluation.scoring.benchmark_scores import allow_code_execution, require_code_execution
from depcap_jax.evaluation.scoring.sandbox import UNGUARDED

TASKS = ["--include_path", str(TASK_FOLDER)]


@pytest.fixture(autouse=True)
def forbidden_again():
    yield
    allow_code_execution(False)


@pytest.mark.parametrize("words", [["--tasks", "t"], ["--tasks=t"], ["-t", "t"], ["--config", "c.yaml"]])
def test_our_options_take_effect_however_tasks_are_named(words):
    assert lm_eval_arguments([*words, "--data", "/x"]) == [*words, *TASKS, "--metadata", '{"data": "/x"}']


def test_code_is_run_in_the_sandbox_that_the_record_names(anyhow):
    flag = "--unsafe-code-execution" if anyhow == UNGUARDED else "--allow-code-execution"
    said = lm_eval_arguments(["--tasks", "t", flag])
    metadata = f'{{"sandbox": "{anyhow}"}}'
    assert said == ["--tasks", "t", *TASKS, "--confirm_run_unsafe_code", "--metadata", metadata]
    assert require_code_execution("humaneval") == anyhow


def test_an_own_folder_of_tasks_takes_the_place_of_ours():
    assert lm_eval_arguments(["--tasks", "t", "--include_path", "/mine"])[-2:] == ["--include_path", "/mine"]


def test_other_commands_are_left_alone():
    assert lm_eval_arguments([]) == ["--help"]
    assert lm_eval_arguments(["ls", "tasks"]) == ["ls", "tasks"]


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        (["--tasks", "t", "--confirm_run_unsafe_code"], "only with --allow-code-execution"),
        (["ls", "tasks", "--data", "/x"], "belong to an evaluation"),
        (["--allow-code-execution"], "belong to an evaluation"),
        (["--unsafe-code-execution"], "belong to an evaluation"),
    ],
)
def test_options_without_effect_are_errors(words, complaint):
    with pytest.raises(ValueError, match=complaint):
        lm_eval_arguments(words)


@pytest.fixture
def no_compilation_cache(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("depcap_jax.cli.keep_compilations", lambda: None)


@pytest.mark.usefixtures("no_compilation_cache")
@pytest.mark.parametrize(
    "words", [[], ["--tasks", "t", "--lim", "3"], ["--tasks", "t", "--help"], ["ls", "-h"]]
)
def test_every_word_reaches_lm_eval(words, monkeypatch: pytest.MonkeyPatch):
    received = []
    monkeypatch.setattr(
        "depcap_jax.cli.commands.depcap_lm_eval.run", lambda arguments: received.append(arguments.words)
    )
    assert main(["lm-eval", *words]) == 0
    assert received == [words]


@pytest.mark.parametrize("word", ["-h", "--help"])
def test_a_lone_help_is_ours_and_names_lm_evals(word, capsys):
    with pytest.raises(SystemExit, match="0"):
        main(["lm-eval", word])
    assert "depcap lm-eval run --help" in capsys.readouterr().out


@pytest.mark.usefixtures("no_compilation_cache")
def test_without_lm_eval_the_extra_is_named(capsys, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(sys.modules, "lm_eval", None)
    assert main(["lm-eval", "--tasks", "depcap_gsm8k"]) == 2
    complaint = capsys.readouterr().err
    assert 'pip install "depcap_jax[eval]"' in complaint
    assert len(complaint.splitlines()) == 1
