"""What a device can compute: in which dtypes, and with which attention."""

from __future__ import annotations

import warnings
from typing import Any

from depcap_jax.checkpoints.errors import CheckpointError


def choose_dtype(asked: str | None, stored: str, device: Any) -> str:
    """The dtype to load weights in: what was `asked` for, else as `stored`, or float16 where that is missing.

    Raises:
      CheckpointError: if the device lacks what was asked for.
    """
    name, capability = asked or stored, _nvidia_capability(device)
    if name != "bfloat16" or capability is None or capability >= 8:
        return name
    lacks = f"{getattr(device, 'device_kind', device)} has no bfloat16 (NVIDIA GPUs have it from Ampere on)"
    if asked is not None:
        raise CheckpointError(f"{lacks}; choose float16 or float32")
    warnings.warn(f"{lacks}: loading in float16", stacklevel=3)
    return "float16"


def has_fused_attention(device: Any, dtype: str) -> bool:
    """Whether cuDNN's attention runs there: on NVIDIA GPUs from Ampere (8.0) on, in half precision."""
    capability = _nvidia_capability(device)
    return capability is not None and capability >= 8 and dtype != "float32"


def _nvidia_capability(device: Any) -> float | None:
    """The compute capability of an NVIDIA GPU; None for anything else."""
    capability = str(getattr(device, "compute_capability", ""))  # "8.0"; AMD's are "gfx90a"
    is_number = capability.partition(".")[0].isdigit()
    return float(capability) if device.platform == "gpu" and is_number else None
