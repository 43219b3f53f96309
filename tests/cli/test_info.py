"""`depcap info --device`: whether a model fits, from a config alone, and what to change if not."""

from __future__ import annotations

import json

import pytest
from small_checkpoints import LLADA_8B

from depcap_jax.cli import main


@pytest.fixture
def info(tmp_path, capsys):
    """What the command tells of LLaDA-8B, of which there is a config.json alone."""
    (tmp_path / "config.json").write_text(json.dumps({**LLADA_8B, "torch_dtype": "bfloat16"}))

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


def test_a_dtype_that_the_device_lacks_is_refused(capsys):
    assert main(["info", "--device", "t4", "--dtype", "bfloat16"]) == 2
    assert "NVIDIA T4 has no bfloat16" in capsys.readouterr().err
