"""Is the answer right? One function per benchmark: its document and a model's text in, 1.0 or 0.0 out.

GSM8K: the number after the last `####`, else the last number, equals the reference's. MATH-500: the last
boxed expression equals the reference answer, spelling aside. MBPP and HumanEval: the program passes
every test, in the sandbox. An empty answer is always wrong.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from depcap_jax.evaluation.scoring.answers import find_expression, find_number, same_expression
from depcap_jax.evaluation.scoring.programs import complete_function, find_code
from depcap_jax.evaluation.scoring.sandbox import (
    UNGUARDED,
    CodeExecutionError,
    find_guard,
    run_program,
)

Document = Mapping[str, Any]
Scorer = Callable[[Document, str], float]

_permission = ""  # or "allow", or "unsafe"
_guard = ""  # once it was looked for


def allow_code_execution(allowed: bool = True, *, unsafe: bool = False) -> None:
    """Lets the scorers of this process run model-written code in the sandbox; they refuse to otherwise.

    Args:
      allowed: False forbids it again.
      unsafe: also where no sandbox works: the code may then do whatever you may.
    """
    global _permission, _guard
    _permission, _guard = "unsafe" if unsafe else "allow" if allowed else "", ""


def require_code_execution(task: str) -> str:
    """The guard that code runs behind: one of the sandbox's, or "none" where none works and that is allowed.

    Raises:
      CodeExecutionError: if nobody allowed it, or if no sandbox works here and nobody allowed that.
    """
    global _guard
    if not _permission:
        raise CodeExecutionError(
            f"task {task!r} runs code that the model writes: in a sandbox (time, memory, files and processes "
            "limited, no network), but on this machine. Allow it with --allow-code-execution, or "
            "in a program with allow_code_execution()"
        )
    try:
        _guard = _guard or find_guard()
    except CodeExecutionError as error:
        if _permission != "unsafe":
            raise CodeExecutionError(
                f"task {task!r} runs code that the model writes, and {error}, or let it do whatever you may "
                "with --unsafe-code-execution, or in a program with allow_code_execution(unsafe=True)"
            ) from None
        _guard = UNGUARDED
    return _guard


def score_gsm8k(document: Document, answer: str) -> float:
    """Whether the final number is that of `document["answer"]`."""
    return float(answer.strip() != "" and find_number(answer) == find_number(document["answer"]))


def score_math500(document: Document, answer: str) -> float:
    """Whether the final expression is `document["answer"]`."""
    expression = find_expression(answer)
    return float(expression is not None and same_expression(expression, document["answer"]))


def score_mbpp(document: Document, answer: str) -> float:
    """Whether the program passes `document["test_list"]`."""
    tests = "\n".join([document.get("test_setup_code") or "", *document["test_list"]])
    return _passes("mbpp", answer, find_code(answer), tests)


def score_humaneval(document: Document, answer: str) -> float:
    """Whether the function that `document["prompt"]` begins passes `document["test"]`."""
    prompt, name = document["prompt"], document["entry_point"]
    # The prompt's own helpers are the tests' too; the function itself is the program's.
    tests = f"{prompt}    pass\ndel {name}\n{document['test']}\ncheck({name})\n"
    return _passes("humaneval", answer, complete_function(prompt, answer, name), tests)


def _passes(task: str, answer: str, program: str, tests: str) -> float:
    guard = require_code_execution(task)
    return float(answer.strip() != "" and run_program(program, tests, guard=guard).passed)


SCORERS: dict[str, Scorer] = {
    "gsm8k": score_gsm8k,
    "math500": score_math500,
    "mbpp": score_mbpp,
    "humaneval": score_humaneval,
}
CODE_TASKS = ("mbpp", "humaneval")
