"""`depcap convert`: the command `depcap-convert` under one roof with the others."""

from __future__ import annotations

from depcap_jax.cli.conversion_command import add_arguments, run

SUMMARY = "convert a PyTorch checkpoint of LLaDA or Dream, or back with --export"
EXAMPLES = """
  depcap convert path/to/LLaDA-8B-Instruct path/to/llada-8b --dtype bfloat16 --verify
  depcap convert --export path/to/llada-8b path/to/back-in-pytorch-layout
"""

__all__ = ["EXAMPLES", "SUMMARY", "add_arguments", "run"]
