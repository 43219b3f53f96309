"""What caches cost and give on an embedded model: `python -m benchmarks.caches --help`.

Every line is one decoder over the same held-out problems, in one run: what is right, what is the same answer
as without a cache, the passes, and the time as a ratio to decoding without a cache. Times on shared machines
vary by a tenth; the rest does not.
"""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Iterator
from typing import Any

import depcap_jax as dc
from depcap_jax.evaluation.decoder import Decoder
from depcap_jax.evaluation.engine import Subject, evaluate
from depcap_jax.evaluation.tasks import Problem, Task, load_task
from depcap_jax.tiny import held_out

MARGINS = (0, 4, 8, 16, 24, 32)


Settings = dict[str, int]


def margins(policy: type[dc.Cache]) -> Iterator[Settings]:
    """Margins before the block, then behind it."""
    yield from ({"margin": margin} for margin in MARGINS)
    if policy is dc.DualCache:
        yield from ({"margin": 24, "margin_after": after} for after in (8, 24))
        yield {"margin_after": 24}


def block_starts(policy: type[dc.Cache]) -> Iterator[Settings]:
    """Cheaper block starts, each with the margins that cost no accuracy."""
    near = {"margin": 24, "margin_after": 24} if policy is dc.DualCache else {"margin": 24}
    yield near
    yield from ({**near, "prompt_every": every} for every in (2, 4, 1000))
    yield from ({**near, "refresh_after": tokens} for tokens in (16, 32))
    yield {**near, "prompt_every": 1000, "refresh_after": 16}


def few_shot(tokenizer: Any, model: dc.Transformer, limit: int, tokens: int, gen_length: int) -> Task:
    """Held-out problems with short answers, behind solved ones of their kind: prompts of `tokens` or more."""
    problems, made = held_out(), []
    room = model.config.max_length - gen_length

    def length(turns: list[dict[str, str]]) -> int:
        return len(tokenizer.apply_chat_template(turns, add_generation_prompt=True, return_dict=False))

    for index, problem in enumerate(problems):
        turns = [{"role": "user", "content": problem.prompt}]
        for other in (*problems[index + 1 :], *problems[:index]):
            shown = [
                {"role": "user", "content": other.prompt},
                {"role": "assistant", "content": other.answer},
            ]
            if other.kind == problem.kind and length([*shown, *turns]) <= room:
                turns = [*shown, *turns]
            if length(turns) >= tokens:
                break
        if length(turns) >= tokens and len(tokenizer(problem.answer)["input_ids"]) < gen_length:
            made.append(Problem(f"{index}", turns, lambda text, p=problem: float(p.check(text))))
        if len(made) == limit:
            break
    return Task("tiny, few-shot", tuple(made))


def main() -> None:
    """Prints a line per cache, the first of them without one."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("what", choices=("margins", "block-starts"))
    parser.add_argument("--model", default="tiny-llada", help="default: %(default)s")
    parser.add_argument("--problems", type=int, default=200, metavar="N", help="default: %(default)s")
    parser.add_argument("--batch-size", type=int, default=20, metavar="N", help="default: %(default)s")
    parser.add_argument(
        "--prompt-tokens", type=int, default=0, metavar="N", help="solved problems before each"
    )
    arguments = parser.parse_args()
    model, tokenizer = dc.load(arguments.model, dtype="float32")
    subject = Subject(arguments.model, model, tokenizer, batch_size=arguments.batch_size)
    few = arguments.prompt_tokens
    gen_length = 32 if few else 96
    if few:
        task = few_shot(tokenizer, model, arguments.problems, few, gen_length)
    else:
        task = load_task("tiny", limit=arguments.problems)
    print(
        f"{arguments.model}, {len(task.problems)} problems, answers of {gen_length}, prompts of {few} or more"
    )
    print(f"{'cache':64}{'right':>8}{'same':>8}{'passes':>8}{'time':>7}", flush=True)
    choose = margins if arguments.what == "margins" else block_starts
    first = None
    for policy in (dc.NoCache, dc.PrefixCache, dc.DualCache):
        for settings in [{}] if policy is dc.NoCache else choose(policy):
            decoder = Decoder("depcap", {"cache": policy(**settings), "gen_length": gen_length})
            run = evaluate(subject, task, decoder)
            first = first or run
            pairs = zip(run.content["problems"], first.content["problems"], strict=True)
            same = statistics.mean(a["answer"] == b["answer"] for a, b in pairs)
            seconds = run.summary["seconds"] / first.summary["seconds"]
            name = f"{policy.__name__}({', '.join(f'{key}={value}' for key, value in settings.items())})"
            shares = "".join(f"{f'{100 * share:.1f} %':>8}" for share in (run.summary["accuracy"], same))
            print(f"{name:64}{shares}{run.summary['nfe']:8.1f}{seconds:7.2f}", flush=True)


if __name__ == "__main__":
    main()
