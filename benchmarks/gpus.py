"""NVIDIA GPUs as XLA's compiler wants to have them described, to compile for one that is not here.

The figures are NVIDIA's, of its data sheets and of its programming guide's table of compute capabilities;
memory, bandwidth and capability are those of `depcap_jax.inspect.accelerators`.
"""

from __future__ import annotations

from typing import NamedTuple

from depcap_jax.inspect.accelerators import ACCELERATORS


class _Multiprocessors(NamedTuple):
    number: int
    lanes: int  # float32 units of each
    threads: int  # at once on each
    shared_memory: int  # bytes of each
    per_block: int  # bytes of them that one block may take
    l2_cache: int  # bytes, of all
    clock: float  # GHz


_GPUS = {
    "t4": _Multiprocessors(40, 64, 1024, 65536, 65536, 4 << 20, 1.59),
    "l4": _Multiprocessors(58, 128, 1536, 102400, 101376, 48 << 20, 2.04),
    "a100-40": _Multiprocessors(108, 64, 2048, 167936, 166912, 40 << 20, 1.41),
    "a100-80": _Multiprocessors(108, 64, 2048, 167936, 166912, 40 << 20, 1.41),
    "h100": _Multiprocessors(132, 128, 2048, 233472, 232448, 50 << 20, 1.98),
}

GPUS = tuple(_GPUS)
"""The names that `describe` knows."""


def describe(name: str) -> str:
    """XLA's `GpuTargetConfigProto` of a GPU, as text."""
    gpu, device = _GPUS[name], ACCELERATORS[name]
    major, minor = device.compute_capability.split(".")
    features = "ACCELERATED_FEATURES" if major == "9" else "NONE"
    return f"""
gpu_device_info {{
  threads_per_block_limit: 1024
  threads_per_warp: 32
  shared_memory_per_block: 49152
  shared_memory_per_core: {gpu.shared_memory}
  threads_per_core_limit: {gpu.threads}
  core_count: {gpu.number}
  fpus_per_core: {gpu.lanes}
  block_dim_limit_x: 2147483647
  block_dim_limit_y: 65535
  block_dim_limit_z: 65535
  memory_bandwidth: {int(device.bandwidth)}
  l2_cache_size: {gpu.l2_cache}
  clock_rate_ghz: {gpu.clock}
  device_memory_size: {device.memory}
  shared_memory_per_block_optin: {gpu.per_block}
  cuda_compute_capability {{ major: {major} minor: {minor} feature_extension: {features} }}
  registers_per_core_limit: 65536
  registers_per_block_limit: 65536
  thread_dim_limit_x: 1024
  thread_dim_limit_y: 1024
  thread_dim_limit_z: 64
  device_vendor: "NVIDIA Corporation"
  device_address_bits: 64
  pcie_bandwidth: 34359738368
  ecc_enabled: true
  name: "{device.device_kind}"
  driver_version: "13.0.0"
  runtime_version: "12.8.0"
  compile_time_toolkit_version: "12.8.0"
  dnn_version: "9.10.0"
}}
platform_name: "CUDA"
dnn_version_info {{ major: 9 minor: 10 patch: 0 }}
device_description_str: "{device.device_kind}"
"""
