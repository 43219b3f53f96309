"""Whatever changes in a converted checkpoint, in any of its files, is refused by the file's name."""

from __future__ import annotations

import json
import math
import random
import shutil
from pathlib import Path

import pytest
from small_checkpoints import edit_manifest, everything_under, golden_config, write_word_tokenizer
from small_models import small_model

from depcap_jax.checkpoints.errors import CheckpointError
from depcap_jax.checkpoints.huggingface.config_json import from_config_json
from depcap_jax.checkpoints.loading import load, save
from depcap_jax.checkpoints.tokenizer import load_tokenizer
from depcap_jax.models import ConfigError

TEMPLATE = "{% for m in messages %}{{ m['content'] }}{% endfor %}"


@pytest.fixture(scope="module")
def whole(tmp_path_factory) -> Path:
    """A small checkpoint with every kind of file that there is; not to be written to."""
    folder = tmp_path_factory.mktemp("whole")
    write_word_tokenizer(folder, chat_template=TEMPLATE)
    save(small_model("dream"), folder / "model", tokenizer=load_tokenizer(folder))
    return folder / "model"


@pytest.fixture
def copy(whole, tmp_path) -> Path:
    return shutil.copytree(whole, tmp_path / "copy")


def other(value):
    """Another value of the same kind."""
    if isinstance(value, bool) or value is None:
        return not value
    if isinstance(value, str):
        return f"{value}x"
    return [*value, 1] if isinstance(value, list) else value * 2 + 1


def test_every_edited_value_of_the_manifest_is_refused(whole, copy):
    manifest = json.loads((whole / "checkpoint.json").read_text())
    assert {"rope_theta", "norm_eps", "mask_token_id", "predicts_next"} <= manifest["config"].keys()
    edits = [(name, key) for name, part in manifest.items() if isinstance(part, dict) for key in part]
    for name, key in [*edits, *((name, None) for name in manifest)]:
        edited = json.loads((whole / "checkpoint.json").read_text())
        if key is None:
            edited[name] = {} if isinstance(edited[name], dict) else other(edited[name])
        else:
            edited[name][key] = other(edited[name][key])
        (copy / "checkpoint.json").write_text(json.dumps(edited))
        with pytest.raises(CheckpointError, match=r"checkpoint\.json"):
            load(copy)
    # The same values in another layout are the same checkpoint.
    (copy / "checkpoint.json").write_text(json.dumps(manifest, sort_keys=True))
    load(copy)


def flips(whole: Path, count: int) -> list[tuple[str, int, int]]:
    """A file, a byte in it and a bit of that, drawn so that small files are met as often as large ones."""
    draw = random.Random(16)
    files = {name: content for name, content in everything_under(whole).items() if content}
    names = [*files, *draw.choices(sorted(files), k=max(0, count - len(files)))]
    return [(name, draw.randrange(len(files[name])), draw.randrange(8)) for name in names]


def survivors(whole: Path, copy: Path, count: int) -> list[tuple[str, int, int, str]]:
    """Those of many flipped bits that are not refused, in one line, by the name of the file."""
    found = []
    for name, position, bit in flips(whole, count):
        content = bytearray((whole / name).read_bytes())
        content[position] ^= 1 << bit
        (copy / name).write_bytes(content)
        try:
            load(copy)
            said = "nothing"
        except CheckpointError as error:
            said = str(error)
        # A parameter's numbers lie in chunks, in a folder with the parameter's name.
        named = Path(name).parts[2] if "c" in Path(name).parts else str(copy / name)
        if str(copy) not in said or named not in said or "\n" in said:
            found.append((name, position, bit, said))
        (copy / name).write_bytes((whole / name).read_bytes())
    return found


def test_flipped_bits_are_refused(whole, copy):
    assert survivors(whole, copy, 250) == []


@pytest.mark.slow
def test_many_flipped_bits_are_refused(whole, copy):
    assert survivors(whole, copy, 1000) == []


def test_files_that_were_not_written_with_it(copy):
    (copy / "README.md").write_text("notes of its owner")
    load(copy)
    (copy / "tokenizer" / "added_tokens.json").write_text('{"<|new|>": 2}')
    with pytest.raises(CheckpointError, match=r"tokenizer/added_tokens\.json"):
        load(copy)


def test_files_that_are_gone(whole, copy):
    for name in everything_under(whole):
        if name == "checkpoint.json":
            continue
        content = (copy / name).read_bytes()
        (copy / name).unlink()
        with pytest.raises(CheckpointError, match=r"lacks|damaged") as refusal:
            load(copy)
        assert str(copy) in str(refusal.value)
        (copy / name).write_bytes(content)
    load(copy)


ABSURD = {
    "rope_theta": [math.inf, math.nan, 1e300, 10**400, 0, -1.0, "x", True, [1.0], None],
    "norm_eps": [math.inf, math.nan, 1e30, 10**400, 0, -1e-6, "x", {}, None],
    "num_layers": [0, -1, 10**6, 10**30, 1.5, "3", True, None],
    "width": [0, 2**31, 10**30, 16.0, None],
    "max_length": [0, 2**31, 10**400, "long"],
    "vocab_size": [0, 2**40],
    "eos_token_ids": [[], 5, "1", [-1], [10**9], [True], {}, None],
    "mask_token_id": [-1, 10**9, 1.0, None],
    "family": ["gpt2", 3, ["llada"]],
    "quantize": ["int3", 8, ["int8"], {}],
    "qkv_bias": [1, "no"],
}


@pytest.mark.parametrize("name", ABSURD)
def test_absurd_numbers_are_refused_though_the_checksum_is_right(name, copy):
    before = (copy / "checkpoint.json").read_text()
    for value in ABSURD[name]:
        edit_manifest(copy, lambda manifest, value=value: manifest["config"].update({name: value}))
        with pytest.raises(CheckpointError, match=rf"checkpoint\.json: .*{name}"):
            load(copy)
        (copy / "checkpoint.json").write_text(before)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        *(("rope_theta", value) for value in [math.inf, math.nan, 1e300, 10**400, -1, "x", [1.0], {}]),
        *(("rms_norm_eps", value) for value in [math.inf, math.nan, 1e30, 10**400, 0, "x"]),
        *(("n_layers", value) for value in [10**6, 10**400, 0, "3", [3]]),
        *(("n_heads", value) for value in [0, -4, 10**400]),
        *(("max_sequence_length", value) for value in [10**30, 0]),
        *(("mlp_hidden_size", value) for value in [10**400, -1]),
        *(("eos_token_id", value) for value in [[], [[]], "x", [None], -1, {}]),
        *(("model_type", value) for value in [[], {}, 3]),
    ],
    ids=lambda value: repr(value)[:12],
)
def test_absurd_numbers_of_a_published_config_are_refused(name, value):
    with pytest.raises(ConfigError):
        from_config_json({**golden_config("llada"), name: value})
