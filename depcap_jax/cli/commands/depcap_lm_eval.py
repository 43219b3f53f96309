"""`depcap lm-eval`: lm-eval's own command line, with the model `depcap` and our tasks in it.

Three options are ours: `--data FOLDER` (JSONL files instead of the hub), `--allow-code-execution` and
`--unsafe-code-execution`. All others are lm-eval's; its `--include_path` takes the place of our tasks.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence

from depcap_jax.evaluation.harness.benchmarks import TASK_FOLDER, require_lm_eval
from depcap_jax.evaluation.scoring.benchmark_scores import allow_code_execution, require_code_execution

EXAMPLES = """
  depcap lm-eval --model depcap --model_args pretrained=M,recipe=depcap,cache=dual --tasks depcap_gsm8k
  depcap lm-eval --model depcap --model_args pretrained=M --tasks depcap_math500 --data FOLDER
  depcap lm-eval run --help                        # lm-eval's options; depcap lm-eval ls tasks: its tasks
"""

_OTHER_COMMANDS = ("ls", "validate")
"""lm-eval's own commands that evaluate nothing."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds what is shown as help; the words themselves are another program's and are not parsed here."""
    parser.add_argument(
        "words",
        nargs=argparse.REMAINDER,
        metavar="...",
        help="lm-eval's options, and three of ours: --data FOLDER, with JSONL files instead of the hub, "
        "--allow-code-execution, to let mbpp and humaneval run what the model writes in a sandbox, and "
        "--unsafe-code-execution, to let them also where no sandbox works",
    )


def run(arguments: argparse.Namespace) -> None:
    """Registers the model and hands over to lm-eval."""
    require_lm_eval()
    from lm_eval.__main__ import cli_evaluate  # pyright: ignore[reportMissingImports]  # an extra

    import depcap_jax.evaluation.harness.lm  # noqa: F401  # registers the model

    sys.argv = ["lm-eval", *lm_eval_arguments(arguments.words)]
    try:
        cli_evaluate()
    except ValueError as error:
        if "unsafe" in str(error) and "confirm_run_unsafe_code" in str(error):
            raise ValueError("the task runs model-written code: --allow-code-execution") from None
        raise


def lm_eval_arguments(words: Sequence[str]) -> list[str]:
    """What lm-eval is to be told; our own options take effect here.

    Raises:
      ValueError: if one of ours would have no effect, or code would be run without permission.
    """
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    parser.add_argument("--data")
    parser.add_argument("--include_path")
    parser.add_argument("--allow-code-execution", action="store_true")
    parser.add_argument("--unsafe-code-execution", action="store_true")
    ours, rest = parser.parse_known_args(words)
    allowed = ours.allow_code_execution or ours.unsafe_code_execution
    runs = bool(rest) and rest[0] not in _OTHER_COMMANDS and not {"-h", "--help"} & set(rest)
    if "--confirm_run_unsafe_code" in rest and not allowed:
        raise ValueError("model-written code is run only with --allow-code-execution")
    if (ours.data is not None or allowed) and not runs:
        raise ValueError(
            "--data and --allow-code-execution belong to an evaluation: --model depcap --tasks ..."
        )
    allow_code_execution(ours.allow_code_execution, unsafe=ours.unsafe_code_execution)
    if runs or ours.include_path:
        rest += ["--include_path", ours.include_path or str(TASK_FOLDER)]
    metadata = {} if ours.data is None else {"data": ours.data}
    if allowed:
        rest += ["--confirm_run_unsafe_code"]
        metadata["sandbox"] = require_code_execution("lm-eval")  # for its record
    if metadata:
        rest += ["--metadata", json.dumps(metadata)]
    return rest or ["--help"]
