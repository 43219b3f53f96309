"""How much memory a conversion of full width needs; minutes long, gigabytes large."""

import json
import math
import re
import shutil

import ml_dtypes
import numpy as np
import pytest
from small_checkpoints import LLADA_8B, run_convert

from depcap_jax.checkpoints.huggingface.config_json import from_config_json
from depcap_jax.checkpoints.huggingface.export import write_tensors
from depcap_jax.models.parameters import leaf_shapes

WIDE_LLADA = {**LLADA_8B, "n_layers": 4}


@pytest.fixture(scope="module")
def wide_checkpoint(tmp_path_factory):
    folder = tmp_path_factory.mktemp("wide")
    (folder / "config.json").write_text(json.dumps(WIDE_LLADA))
    config = from_config_json(WIDE_LLADA)
    shapes = leaf_shapes(config)
    tile = np.random.default_rng(0).standard_normal(1 << 20, dtype=np.float32).astype(ml_dtypes.bfloat16)
    write_tensors(
        folder / "model.safetensors", config, lambda leaf: np.resize(tile, shapes[leaf]), "bfloat16"
    )
    return folder


@pytest.mark.slow
@pytest.mark.parametrize("options", [[], ["--verify"], ["--dtype", "float32"]], ids=" ".join)
def test_peak_memory_stays_under_twice_the_largest_tensor_plus_1_gb(wide_checkpoint, tmp_path, options):
    target = tmp_path / "target"
    result = run_convert(wide_checkpoint, target, *options)
    assert result.returncode == 0, result.stderr
    report = result.stdout
    shutil.rmtree(target)
    match = re.search(r"peak memory +([\d,]+) MB", report)
    assert match
    shapes = leaf_shapes(from_config_json(WIDE_LLADA)).values()
    largest = max(map(math.prod, shapes)) * (4 if "float32" in options else 2)
    peak, bound = int(match[1].replace(",", "")) * 10**6, 2 * largest + 10**9
    print(f"\n{report}largest tensor {largest / 1e9:.2f} GB: ", end="")
    print(f"peak {peak / 1e9:.2f} GB, bound {bound / 1e9:.2f} GB")
    assert peak < bound
