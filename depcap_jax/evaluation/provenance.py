"""What a run ran on: the model's weights, the code, the versions and the machine."""

from __future__ import annotations

import ast
import hashlib
import json
import os
import platform
import secrets
import sys
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import jax

import depcap_jax
from depcap_jax.checkpoints.fingerprint import fingerprint_array
from depcap_jax.models import Transformer
from depcap_jax.models.parameters import get_leaves

_PACKAGE = Path(depcap_jax.__file__).parent

DECISIVE = ("decoding", "models", "text", "evaluation/scoring", "tiny/checker.py", "tiny/words.py")
"""The folders and files of this package whose code can change an answer or its score."""


def fingerprint(value: Any) -> str:
    """A hash of what JSON can hold."""
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()[:16]


def model_fingerprint(model: Transformer) -> str:
    """A hash of every weight, its name, shape and type."""
    leaves = [
        [name, list(leaf.shape), str(leaf.dtype), fingerprint_array(leaf)]
        for name, leaf in sorted(get_leaves(model).items())
    ]
    return fingerprint(leaves)


@cache
def source_fingerprint(package: Path = _PACKAGE) -> str:
    """A hash of this package's code that can change an answer or its score.

    Comments and docstrings do not count, nor does the code around it: commands, reports, plots.
    """
    code = []
    for part in DECISIVE:
        path = package / part
        files = [path] if path.is_file() else sorted(path.rglob("*.py"))
        code += [[file.relative_to(package).as_posix(), _code(file.read_bytes())] for file in files]
    return fingerprint(code)


def module_fingerprint(name: str) -> str:
    """A hash of a module's code; of one without a file, such as a notebook's, another one each time."""
    file = getattr(sys.modules.get(name), "__file__", None)
    return secrets.token_hex(8) if file is None else _code(Path(file).read_bytes())


@cache
def _code(source: bytes) -> str:
    """A hash of code without its comments and docstrings."""
    return fingerprint(ast.dump(_WithoutTexts().visit(ast.parse(source))))


class _WithoutTexts(ast.NodeTransformer):
    def visit_Expr(self, node: ast.Expr) -> ast.Expr | None:
        """Drops a statement that is a mere constant: a docstring, of a function or of a field."""
        return None if isinstance(node.value, ast.Constant) else node


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
