"""Loads a model and its tokenizer from a folder or the hub, and saves them."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import jax
import numpy as np
from jax.sharding import Mesh, Sharding, SingleDeviceSharding
from jax.typing import DTypeLike

from depcap_jax.checkpoints.devices import choose_dtype, has_fused_attention
from depcap_jax.checkpoints.dtypes import cast_values, common_dtype, dtype_name, with_bits
from depcap_jax.checkpoints.errors import CheckpointError
from depcap_jax.checkpoints.hub import Location, locate
from depcap_jax.checkpoints.publish import check_target, published_folder, write_errors
from depcap_jax.checkpoints.small_files import has_file
from depcap_jax.checkpoints.storage import KIND, MANIFEST, TOKENIZER, StoredCheckpoint, is_stored
from depcap_jax.checkpoints.tokenizer import load_tokenizer
from depcap_jax.models import ModelConfig, Transformer
from depcap_jax.models.parameters import get_leaves, quantize_leaf, with_leaves
from depcap_jax.models.quantization import Bits
from depcap_jax.models.sharding import weight_sharding

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

    from depcap_jax.checkpoints.huggingface.source import HuggingFaceSource

EMBEDDED = {name: Path(__file__).parents[1] / "tiny" / name for name in ("tiny-llada", "tiny-dream")}
"""The models that come with the package, in the layout of PyTorch checkpoints."""


class Description(NamedTuple):
    """What is known of a checkpoint without its weights."""

    config: ModelConfig
    dtype: str
    tokenizer_folder: Path


def load(
    path: str | os.PathLike[str],
    *,
    dtype: DTypeLike | None = None,
    quantize: Bits | None = None,
    mesh: Mesh | None = None,
    scan_layers: bool | None = None,
    fused_attention: bool | None = None,
    adapter: str | os.PathLike[str] | None = None,
    mask_token_id: int | None = None,
    predicts_next: bool | None = None,
) -> tuple[Transformer, PreTrainedTokenizerBase | None]:
    """The model and the tokenizer of a converted folder, or of a Hugging Face folder or repository directly.

    Args:
      path: the folder; or the name of an embedded model, "tiny-llada" or "tiny-dream"; or ORG/NAME or
        ORG/NAME@REVISION on the Hugging Face hub, fetched where it is not in the hub's cache.
      dtype: float32, bfloat16 or float16; None keeps that of the checkpoint, or takes float16 for bfloat16
        where the device lacks it, with a warning. The embedded models, stored in float16 to be small, get
        float32, which is exact and on a CPU faster.
      quantize: "int8" (a scale per channel) or "int4" (a scale per 32 weights): embedding, head and the
        layers' matrices are kept in so many bits, made one after the other while loading; `dtype` is then
        that of scales, norms and hidden states. None: as they are stored.
      mesh: restores every parameter already split over these devices, along the axes that are named
        "data" and "tensor" (`depcap_jax.models.sharding` has the table); None: one device.
      scan_layers: one compiled layer for all, with stacked weights, in place of a list of them: programs
        compile in a small part of the time and give the same tokens. None: on TPUs, where a layer takes
        15 seconds to compile, and with `quantize` on CPUs, where XLA would have the matrices of all layers
        in full at once.
      fused_attention: attention by cuDNN's fused kernel, which writes no scores to memory; for NVIDIA GPUs
        from Ampere on, in bfloat16 or float16. None: where that holds.
      adapter: a LoRA adapter that PEFT saved, a folder or a name on the hub, merged into the weights of a
        Hugging Face checkpoint as they are read.
      mask_token_id: the id that stands for an open position, for a checkpoint whose files do not tell it, or
        in place of what they tell.
      predicts_next: the same, of whether the output at a position predicts the one after it.

    Returns:
      The model, and None in place of a tokenizer that the folder does not have.

    Raises:
      CheckpointError: if the path is no checkpoint, or a damaged or contradictory one; if the device
        lacks the dtype that is asked for; or if the weights are kept in other bits already.
      ValueError: if attention is to be fused where it cannot be.
    """
    hints = {"mask_token_id": mask_token_id, "predicts_next": predicts_next}
    source = open_checkpoint(path, adapter=adapter, **hints)
    device = jax.local_devices()[0] if mesh is None else mesh.devices.flat[0]
    stored = "float32" if str(path) in EMBEDDED else source.dtype
    name = choose_dtype(None if dtype is None else dtype_name(dtype), stored, device)
    can_fuse = has_fused_attention(device, name)
    if fused_attention and not can_fuse:
        raise ValueError(
            "fused_attention is for NVIDIA GPUs from Ampere on, in bfloat16 or float16; "
            f"got {name} on {device.device_kind}"
        )
    config = with_bits(source.config, quantize)
    scan_by_default = device.platform == "tpu" or (device.platform == "cpu" and config.quantize is not None)
    model = with_leaves(
        config,
        _read_leaves(source, config, name, mesh),
        scan_layers=scan_by_default if scan_layers is None else scan_layers,
    )
    model.fused_attention = can_fuse if fused_attention is None else fused_attention
    # What a person writes must not read as one of these, also where the tokenizer's files let it.
    special = {config.mask_token_id, config.pad_token_id, *config.eos_token_ids}
    return model, load_tokenizer(source.tokenizer_folder, special)


def save(
    model: Transformer,
    path: str | os.PathLike[str],
    *,
    tokenizer: PreTrainedTokenizerBase | None = None,
    overwrite: bool = False,
) -> None:
    """Saves a model, and its tokenizer if given, as a folder that appears complete or not at all.

    Raises:
      CheckpointError: if something is at `path` (a checkpoint may be replaced with `overwrite`), or it
        cannot be written.
    """
    from depcap_jax.checkpoints.writer import ParameterWriter  # brings Orbax, which loading does without

    target = check_target(Path(path), overwrite=overwrite, kind=KIND, marker=MANIFEST)
    leaves = get_leaves(model)
    dtype = common_dtype(leaf.dtype for leaf in leaves.values())
    with published_folder(target, replace=overwrite) as work, write_errors(work):
        writer = ParameterWriter(work, model.config, dtype)
        for leaf, array in leaves.items():
            writer.add(leaf, cast_values(np.asarray(array), dtype, leaf))
        if tokenizer is not None:
            tokenizer.save_pretrained(work / TOKENIZER)
        writer.finish()


def open_checkpoint(
    path: str | os.PathLike[str], *, adapter: str | os.PathLike[str] | None = None, **hints: Any
) -> StoredCheckpoint | HuggingFaceSource:
    """A checkpoint's config, with its weights still on disk; `path`, `adapter` and `hints` as for `load`.

    Raises:
      CheckpointError: if the path is no checkpoint, or a contradictory one.
    """
    folder, repository, _ = _locate(path, weights=True)
    if is_stored(folder):
        if adapter is not None:
            raise CheckpointError(
                f"{folder} is converted; an adapter is merged while converting, not after it"
            )
        return StoredCheckpoint(folder, **hints)
    # PyTorch's layouts, only if they are met.
    from depcap_jax.checkpoints.huggingface.files import has_weights
    from depcap_jax.checkpoints.huggingface.source import CONFIG, HuggingFaceSource

    if has_weights(folder) or has_file(folder / CONFIG):
        return HuggingFaceSource(folder, adapter=adapter, repository=repository, **hints)
    raise _is_none(folder)


def _is_none(folder: Path) -> CheckpointError:
    return CheckpointError(
        f"{folder} is no checkpoint: neither {MANIFEST} (a converted one) nor config.json "
        "(one from Hugging Face) is in it"
    )


def _read_leaves(
    source: StoredCheckpoint | HuggingFaceSource, config: ModelConfig, dtype: str, mesh: Mesh | None
) -> dict[str, jax.Array]:
    """Every parameter of a model with `config`, on its devices, made one after the other."""
    bits = None if source.config.quantize else config.quantize

    def sharding(leaf: str) -> Sharding:
        if mesh is None:
            return SingleDeviceSharding(jax.local_devices()[0])
        return weight_sharding(leaf, config, mesh)

    leaves = {}
    for leaf in source.leaves:
        array = source.read_array(leaf, dtype, sharding(leaf))
        for name, part in quantize_leaf(leaf, array, bits).items():
            # Before the next one is read, so that a single one is there in full.
            leaves[name] = jax.device_put(part, sharding(name)).block_until_ready()
    return leaves


def describe(path: str | os.PathLike[str], **hints: Any) -> Description:
    """A checkpoint's config and dtype; weights need not be there, and none are fetched from the hub.

    Args:
      path: as for `load`; or a `config.json`, whatever lies beside it, or a folder that holds nothing else.
      hints: `mask_token_id` and `predicts_next`, as for `load`.

    Raises:
      CheckpointError: if it is none of these, or a contradictory one.
    """
    from depcap_jax.checkpoints.huggingface.config_json import CONFIG, published_dtype, read_config
    from depcap_jax.checkpoints.huggingface.files import has_weights

    folder, repository, _ = _locate(path, weights=False)
    if has_file(folder / CONFIG) and (repository or _is_config(path) or not has_weights(folder)):
        config = read_config(folder, repository=repository, **hints)
        return Description(config, published_dtype(folder), folder)
    if repository:
        raise _is_none(folder)
    source = open_checkpoint(folder, **hints)
    return Description(source.config, source.dtype, source.tokenizer_folder)


def _locate(path: str | os.PathLike[str], *, weights: bool) -> Location:
    """The folder of what a path names: an embedded model, a `config.json`, a folder or a repository."""
    if str(path) in EMBEDDED:
        return Location(EMBEDDED[str(path)])
    return locate(Path(path).parent if _is_config(path) else path, weights=weights)


def _is_config(path: str | os.PathLike[str]) -> bool:
    return Path(path).name == "config.json" and Path(path).is_file()
