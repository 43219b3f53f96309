"""Models by their names: the real client against a small hub on loopback."""

from __future__ import annotations

import errno
import json
import os
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest
from hub_server import COMMIT, Hub
from small_checkpoints import REPOSITORY

from depcap_jax.checkpoints.errors import CheckpointError
from depcap_jax.checkpoints.hub import _explained, locate
from depcap_jax.checkpoints.loading import open_checkpoint
from training import vocabulary

# A process of its own: the client reads its address when it is imported. Each line of its input is a list of
# what to call and its arguments, each line of its output what came of it.
CLIENT = """
import json, sys
import numpy as np
import depcap_jax as dc
from depcap_jax.checkpoints.conversion import convert
from depcap_jax.checkpoints.loading import describe as described

def load(path):
    model, tokenizer = dc.load(path)
    return [float(model(np.arange(8, dtype=np.int32)[None]).sum()), tokenizer is not None]

def describe(path):
    told = described(path)
    return [told.config.family, told.dtype, sorted(p.name for p in told.tokenizer_folder.iterdir())]

def converted(source, target, settings={}):
    return convert(source, target, **settings).tensors

for line in sys.stdin:
    what, *arguments = json.loads(line)
    try:
        done = {"load": load, "describe": describe, "convert": converted}[what](*arguments)
    except dc.CheckpointError as error:
        done = f"CheckpointError: {error}"
    print(json.dumps(done), flush=True)
"""


@pytest.fixture(scope="module")
def hub(golden_dir, tmp_path_factory):
    folder = tmp_path_factory.mktemp("tokenizer")
    vocabulary.save(folder)
    files = {path.name: path.read_bytes() for path in folder.iterdir()}
    files |= {path.name: path.read_bytes() for path in (golden_dir / "llada").iterdir() if path.is_file()}
    unwanted = {"pytorch_model.bin": b"x" * 100, "modeling_llada.py": b"raise SystemExit", "README.md": b"hi"}
    hub = Hub()
    hub.repositories = {"acme/small": files | unwanted, "acme/gated": files, "acme/empty": {"README.md": b""}}
    hub.gated.add("acme/gated")
    return hub


class Client:
    """Asks a process of its own."""

    def __init__(self, address: str, home: Path):
        hub = {"HF_ENDPOINT": address, "HF_HOME": str(home), "HF_HUB_DISABLE_XET": "1", "HF_HUB_OFFLINE": "0"}
        environment = {**os.environ, **hub, "NO_PROXY": "127.0.0.1"}
        self.process = subprocess.Popen(
            [sys.executable, "-c", CLIENT],
            env=environment,
            cwd=REPOSITORY,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )

    def __call__(self, *words: Any):
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(json.dumps(words) + "\n")
        self.process.stdin.flush()
        return json.loads(self.process.stdout.readline())


@pytest.fixture(scope="module")
def client(hub, tmp_path_factory):
    with hub.running():
        client = Client(hub.address, tmp_path_factory.mktemp("home"))
        yield client
        client.process.kill()


def test_a_name_loads_what_its_folder_would(hub, client, golden_dir):
    hub.cut.add("model.safetensors")
    told = client("load", "acme/small")
    if version("huggingface_hub").startswith("0."):  # whose client leaves it to us to ask again
        assert "what has arrived is kept" in told
        told = client("load", "acme/small")
    total, has_tokenizer = told
    assert has_tokenizer
    assert total == client("load", str(golden_dir / "llada"))[0]
    sent = [path for path, _ in hub.served]
    assert not {"pytorch_model.bin", "modeling_llada.py", "README.md"} & {*sent}
    assert sent.count("model.safetensors") > 1, "it broke off once"
    client("load", "acme/small")
    assert [path for path, _ in hub.served] == sent, "nothing is fetched twice"


def test_a_conversion_keeps_the_revision(client, tmp_path):
    assert client("convert", "acme/small@v1", str(tmp_path / "out")) > 10
    source = json.loads((tmp_path / "out" / "source.json").read_text())
    assert (source["repository"], source["commit"]) == ("acme/small", COMMIT)
    assert {"config.json", "model.safetensors"} <= {file["name"] for file in source["files"]}


def test_an_adapter_and_what_is_known_of_a_repository_come_by_name(hub, client, golden_dir, tmp_path):
    """The two files of the adapter alone; that the model predicts the next position is in the table."""
    folders = {
        "fredzzp/open-dcoder-0.5B": golden_dir / "qwen2",
        "acme/lora": golden_dir / "qwen2" / "adapter",
    }
    for name, folder in folders.items():
        files = {path.name: path.read_bytes() for path in folder.iterdir() if path.is_file()}
        hub.repositories[name] = files
    hub.served.clear()
    settings = {"adapter": "acme/lora@v1", "mask_token_id": 5}
    assert client("convert", "fredzzp/open-dcoder-0.5B", str(tmp_path / "out"), settings) > 10
    assert "merged.safetensors" not in [path for path, _ in hub.served]
    assert open_checkpoint(tmp_path / "out").config.predicts_next
    adapter = json.loads((tmp_path / "out" / "source.json").read_text())["adapter"]
    assert (adapter["repository"], adapter["commit"]) == ("acme/lora", COMMIT)


def test_a_description_is_a_few_files(hub, client):
    hub.served.clear()
    hub.repositories["acme/other"] = hub.repositories["acme/small"]
    family, dtype, files = client("describe", "acme/other")
    assert (family, dtype, "config.json" in files) == ("llada", "float32", True)
    assert not [path for path, _ in hub.served if path.startswith("model")]
    assert "neither checkpoint.json" in client("describe", "acme/empty")


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("acme/none", "no folder of that name and no such repository"),
        ("acme/gated", "it is gated: accept its terms"),
        ("acme/small@v2", "it has no revision 'v2'"),
        ("acme/empty", "neither checkpoint.json (a converted one) nor config.json"),
    ],
)
def test_what_is_not_to_be_had_is_said(client, name, words):
    assert words in client("load", name)


@pytest.mark.compiler
def test_without_a_network_the_cache_serves(hub, tmp_path):
    with hub.running():
        client = Client(hub.address, tmp_path)
        loaded = client("load", "acme/small")
    assert client("load", "acme/small") == loaded
    assert "cannot be reached" in client("load", "acme/other")
    client.process.kill()


def test_a_full_disk_is_said():
    said = r"acme/small could not be fetched: the disk of .* is full"
    with pytest.raises(CheckpointError, match=said), _explained("acme/small", None):
        raise OSError(errno.ENOSPC, "No space left on device")


@pytest.mark.parametrize(
    "path", ["acme", "./acme/small", "acme/small/deep", "/acme/small", Path("acme/small")]
)
def test_what_is_no_name_is_a_folder(path):
    with pytest.raises(CheckpointError, match="no such folder"):
        locate(path)
