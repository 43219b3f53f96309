"""Accelerators by name: how much memory each has, and how fast it is at best.

Speeds are the makers' own, dense, of products in half precision: NVIDIA's data sheets of the T4, L4, A100
(SXM) and H100 (SXM), Google Cloud's page on TPU v5e. Memory is what a program finds: for GPUs what the driver
reports, a little less than what is sold; for TPU v5e what XLA's compiler says there is.
"""

from __future__ import annotations

import dataclasses


@dataclasses.dataclass(frozen=True, kw_only=True)
class Accelerator:
    """A device that need not be here; the first three are named as JAX names them."""

    device_kind: str
    platform: str
    compute_capability: str = ""
    """Of an NVIDIA GPU."""
    memory: int
    """Bytes."""
    flops: float
    """Operations per second, in half precision."""
    bandwidth: float
    """Bytes per second between its memory and its processor."""

    @property
    def share(self) -> int:
        """Bytes that JAX takes unless it is told otherwise: three quarters of a GPU's."""
        return self.memory * 3 // 4 if self.platform == "gpu" else self.memory

    @property
    def most(self) -> int:
        """Bytes that JAX can be told to take, by `MORE_MEMORY`; CUDA's libraries want some themselves."""
        return self.memory * 95 // 100 if self.platform == "gpu" else self.memory


MORE_MEMORY = "XLA_CLIENT_MEM_FRACTION=.95"


def _gpu(name: str, capability: str, memory: int, flops: float, bandwidth: float) -> Accelerator:
    return Accelerator(
        device_kind=f"NVIDIA {name}",
        platform="gpu",
        compute_capability=capability,
        memory=memory,
        flops=flops,
        bandwidth=bandwidth,
    )


ACCELERATORS = {
    "t4": _gpu("T4", "7.5", 15_843_721_216, 65e12, 320e9),
    "l4": _gpu("L4", "8.9", 23_580_639_232, 121e12, 300e9),
    "a100-40": _gpu("A100 40GB", "8.0", 42_331_013_120, 312e12, 1555e9),
    "a100-80": _gpu("A100 80GB", "8.0", 85_100_068_864, 312e12, 2039e9),
    "h100": _gpu("H100 80GB", "9.0", 84_942_979_072, 989e12, 3350e9),
    "v5e": Accelerator(
        device_kind="TPU v5e", platform="tpu", memory=16_911_433_728, flops=197e12, bandwidth=819e9
    ),
}
"""By the names that `depcap info --device` knows."""
