"""The authors' runs, and the small checkpoints that they were made with."""

from __future__ import annotations

import functools
import json
from pathlib import Path
from typing import Any

import depcap_jax as dc

GOLDEN = Path(__file__).parent / "golden"

_RENAMED = {"L_min": "l_min", "L_max": "l_max", "topk_cache": "top_k_cache"}
_NOT_SETTINGS = {"method", "prompt_ids", "output_ids", "nfe", "block_sizes", "transfer_steps"}


@functools.cache
def model(family: str) -> dc.Transformer:
    return dc.load(GOLDEN / family)[0]


@functools.cache
def runs(family: str) -> list[dict[str, Any]]:
    lines = (GOLDEN / family / "decode.jsonl").read_text().splitlines()
    return [json.loads(line) for line in lines]


def config(run: dict[str, Any], **changes: Any) -> dc.DecodeConfig:
    """Our recipe for a run; the authors' programs do not stop at an end-of-text token."""
    given = {name: value for name, value in run.items() if name not in _NOT_SETTINGS and value is not None}
    settings = {_RENAMED.get(name, name): value for name, value in given.items()}
    return dc.recipe(run["method"], **{"stop_at_eos": False, **settings, **changes})


def differences(run: dict[str, Any], tokens: Any, nfe: Any, block_sizes: Any, commit_step: Any) -> list[str]:
    """What of a decode differs from the authors' run."""
    wrong = []
    if list(map(int, tokens)) != run["output_ids"]:
        wrong.append("output_ids")
    if "block_sizes" in run and [int(size) for size in block_sizes if size] != run["block_sizes"]:
        wrong.append("block_sizes")
    if "transfer_steps" in run and list(map(int, commit_step)) != run["transfer_steps"]:
        wrong.append("transfer_steps")
    # Fast-dLLM spends a pass too many on a block that its first pass completed.
    extra_allowed = run["method"] == "confidence" and run["cache"] != "none"
    if int(nfe) != run["nfe"] and not (extra_allowed and int(nfe) < run["nfe"]):
        wrong.append(f"nfe {int(nfe)}, not {run['nfe']}")
    return wrong
