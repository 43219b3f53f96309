"""`python -m depcap_jax.evaluation`: lm-eval's own command line, with the model `depcap` and our tasks in it.

    python -m depcap_jax.evaluation --model depcap --model_args pretrained=M,recipe=depcap,cache=dual \\
        --tasks depcap_gsm8k --data FOLDER

Two options are ours: `--data FOLDER` (JSONL files instead of the hub) and `--allow-code-execution`. All
others are lm-eval's; its `--include_path` takes the place of our tasks.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence

from depcap_jax.evaluation.harness.benchmarks import TASK_FOLDER, require_lm_eval
from depcap_jax.evaluation.scoring.benchmark_scores import allow_code_execution

_OTHER_COMMANDS = ("ls", "validate")
"""lm-eval's own commands that evaluate nothing."""


def lm_eval_arguments(arguments: Sequence[str]) -> list[str]:
    """What lm-eval is to be told; our own options take effect here.

    Raises:
      ValueError: if one of ours would have no effect, or code would be run without permission.
    """
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    parser.add_argument("--data")
    parser.add_argument("--include_path")
    parser.add_argument("--allow-code-execution", action="store_true")
    ours, rest = parser.parse_known_args(arguments)
    runs = bool(rest) and rest[0] not in _OTHER_COMMANDS and not {"-h", "--help"} & set(rest)
    if "--confirm_run_unsafe_code" in rest and not ours.allow_code_execution:
        raise ValueError("model-written code is run only with --allow-code-execution")
    if (ours.data is not None or ours.allow_code_execution) and not runs:
        raise ValueError(
            "--data and --allow-code-execution belong to an evaluation: --model depcap --tasks ..."
        )
    if runs or ours.include_path:
        rest += ["--include_path", ours.include_path or str(TASK_FOLDER)]
    if runs:
        if ours.data is not None:
            rest += ["--metadata", json.dumps({"data": ours.data})]
        if ours.allow_code_execution:
            rest += ["--confirm_run_unsafe_code"]
    allow_code_execution(ours.allow_code_execution)
    return rest or ["--help"]


def main(arguments: Sequence[str] | None = None) -> None:
    """Registers the model and hands over to lm-eval."""
    try:
        require_lm_eval()
    except ModuleNotFoundError as error:
        sys.exit(f"error: {error}")
    from lm_eval.__main__ import cli_evaluate  # pyright: ignore[reportMissingImports]  # an extra

    import depcap_jax.evaluation.harness.lm  # noqa: F401  # registers the model

    try:
        sys.argv = ["lm-eval", *lm_eval_arguments(sys.argv[1:] if arguments is None else arguments)]
        cli_evaluate()
    # A setting that is unknown or out of range, data that is not there, a file that cannot be written.
    except (ValueError, OSError) as error:
        unsafe = "unsafe" in str(error) and "confirm_run_unsafe_code" in str(error)
        sys.exit(f"error: {'the task runs model-written code: --allow-code-execution' if unsafe else error}")


if __name__ == "__main__":
    main()
