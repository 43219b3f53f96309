"""Our part of lm-eval's command line, which needs no lm-eval."""

from __future__ import annotations

import pytest

from depcap_jax.cli.lm_eval import lm_eval_arguments
from depcap_jax.evaluation.harness.benchmarks import TASK_FOLDER
from depcap_jax.evaluation.scoring.benchmark_scores import allow_code_execution, require_code_execution

TASKS = ["--include_path", str(TASK_FOLDER)]


@pytest.fixture(autouse=True)
def forbidden_again():
    yield
    allow_code_execution(False)


@pytest.mark.parametrize("words", [["--tasks", "t"], ["--tasks=t"], ["-t", "t"], ["--config", "c.yaml"]])
def test_our_options_take_effect_however_tasks_are_named(words):
    said = lm_eval_arguments([*words, "--data", "/x", "--allow-code-execution"])
    assert said == [*words, *TASKS, "--metadata", '{"data": "/x"}', "--confirm_run_unsafe_code"]
    require_code_execution("humaneval")


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
    ],
)
def test_options_without_effect_are_errors(words, complaint):
    with pytest.raises(ValueError, match=complaint):
        lm_eval_arguments(words)
