from __future__ import annotations

import json
import logging
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("lm_eval", reason='lm-eval is not installed: pip install "depcap_jax[eval]"')

from lm_eval import simple_evaluate  # pyright: ignore[reportMissingImports]  # an extra
from lm_eval.api.instance import Instance  # pyright: ignore[reportMissingImports]  # an extra
from lm_eval.tasks import TaskManager  # pyright: ignore[reportMissingImports]  # an extra

from depcap_jax.checkpoints.loading import load
from depcap_jax.evaluation.decoder import Decoder
from depcap_jax.evaluation.engine import Subject, evaluate
from depcap_jax.evaluation.harness.benchmarks import TASK_FOLDER
from depcap_jax.evaluation.harness.lm import DepCapLM
from depcap_jax.evaluation.scoring.benchmark_scores import allow_code_execution
from depcap_jax.evaluation.scoring.sandbox import UNGUARDED
from depcap_jax.evaluation.tasks import load_task
from depcap_jax.text.generator import TextGenerator

SETTINGS = {"gen_length": 16, "block_length": 8, "threshold": 0.3}


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Benchmarks of a few problems of our own."""
    folder = tmp_path_factory.mktemp("data")

    def write(name: str, rows: list[dict[str, Any]]) -> None:
        (folder / name).write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")

    sums = [{"question": f"{n} apples and {n} more?", "answer": f"{n} + {n}\n#### {2 * n}"} for n in range(9)]
    write("gsm8k_train.jsonl", sums[:6])
    write("gsm8k_test.jsonl", sums[6:])
    write("math500.jsonl", [{"problem": "$1+1$?", "solution": r"It is \boxed{2}.", "answer": "2"}])
    add = {"text": "Add.", "code": "def add(a, b):\n    return a + b", "test_list": ["assert add(1, 2) == 3"]}
    write("mbpp_prompt.jsonl", [{**add, "task_id": n} for n in range(3)])
    write("mbpp_test.jsonl", [{**add, "task_id": 11}])
    function = {"prompt": "def one():\n", "canonical_solution": "    return 1\n", "entry_point": "one"}
    write("humaneval.jsonl", [{**function, "task_id": "H/0", "test": "def check(f):\n    assert f() == 1\n"}])
    return folder


@pytest.fixture(scope="module")
def lm(checkpoint: Path) -> DepCapLM:
    return DepCapLM(str(checkpoint), recipe="confidence", batch_size="2", mc_samples=4, **SETTINGS)


def asked(kind: str, *arguments: tuple[Any, ...]) -> list[Instance]:
    return [Instance(kind, {}, each, index) for index, each in enumerate(arguments)]


@pytest.mark.parametrize("name", ["gsm8k", "math500", "mbpp", "humaneval"])
def test_task_files(name, data):
    allow_code_execution(unsafe=True)
    try:
        task = load_task(name, data=data)
        shots = {"gsm8k": 5, "math500": 4, "mbpp": 3, "humaneval": 0}[name]
        first = {"gsm8k": "Question:", "math500": "Problem:", "mbpp": "Task:", "humaneval": "def one"}[name]
        assert str(task.problems[0].prompt).count(first) == shots + 1
        right = {"gsm8k": "#### 12", "math500": r"\boxed{2}", "humaneval": "    return 1\n"}
        assert task.problems[0].score(right.get(name, "def add(a, b):\n    return b + a")) == 1.0
        assert task.problems[0].score("") == 0.0
    finally:
        allow_code_execution(False)


def test_missing_data(tmp_path):
    with pytest.raises(ValueError, match=r"no such file: .*gsm8k_train\.jsonl"):
        load_task("gsm8k", data=tmp_path)


def test_unknown_settings_are_errors(checkpoint):
    with pytest.raises(ValueError, match="recipe 'confidence' has no setting 'tau_low'"):
        DepCapLM(str(checkpoint), recipe="confidence", tau_low=0.5)
    with pytest.raises(ValueError, match="recipe 'depcap' has no setting 'trust_remote_code'"):
        DepCapLM.create_from_arg_string(f"pretrained={checkpoint},trust_remote_code=True")
    with pytest.raises(ValueError, match="batch_size must be an integer, got 'auto'"):
        DepCapLM(str(checkpoint), batch_size="auto")


def test_bad_arguments_are_one_clear_line(checkpoint, tmp_path):
    for arguments, complaint in {
        "recipe=depcap": "pretrained=FOLDER",
        f"pretrained={checkpoint},chat=yes": "chat must be True, False or None, got 'yes'",
        f"pretrained={checkpoint},seed=abc": "seed must be ",
        f"pretrained={checkpoint},batch_size=0": "batch_size must be .* of at least 1, got 0",
        f"pretrained={checkpoint},recipe=adablock,delimiter_ids=x": "ids joined by",
    }.items():
        with pytest.raises(ValueError, match=complaint):
            DepCapLM.create_from_arg_string(arguments, {"batch_size": 1, "device": "cuda:0"})
    with pytest.raises(OSError, match="record"):
        DepCapLM(str(checkpoint), record=str(tmp_path / "nowhere" / "record.jsonl"))
    lm = DepCapLM.create_from_arg_string(
        f"pretrained={checkpoint},batch_size=4,device=cpu", {"batch_size": 1}
    )
    assert lm._batch_size == 4


def test_an_error_of_estimates_is_told(lm, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(logging.getLogger("lm_eval"), "propagate", True)
    with caplog.at_level(logging.INFO, "lm_eval"):
        lm.loglikelihood(asked("loglikelihood", ("Go from 1 to", " 9 in 3")), disable_tqdm=True)
        lm.generate_until(asked("generate_until", ("a", {"max_gen_toks": 512})))
    assert "standard error" in caplog.text
    assert "--model_args gen_length=512" in caplog.text


def test_settings_reach_the_decoder(checkpoint):
    text = f"pretrained={checkpoint},cache=dual,gen_length=32,gamma=-8,l_max=16,delimiter_ids=3+4,recipe="
    depcap = DepCapLM.create_from_arg_string(text.replace("delimiter_ids=3+4,", "") + "depcap")
    assert (
        depcap._config
        == Decoder("depcap", {"cache": "dual", "gen_length": 32, "gamma": -8.0, "l_max": 16}).build()
    )
    ada = DepCapLM(str(checkpoint), recipe="adablock", delimiter_ids="3+4", gen_length=32)
    assert ada._config.partition.delimiter_ids == (3, 4)  # type: ignore[attr-defined]  # of AdaBlocks


def test_generate_until(lm, checkpoint):
    model, tokenizer = load(checkpoint)
    assert tokenizer is not None
    answer = TextGenerator(model, tokenizer, Decoder("confidence", SETTINGS).build())
    prompts = ["Go from 1 to 9 in 3 steps.", "Choose 2", "Write code: add 1."]
    whole = answer(prompts)
    stop = whole[0][len(whole[0]) // 2 :][:3]
    requests = asked("generate_until", *[(p, {"until": [stop], "do_sample": False}) for p in prompts])
    texts = lm.generate_until(requests)
    assert texts == [text.split(stop)[0] for text in whole]
    assert texts[0] != whole[0]
    (short,) = lm.generate_until(asked("generate_until", (prompts[0], {"until": [], "max_gen_toks": 2})))
    assert short == tokenizer.decode(list(answer.run(prompts[:1])[0].tokens[:2]), skip_special_tokens=True)


def test_the_chat_template_is_used_once(lm):
    prompt = "Go from 1 to 9 in 3 steps."
    wrapped = lm.apply_chat_template([{"role": "user", "content": prompt}])
    assert wrapped != prompt
    assert lm._encode(prompt, 0) == lm._encode(wrapped, 1)


def test_generation_settings_that_cannot_be_honoured(lm):
    with pytest.raises(ValueError, match=r"do_sample=True.*--model_args temperature"):
        lm.generate_until(asked("generate_until", ("a", {"do_sample": True})))
    with pytest.raises(ValueError, match="num_beams are unknown"):
        lm.generate_until(asked("generate_until", ("a", {"num_beams": 4})))


def test_loglikelihood(lm):
    requests = asked("loglikelihood", ("Go from 1 to ", "9"), ("Go from 1 to", " 9 in 3"))
    (one, _), (three, _) = lm.loglikelihood(requests, disable_tqdm=True)
    assert one < 0
    assert three < one
    assert lm.estimates[0].standard_error == 0
    assert lm.estimates[1].standard_error > 0
    assert lm.loglikelihood(requests)[1][0] == three  # seeded


def test_loglikelihood_rolling(lm):
    length = lm._model.config.max_length
    text = " ".join(["ant"] * (length + 5))
    (value,) = lm.loglikelihood_rolling(asked("loglikelihood_rolling", (text,)), disable_tqdm=True)
    windows = lm._windows(text)
    assert [len(pair.target) for pair in windows] == [length // 2, length // 2, 5]
    assert [token for pair in windows for token in pair.target] == lm._codec.encode_part(text)
    assert value == pytest.approx(sum(e.value for e in lm._estimate(windows, True)), rel=1e-5)


def test_lm_eval_and_the_engine_agree(lm, checkpoint, data, tmp_path):
    manager = TaskManager(include_path=TASK_FOLDER, include_defaults=False, metadata={"data": str(data)})
    logging.getLogger("lm_eval").setLevel(logging.ERROR)
    results: Any = simple_evaluate(model=lm, tasks=["depcap_gsm8k"], task_manager=manager, bootstrap_iters=0)
    subject = Subject("random", *load(checkpoint), batch_size=2)
    run = evaluate(subject, load_task("gsm8k", data=data), Decoder("confidence", SETTINGS), tmp_path)
    assert results["results"]["depcap_gsm8k"]["acc,none"] == run.summary["accuracy"]
    answers = [sample["filtered_resps"][0] for sample in results["samples"]["depcap_gsm8k"]]
    assert answers == [record["answer"] for record in run.content["problems"]]


@pytest.mark.slow
def test_command(checkpoint, data, tmp_path, anyhow):
    words = [
        "--model",
        "depcap",
        "--tasks",
        "depcap_gsm8k,depcap_humaneval",
        "--data",
        str(data),
        "--limit",
        "2",
    ]
    arguments = f"pretrained={checkpoint},recipe=confidence,gen_length=16,record={tmp_path / 'r.jsonl'}"
    command = [sys.executable, "-m", "depcap_jax.cli", "lm-eval", *words, "--model_args", arguments]
    refused = subprocess.run(command, capture_output=True, text=True, check=False)
    assert refused.returncode == 2
    assert "--allow-code-execution" in refused.stderr.splitlines()[-1]
    flag = "--unsafe-code-execution" if anyhow == UNGUARDED else "--allow-code-execution"
    command += [flag, "--output_path", str(tmp_path / "results")]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "depcap_humaneval" in done.stdout
    (results,) = (tmp_path / "results").rglob("*.json")
    configs = json.loads(results.read_text())["configs"]
    assert configs["depcap_humaneval"]["metadata"]["sandbox"] == anyhow
    lines = [json.loads(line) for line in (tmp_path / "r.jsonl").open()]
    assert len(lines) == 3
    assert all(line["nfe"] >= 1 for line in lines)
