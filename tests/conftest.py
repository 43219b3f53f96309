"""Settings for all tests, and fixtures that more than one file uses."""

from __future__ import annotations

import gc
import itertools
import os
import shutil
import signal
import sys
import tempfile
from collections.abc import Iterator
from importlib.metadata import version
from pathlib import Path

# Eight devices to shard over, wherever the tests run; JAX reads this when it is imported.
if "xla_force_host_platform_device_count" not in os.environ.get("XLA_FLAGS", ""):
    os.environ["XLA_FLAGS"] = f"{os.environ.get('XLA_FLAGS', '')} --xla_force_host_platform_device_count=8"

# Compiling is most of a run, and optimising and XLA's newer generator of fused code most of that. The numbers
# do not depend on them: `.ci/run` tests the longer programs as people compile them.
if "xla_backend_optimization_level" not in os.environ["XLA_FLAGS"]:
    os.environ["XLA_FLAGS"] += " --xla_backend_optimization_level=0 --xla_llvm_disable_expensive_passes=true"
    if tuple(map(int, version("jaxlib").split(".")[:2])) <= (0, 10):  # an unknown flag ends the process
        os.environ["XLA_FLAGS"] += " --xla_cpu_use_fusion_emitters=false"

os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")  # as the command sets it before it imports them

# What one worker or process of a run compiles, the others read; nothing is kept for the next run.
_COMPILED = None
if "JAX_COMPILATION_CACHE_DIR" not in os.environ:
    _COMPILED = tempfile.mkdtemp(prefix="depcap-compiled-")
    os.environ["JAX_COMPILATION_CACHE_DIR"] = _COMPILED
    os.environ["JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS"] = "0.1"

import jax
import pytest
from small_checkpoints import GOLDEN, REPOSITORY
from small_models import small_model

sys.path.append(str(REPOSITORY))  # for training/, which is not installed; the package itself is

from depcap_jax.checkpoints.conversion import convert
from depcap_jax.checkpoints.loading import save
from depcap_jax.checkpoints.tokenizer import load_tokenizer
from training import vocabulary

# A silent broadcast or cast is more often a mistake than meant.
jax.config.update("jax_numpy_rank_promotion", "raise")
jax.config.update("jax_numpy_dtype_promotion", "strict")


# Compiled programs lie in thousands of mappings, of which Linux gives a process 65,530; XLA crashes where
# there is none left.
_MOST_MAPPINGS = 25_000
_ended = itertools.count(1)


def pytest_runtest_teardown() -> None:
    """Forgets compiled programs when there are many; reading how many there are takes a while."""
    mappings = Path("/proc/self/maps")
    if next(_ended) % 8 == 0 and mappings.exists() and mappings.read_bytes().count(b"\n") > _MOST_MAPPINGS:
        jax.clear_caches()
        gc.collect()


def pytest_unconfigure() -> None:
    """Removes what this run compiled; the process that made the folder does it, not its workers."""
    if _COMPILED is not None:
        shutil.rmtree(_COMPILED, ignore_errors=True)


@pytest.fixture(scope="session")
def golden_dir() -> Path:
    """The folder with one golden checkpoint per family."""
    return GOLDEN


@pytest.fixture(scope="session")
def converted_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same checkpoints, converted; not to be written to."""
    folder = tmp_path_factory.mktemp("converted")
    for family in ("llada", "dream"):
        convert(GOLDEN / family, folder / family)
    return folder


@pytest.fixture(scope="session")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A random model with the embedded models' tokenizer, as a folder."""
    folder = tmp_path_factory.mktemp("checkpoint")
    vocabulary.save(folder)
    save(small_model("llada"), folder / "model", tokenizer=load_tokenizer(folder))
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
