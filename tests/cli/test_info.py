"""`depcap info --device`: whether a model fits, from a config alone, and what to change if not."""

from __future__ import annotations

import json

import pytest
from small_checkpoints import LLADA_8B, at_once

from depcap_jax.cli import main


@pytest.fixture
def info(tmp_path, capsys):
    """What the command tells of LLaDA-8B, of which there is a config.json alone."""
    (tmp_path / "config.json").write_text(json.dumps(LLADA_8B))

    def tell(*options, model="config.json"):
        assert not main(["info", "--model", str(tmp_path / model), "--json", *options])
        return json.loads(capsys.readouterr().out)

    return tell


def test_what_does_not_fit_comes_with_what_would(info):
    small = info("--device", "t4", "--batch", "8")
    assert small["dtype"] == "float16", "a T4 has no bfloat16"
    assert not small["device"]["fits"]
    assert [change["options"] for change in small["device"]["changes"]] == ["--quantize int8"]
    few_bits = info("--device", "t4", "--batch", "8", "--quantize", "int8")
    assert few_bits["device"]["fits"]
    split = info("--device", "t4", "--batch", "8", "--tensor", "2")
    assert split["device"]["fits"]
    for smaller in (few_bits, split):
        assert smaller["memory"]["weights"] < 0.51 * small["memory"]["weights"]


def test_the_largest_batch_fits_and_one_more_does_not(info):
    large = info("--device", "l4", model="")
    rows = large["device"]["most_rows"]
    assert info("--device", "l4", "--batch", str(rows))["device"]["fits"]
    too_many = info("--device", "l4", "--batch", str(rows + 1))["device"]
    assert too_many["changes"][0]["options"] == f"--batch {rows}"


def test_half_of_float32_is_what_the_device_has(tmp_path, capsys):
    (tmp_path / "config.json").write_text(json.dumps({**LLADA_8B, "torch_dtype": "float32"}))
    for device, half in (("t4", "float16"), ("l4", "bfloat16")):
        assert not main(["info", "--model", str(tmp_path), "--json", "--device", device])
        changes = json.loads(capsys.readouterr().out)["device"]["changes"]
        assert any(f"--dtype {half}" in change["options"] for change in changes) or half == "float16"
        assert not any("--dtype" in change["options"] and half not in change["options"] for change in changes)


def test_a_config_that_is_named_is_read_alone(info, tmp_path):
    """What lies beside it need not be whole."""
    (tmp_path / "model.safetensors.index.json").write_text('{"weight_map": {"a": "absent.safetensors"}}')
    assert info()["dtype"] == "bfloat16"


def test_more_layers_than_any_model_has_are_refused_at_once(tmp_path, capsys):
    (tmp_path / "config.json").write_text(json.dumps({**LLADA_8B, "n_layers": 1024}))
    with at_once(10):
        assert main(["info", "--model", str(tmp_path), "--device", "t4"]) == 2
    assert "num_layers must be an integer in [1, 256], got 1024" in capsys.readouterr().err


def test_as_many_layers_as_there_may_be_take_seconds(tmp_path, capsys):
    (tmp_path / "config.json").write_text(json.dumps({**LLADA_8B, "n_layers": 256}))
    with at_once():
        assert not main(["info", "--model", str(tmp_path), "--device", "t4"])
    assert "too small" in capsys.readouterr().out


def test_a_dtype_that_the_device_lacks_is_refused(capsys):
    assert main(["info", "--device", "t4", "--dtype", "bfloat16"]) == 2
    assert "NVIDIA T4 has no bfloat16" in capsys.readouterr().err
