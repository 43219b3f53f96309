"""LoRA adapters in PEFT's files: what they add to the weights of a model.

Beside a linear layer's weight W [out, in] an adapter has B [out, rank] and A [rank, in]; merged they are
W + scale * B @ A. The scale is alpha / rank, or alpha / sqrt(rank) (arXiv 2312.03732).
"""

from __future__ import annotations

import math
import os
import re
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

import numpy as np

from depcap_jax.checkpoints.dtypes import DTYPES
from depcap_jax.checkpoints.errors import CheckpointError
from depcap_jax.checkpoints.hub import locate
from depcap_jax.checkpoints.huggingface.keys import Entry
from depcap_jax.checkpoints.huggingface.readers import SafetensorsFile
from depcap_jax.checkpoints.small_files import has_file, read_json

ADAPTER_CONFIG = "adapter_config.json"
ADAPTER_WEIGHTS = "adapter_model.safetensors"

_KEY = re.compile(r"base_model\.model\.(?P<module>.+)\.lora_(?P<factor>[AB])\.weight")

# PEFT takes regular expressions as well.
_NAME = re.compile(r"[\w.]+")

# Fields that change nothing in the sum, whatever they say; those that are not here must be empty.
_INERT = (
    "alpha_pattern auto_mapping base_model_name_or_path bias ensure_weight_tying eva_config exclude_modules "
    "inference_mode init_lora_weights layers_pattern layers_to_transform lora_alpha lora_dropout "
    "megatron_core peft_type peft_version qalora_group_size r rank_pattern revision runtime_config "
    "target_modules task_type use_rslora"
)
# The others (PiSSA, OLoRA, ...) change the weights that the adapter is to be added to.
_STARTS = (True, False, "gaussian", "eva", "orthogonal")


class Factors(NamedTuple):
    """What is added to one weight: left @ right."""

    left: np.ndarray  # [out, rank] float32, scaled
    right: np.ndarray  # [rank, in] float32


class Adapter:
    """An adapter, checked against a model's tensors; its factors are read when they are asked for.

    Args:
      path: a folder; or ORG/NAME or ORG/NAME@REVISION on the hub.
      table: the model's tensors.

    Raises:
      CheckpointError: if a file is missing or damaged, the adapter is not plain LoRA, or it does not fit.
    """

    def __init__(self, path: str | os.PathLike[str], table: Iterable[Entry]):
        self.location = locate(path, files=(ADAPTER_CONFIG, ADAPTER_WEIGHTS))
        folder = self.location.folder
        self.files = [folder / ADAPTER_CONFIG, folder / ADAPTER_WEIGHTS]
        self.config = read_json(folder / ADAPTER_CONFIG)
        self._where = folder / ADAPTER_CONFIG
        self._check_kind()
        if not has_file(folder / ADAPTER_WEIGHTS, math.inf):
            raise CheckpointError(f"{folder} has no {ADAPTER_WEIGHTS}: an adapter saved by PEFT has one")
        self._file = SafetensorsFile(folder / ADAPTER_WEIGHTS)
        self._scales = self._match({entry.key: entry for entry in table})

    def factors(self, leaf: str) -> Factors | None:
        """What is added to the parameter with a dotted name (in PyTorch's order of axes), or None."""
        if leaf not in self._scales:
            return None
        module, scale = self._scales[leaf]
        a, b = (self._read(_key(module, factor)).astype(np.float32) for factor in "AB")
        return Factors(np.float32(scale) * b, a)

    def _read(self, key: str) -> np.ndarray:
        return self._file.read(key, tuple(slice(0, size) for size in self._file.tensors[key].shape))

    def _check_kind(self) -> None:
        config = self.config
        if config.get("peft_type") != "LORA":
            self._refuse("peft_type", "'LORA'")
        if config.get("bias", "none") != "none":
            self._refuse("bias", "'none'")
        if config.get("init_lora_weights", True) not in _STARTS:
            self._refuse("init_lora_weights", " or ".join(map(repr, _STARTS)))
        for name, value in config.items():
            if value and name not in _INERT.split():
                self._refuse(name, "LoRA without it")

    def _refuse(self, name: str, implemented: str) -> None:
        value = self.config.get(name)
        raise CheckpointError(f"{self._where} has {name} = {value!r}; implemented: {implemented}")

    def _match(self, table: Mapping[str, Entry]) -> dict[str, tuple[str, float]]:
        """The module and the scale for each parameter that the adapter changes."""
        modules: dict[str, Entry] = {}
        for key, info in self._file.tensors.items():
            named = _KEY.fullmatch(key)
            entry = table.get(f"{named['module']}.weight") if named else None
            if named is None or entry is None or not entry.transposed:
                raise CheckpointError(
                    f"unknown tensor {key!r} in {self._file.path}: expected is "
                    "base_model.model.MODULE.lora_A.weight, or lora_B, with a linear layer that the model has"
                )
            if info.dtype not in DTYPES:
                allowed = ", ".join(DTYPES)
                raise CheckpointError(
                    f"tensor {key!r} in {self._file.path} has dtype {info.dtype}; allowed: {allowed}"
                )
            modules[named["module"]] = entry
        self._check_targets(modules)
        return {entry.leaf: (module, self._scale(module, entry)) for module, entry in modules.items()}

    def _check_targets(self, modules: Iterable[str]) -> None:
        targets = self.config.get("target_modules")
        for target in targets if isinstance(targets, list) else []:
            if not any(_ends_with(module, target) for module in modules):
                raise CheckpointError(
                    f"{self._where} has the target module {target!r}, and {self._file.path} no tensor of it"
                )
        if not modules:
            raise CheckpointError(f"{self._file.path} holds no tensor")

    def _scale(self, module: str, entry: Entry) -> float:
        rank = self._setting("r", "rank_pattern", module)
        alpha = self._setting("lora_alpha", "alpha_pattern", module)
        for factor, shape in (("A", (rank, entry.shape[1])), ("B", (entry.shape[0], rank))):
            key = _key(module, factor)
            if (info := self._file.tensors.get(key)) is None:
                raise CheckpointError(f"missing tensor {key!r}: {self._file.path} has only the other factor")
            if info.shape != shape:
                raise CheckpointError(
                    f"tensor {key!r} in {self._file.path} has shape {list(info.shape)}; "
                    f"the model and {ADAPTER_CONFIG} make it {list(shape)}"
                )
        return alpha / (math.sqrt(rank) if self.config.get("use_rslora") else rank)

    def _setting(self, name: str, pattern_name: str, module: str) -> Any:
        """A number of `adapter_config.json`: the first whose pattern is the module's end, or that of all."""
        patterns = self.config.get(pattern_name) or {}
        if not isinstance(patterns, dict) or not all(map(_NAME.fullmatch, patterns)):
            self._refuse(pattern_name, "an object from names of modules, or their ends, to numbers")
        matches = (value for end, value in patterns.items() if _ends_with(module, end))
        value = next(matches, self.config.get(name))
        if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 < value < 1e9:
            raise CheckpointError(
                f"{self._where} has {name} = {value!r}; a positive number below 1e9 is expected"
            )
        return value


def _ends_with(module: str, end: str) -> bool:
    return f".{module}".endswith(f".{end}")


def _key(module: str, factor: str) -> str:
    return f"base_model.model.{module}.lora_{factor}.weight"
