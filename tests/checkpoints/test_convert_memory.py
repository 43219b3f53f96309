"""How much memory a conversion of full width needs; minutes long, gigabytes large."""

import json
import math
import re
import shutil
import subprocess
import sys

import ml_dtypes
import numpy as np
import pytest

from depcap_jax.checkpoints.huggingface.export import write_tensors
from depcap_jax.models import ModelConfig
from depcap_jax.models.parameters import leaf_shapes

LAYERS = 4
WIDE_LLADA = {
    "model_type": "llada",
    "d_model": 4096,
    "n_heads": 32,
    "n_layers": LAYERS,
    "mlp_hidden_size": 12288,
    "vocab_size": 126464,
    "embedding_size": 126464,
    "max_sequence_length": 4096,
    "rope_theta": 500000.0,
    "eos_token_id": 126081,
    "mask_token_id": 126336,
}


def _numbers(shapes):
    tile = np.random.default_rng(0).standard_normal(1 << 20, dtype=np.float32).astype(ml_dtypes.bfloat16)
    for leaf, shape in shapes.items():
        yield leaf, np.resize(tile, shape)


@pytest.fixture(scope="module")
def wide_checkpoint(tmp_path_factory):
    folder = tmp_path_factory.mktemp("wide")
    (folder / "config.json").write_text(json.dumps(WIDE_LLADA))
    config = from_config_json(WIDE_LLADA)
    write_tensors(folder / "model.safetensors", config, _numbers(leaf_shapes(config)), "bfloat16")
    return folder


@pytest.mark.slow
@pytest.mark.parametrize("options", [[], ["--verify"], ["--dtype", "float32"]], ids=" ".join)
def test_peak_memory_stays_under_twice_the_largest_tensor_plus_1_gb(wide_checkpoint, tmp_path, options):
    target = tmp_path / "target"
    command = [sys.executable, "-m", "convert", str(wide_checkpoint), str(target), *options]
    report = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    shutil.rmtree(target)
    found = re.search(r"peak memory +([\d,]+) MB", report)
    assert found
    shapes = leaf_shapes(from_config_json(WIDE_LLADA)).values()
    largest = max(map(math.prod, shapes)) * (4 if "float32" in options else 2)
    peak, bound = int(found[1].replace(",", "")) * 10**6, 2 * largest + 10**9
    print(f"\n{report}largest tensor {largest / 1e9:.2f} GB: ", end="")
    print(f"peak {peak / 1e9:.2f} GB, bound {bound / 1e9:.2f} GB")
    assert peak < bound
