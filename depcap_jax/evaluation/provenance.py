"""What a run ran on: the model's weights, the versions and the machine."""

from __future__ import annotations

import hashlib
import json
import os
import platform
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import jax

import depcap_jax
from depcap_jax.checkpoints.fingerprint import fingerprint_array
from depcap_jax.models import Transformer
from depcap_jax.models.parameters import get_leaves


def model_fingerprint(model: Transformer) -> str:
    """A hash of every weight, its name, shape and type."""
    leaves = [
        [name, list(leaf.shape), str(leaf.dtype), fingerprint_array(leaf)]
        for name, leaf in sorted(get_leaves(model).items())
    ]
    return hashlib.sha256(json.dumps(leaves).encode()).hexdigest()[:16]


@cache
def source_fingerprint() -> str:
    """A hash of this package's own code, the command aside: other code may decode or score otherwise."""
    folder = Path(depcap_jax.__file__).parent
    digest = hashlib.sha256()
    for path in sorted(folder.rglob("*.py")):
        if path.parent.name != "cli":
            digest.update(path.relative_to(folder).as_posix().encode() + b"\0" + path.read_bytes())
    return digest.hexdigest()[:16]


def versions() -> dict[str, str]:
    """Of Python and of the packages that numbers depend on."""
    return {
        "python": platform.python_version(),
        **{name: _version(name) for name in ("depcap_jax", "jax", "flax")},
    }


def machine() -> dict[str, Any]:
    """The system and the devices that JAX uses."""
    devices = jax.devices()
    return {
        "system": f"{platform.system()} {platform.machine()}",
        "cores": os.cpu_count(),
        "platform": devices[0].platform,
        "device": devices[0].device_kind,
        "devices": len(devices),
    }


def _version(name: str) -> str:
    try:
        return version(name)
    except PackageNotFoundError:  # run from a checkout
        return "not installed"
