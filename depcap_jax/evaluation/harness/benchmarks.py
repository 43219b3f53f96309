"""Benchmarks through lm-eval: it makes the prompts from our task files, the engine decodes and scores."""

from __future__ import annotations

import importlib.util
import json
import logging
import os
from pathlib import Path
from typing import Any

from depcap_jax.evaluation.harness.data import SOURCES
from depcap_jax.evaluation.tasks import Problem, Task

TASK_FOLDER = Path(__file__).with_name("benchmark_tasks")
"""Our task files: `depcap_gsm8k` and so on, beside the stock tasks of lm-eval."""


def require_lm_eval() -> None:
    """Raises ModuleNotFoundError, naming the extra, if lm-eval is not installed."""
    if importlib.util.find_spec("lm_eval") is None:
        raise ModuleNotFoundError(
            f'the benchmarks {", ".join(SOURCES)} need lm-eval: pip install "depcap_jax[eval]"; '
            "the task tiny needs nothing"
        )


def load_benchmark(
    name: str, *, data: str | os.PathLike[str] | None = None, limit: int | None = None
) -> Task:
    """A benchmark's problems, with lm-eval's prompts and stop strings; see `load_task`."""
    require_lm_eval()
    from lm_eval.tasks import TaskManager  # pyright: ignore[reportMissingImports]  # an extra

    logging.getLogger("lm_eval").setLevel(logging.ERROR)  # it tells of things that nobody here can change
    metadata: Any = {} if data is None else {"data": os.fspath(data)}
    manager = TaskManager(include_path=TASK_FOLDER, include_defaults=False, metadata=metadata)
    task: Any = manager.load([f"depcap_{name}"])["tasks"][f"depcap_{name}"]
    task.build_all_requests(limit=limit)
    return Task(name, tuple(_problem(task, instance) for instance in task.instances))


def _problem(task: Any, instance: Any) -> Problem:
    prompt, settings = instance.args
    document = dict(instance.doc)
    return Problem(
        id=str(document.get("task_id", instance.doc_id)),
        prompt=prompt,
        score=lambda text: task.process_results(document, [text])["acc"],
        stop=tuple(settings["until"]),
        content=json.dumps(document, sort_keys=True),
    )
