"""Evaluation: how right and how fast is a decoder, on a task, with the model at hand?

What the numbers mean, everywhere in this package and in all that it writes:

- *accuracy*: the share of problems whose answer the task's scorer accepts. Behind ± stands its standard
  error: how far it would move with other problems of the kind.
- *tokens*: visible tokens: the end-of-text token and what follows it do not count, nor does the prompt. A
  task's stop string cuts the text that is scored, not the tokens that are counted: they were decoded.
- *seconds*: time of generation, from ids to ids. Compilation is excluded and reported apart, and so are
  tokenising and scoring. A batch's seconds are shared equally among its problems.
- *tokens per second*: all tokens of a run over all of its seconds.
- *nfe*: forward passes per problem, also those spent on what follows the visible answer; its mean.
- *tokens per pass*: all tokens of a run over all of its forward passes.
- *AUP*: accuracy under parallelism, one number for what a rule keeps right as its threshold makes it faster;
  `accuracy_under_parallelism` defines it.
- *speed-up*: tokens per second, divided by those of `vanilla` without a cache in the same run.

`evaluate` is the one engine: `depcap eval`, `table`, `sweep` and `demo` call it once per line, so the same
decoder gives the same numbers in all of them. `harness/` has this library's models and tasks for lm-eval.
"""

from depcap_jax.evaluation.decoder import Decoder as Decoder
from depcap_jax.evaluation.engine import Run as Run, Subject as Subject, evaluate as evaluate
from depcap_jax.evaluation.figures import plot_frontier as plot_frontier
from depcap_jax.evaluation.frontier import (
    accuracy_under_parallelism as accuracy_under_parallelism,
    frontier as frontier,
    score_families as score_families,
)
from depcap_jax.evaluation.grid import cross_decoders as cross_decoders
from depcap_jax.evaluation.scoring.benchmark_scores import allow_code_execution as allow_code_execution
from depcap_jax.evaluation.scoring.sandbox import (
    CodeExecutionError as CodeExecutionError,
    Limits as Limits,
    Outcome as Outcome,
    find_guard as find_guard,
    run_program as run_program,
)
from depcap_jax.evaluation.tasks import (
    TASKS as TASKS,
    Problem as Problem,
    Task as Task,
    load_task as load_task,
)
