"""Fixtures that more than one file uses."""

from __future__ import annotations

import signal
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from small_checkpoints import GOLDEN, REPOSITORY

sys.path.append(str(REPOSITORY))  # for training/, which is not installed; the package itself is

from depcap_jax.checkpoints.conversion import convert
from depcap_jax.checkpoints.loading import load, save
from depcap_jax.checkpoints.tokenizer import load_tokenizer
from training import vocabulary


@pytest.fixture(scope="session")
def golden_dir() -> Path:
    """The folder with one golden checkpoint a family."""
    return GOLDEN


@pytest.fixture(scope="session")
def converted_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same checkpoints, converted; not to be written to."""
    folder = tmp_path_factory.mktemp("converted")
    for family in ("llada", "dream"):
        convert(GOLDEN / family, folder / family)
    return folder


@pytest.fixture(scope="session")
def checkpoint(golden_dir: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A random model with the embedded models' tokenizer, as a folder."""
    folder = tmp_path_factory.mktemp("checkpoint")
    vocabulary.save(folder)
    save(load(golden_dir / "llada")[0], folder / "model", tokenizer=load_tokenizer(folder))
    return folder / "model"


@pytest.fixture(params=["llada", "dream"])
def family(request: pytest.FixtureRequest) -> str:
    """Each family in turn."""
    return request.param


@pytest.fixture
def heeds_ctrl_c() -> Iterator[None]:
    """Lets started processes heed SIGINT, which a shell's background jobs are born to ignore."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)
