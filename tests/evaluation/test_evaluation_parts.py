"""What `evaluate` is made of: decoders and their descriptions, tasks, and the file of records."""

from __future__ import annotations

import json

import numpy as np
import pytest

from depcap_jax import tiny
from depcap_jax.checkpoints.loading import load
from depcap_jax.evaluation.decoder import Decoder, describe
from depcap_jax.evaluation.engine import Subject
from depcap_jax.evaluation.records import publish_text
from depcap_jax.evaluation.tasks import Problem, load_task
from training import vocabulary


def test_describe_tells_all_settings():
    described = describe(Decoder("depcap", {"cache": "dual"}).build())
    assert described["partition"]["policy"] == "DepGABlocks"
    assert described["select"]["gamma"] == -16.0
    assert described["cache"]["policy"] == "DualCache"
    assert described["gen_length"] == 256
    json.dumps(described)
    as_ints, as_floats, as_arrays = (
        describe(Decoder("depcap", {"gamma": kind(-16), "lambda_u": kind(1)}).build())
        for kind in (int, float, np.float32)
    )
    assert json.dumps(as_ints) == json.dumps(as_floats) == json.dumps(as_arrays)
    assert describe(((), None, np.asarray([1.0, 0.5]))) == [[], None, [1, 0.5]]


def test_adablock_takes_its_threshold_from_the_family(checkpoint):
    ada = Decoder("adablock", {"delimiter_ids": (7,)})
    thresholds = [
        describe(ada.build(predicts_next=dream))["partition"]["delimiter_threshold"]
        for dream in (False, True)
    ]
    assert thresholds == pytest.approx([0.3, 0.5])
    given = ada.change(delimiter_threshold=0.4).build(predicts_next=True)
    assert describe(given)["partition"]["delimiter_threshold"] == pytest.approx(0.4)
    line_break = vocabulary.tokens().index("\n")
    config = Subject("random", *load(checkpoint)).build(Decoder("adablock"))
    assert describe(config)["partition"]["delimiter_ids"] == [line_break]


def test_tasks():
    assert len(load_task("tiny").problems) == 500
    problem = load_task("tiny", limit=3).problems[2]
    assert problem.score("") == 0.0
    several = load_task("tiny-long")
    assert (several.name, len(several.problems)) == ("tiny-long", 400)
    for asked, stored in zip(several.problems[:5], tiny.held_out(long=True), strict=False):
        assert (asked.prompt, asked.content) == (stored.prompt, "several")
        assert (asked.score(stored.answer), asked.score(stored.answer[3:])) == (1.0, 0.0)
    with pytest.raises(ValueError, match="unknown task 'sums'; known: tiny, tiny-long, gsm8k"):
        load_task("sums")
    with pytest.raises(ValueError, match=r"limit must be .* of at least 1, got 0"):
        load_task("tiny", limit=0)
    with pytest.raises(ValueError, match=r"'tiny-long' is part .* takes no data folder, got '/x'"):
        load_task("tiny-long", data="/x")
    with pytest.raises(ValueError, match="--allow-code-execution"):
        load_task("humaneval")
    assert Problem("", "", float, ("b", "\n")).cut("a\nbc") == "a"


def test_publish_text_leaves_the_old_file_on_an_error(tmp_path):
    path = tmp_path / "a.json"
    publish_text(path, "old")
    with pytest.raises(UnicodeEncodeError):
        publish_text(path, "\ud800")
    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]
