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
from depcap_jax.evaluation.scoring.sandbox import CodeExecutionError, run_program

Document = Mapping[str, Any]
Scorer = Callable[[Document, str], float]

_permitted = False


def allow_code_execution(allowed: bool = True) -> None:
    """Lets the scorers of this process run model-written code, in the sandbox; they refuse to otherwise."""
    global _permitted
    _permitted = allowed


def require_code_execution(task: str) -> None:
    """Raises `CodeExecutionError` unless `allow_code_execution` was called."""
    if not _permitted:
        raise CodeExecutionError(
            f"task {task!r} runs code that the model writes: in a sandbox (time, memory, files and processes "
            "limited, no network), but on this machine. Allow it with --allow-code-execution, or "
            "in a program with allow_code_execution()"
        )


def score_gsm8k(document: Document, answer: str) -> float:
    """Whether the final number is that of `document["answer"]`."""
    return float(answer.strip() != "" and find_number(answer) == find_number(document["answer"]))


def score_math500(document: Document, answer: str) -> float:
    """Whether the final expression is `document["answer"]`."""
    expression = find_expression(answer)
    return float(expression is not None and same_expression(expression, document["answer"]))


def score_mbpp(document: Document, answer: str) -> float:
    """Whether the program passes `document["test_list"]`."""
    require_code_execution("mbpp")
    if not answer.strip():
        return 0.0
    tests = "\n".join([document.get("test_setup_code") or "", *document["test_list"]])
    return float(run_program([find_code(answer), tests]).passed)


def score_humaneval(document: Document, answer: str) -> float:
    """Whether the function that `document["prompt"]` begins passes `document["test"]`."""
    require_code_execution("humaneval")
    if not answer.strip():
        return 0.0
    name = document["entry_point"]
    program = complete_function(document["prompt"], answer, name)
    return float(run_program([program, f"{document['test']}\ncheck({name})\n"]).passed)


SCORERS: dict[str, Scorer] = {
    "gsm8k": score_gsm8k,
    "math500": score_math500,
    "mbpp": score_mbpp,
    "humaneval": score_humaneval,
}
CODE_TASKS = ("mbpp", "humaneval")
