"""What is asked, and when an answer is right: the embedded models' own problems, or a benchmark."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Callable

from depcap_jax.decoding.policy import check_integer
from depcap_jax.evaluation.provenance import fingerprint
from depcap_jax.evaluation.scoring.answers import cut_at
from depcap_jax.evaluation.scoring.benchmark_scores import CODE_TASKS, SCORERS, require_code_execution
from depcap_jax.text.codec import Prompt

_EMBEDDED = {"tiny": False, "tiny-long": True}
"""Whether a task of the embedded models is the one whose prompts ask for several things at once."""

TASKS = (*_EMBEDDED, *SCORERS)
"""The tasks by name."""


@dataclasses.dataclass(frozen=True)
class Problem:
    """One question of a task."""

    id: str
    prompt: Prompt
    """A text or a conversation; examples included."""
    score: Callable[[str], float]
    """1.0 for a right answer, 0.0 for a wrong one."""
    stop: tuple[str, ...] = ()
    """Whatever follows the first of these in an answer is not part of it."""
    content: str = ""
    """What else makes it this problem, such as its reference: a change of it makes another run."""

    def cut(self, text: str) -> str:
        """An answer up to the first stop string."""
        return cut_at(text, self.stop)


@dataclasses.dataclass(frozen=True)
class Task:
    """A task's problems, in order."""

    name: str
    problems: tuple[Problem, ...]
    sandbox: str | None = None
    """What guards this machine from the code that its scorers run, if they run any."""

    @property
    def fingerprint(self) -> str:
        """A hash of all that is asked; the model's ids of it have one of their own."""
        content = [[p.id, p.prompt, p.stop, p.content] for p in self.problems]
        return fingerprint([self.name, content])


def load_task(name: str, *, data: str | os.PathLike[str] | None = None, limit: int | None = None) -> Task:
    """A task by name.

    Args:
      name: one of `TASKS`. `tiny` and `tiny-long` are part of the package; the others come through lm-eval.
      data: a folder with the benchmark's JSONL files; None takes them from the hub.
      limit: the first so many problems only.

    Raises:
      ValueError: if the name is unknown, the limit is not positive, or a file is missing.
      CodeExecutionError: if the task runs model-written code, and nobody allowed it or no sandbox works here.
      ModuleNotFoundError: if lm-eval is needed and not installed.
    """
    if name not in TASKS:
        raise ValueError(f"unknown task {name!r}; known: {', '.join(TASKS)}")
    if limit is not None:
        check_integer("limit", limit, 1)
    # Now, and not after an hour of decoding.
    sandbox = require_code_execution(name) if name in CODE_TASKS else None
    if name in _EMBEDDED:
        if data is not None:
            raise ValueError(
                f"task {name!r} is part of the package and takes no data folder, got {str(data)!r}"
            )
        from depcap_jax.tiny import held_out

        problems = (
            Problem(f"{index}", p.prompt, lambda text, p=p: float(p.check(text)), content=p.kind)
            for index, p in enumerate(held_out(long=_EMBEDDED[name])[:limit])
        )
        return Task(name, tuple(problems))
    from depcap_jax.evaluation.harness.benchmarks import load_benchmark

    return dataclasses.replace(load_benchmark(name, data=data, limit=limit), sandbox=sandbox)
