"""What caches cost and give on an embedded model: `python -m benchmarks.caches --help`.

Every line is one decoder over the same held-out problems, in one run: what is right, the passes, and the time
as a ratio to decoding without a cache. Times on shared machines vary by a tenth; passes and answers do not.
"""

from __future__ import annotations

import argparse
import dataclasses
from collections.abc import Iterator
from typing import Any

import depcap_jax as dc
from depcap_jax.evaluation.decoder import Decoder
from depcap_jax.evaluation.engine import Subject, evaluate
from depcap_jax.evaluation.tasks import Problem, Task, load_task
from depcap_jax.tiny import held_out

MARGINS = (0, 4, 8, 16, 24, 32)


def margins() -> Iterator[dc.Cache]:
    """Margins before the block, then behind it."""
    for policy in (dc.PrefixCache, dc.DualCache):
        yield from (policy(margin=margin) for margin in MARGINS)
    yield from (dc.DualCache(margin=24, margin_after=after) for after in (8, 24))
    yield dc.DualCache(margin_after=24)


def block_starts() -> Iterator[dc.Cache]:
    """Cheaper block starts, each with the margin that costs no accuracy."""
    for policy in (dc.PrefixCache, dc.DualCache):
        yield policy(margin=24)
        yield from (policy(margin=24, prompt_every=every) for every in (2, 4, 1000))
        yield from (policy(margin=24, refresh_after=tokens) for tokens in (16, 32))
        yield policy(margin=24, prompt_every=1000, refresh_after=16)


def few_shot(tokenizer: Any, model: dc.Transformer, limit: int, tokens: int, gen_length: int) -> Task:
    """Held-out problems with short answers, behind solved ones of their kind: prompts of `tokens` or more."""
    problems, made = held_out(), []
    room = model.config.max_length - gen_length

    def length(turns: list[dict[str, str]]) -> int:
        return len(tokenizer.apply_chat_template(turns, add_generation_prompt=True)["input_ids"])

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


def describe(cache: dc.Cache) -> str:
    """The cache by its class and the settings that differ from the paper's."""
    defaults = type(cache)()
    changed = {
        field.name: getattr(cache, field.name)
        for field in dataclasses.fields(cache)  # type: ignore[arg-type]  # policies are dataclasses
        if getattr(cache, field.name) != getattr(defaults, field.name)
    }
    return f"{type(cache).__name__}({', '.join(f'{name}={value}' for name, value in changed.items())})"


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
    model, tokenizer = dc.load(arguments.model)
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
    print(f"{'cache':64}{'right':>8}{'passes':>8}{'time':>7}", flush=True)
    slowest = None
    for cache in (dc.NoCache(), *(margins() if arguments.what == "margins" else block_starts())):
        summary = evaluate(
            subject, task, Decoder("depcap", {"cache": cache, "gen_length": gen_length})
        ).summary
        seconds = 1 / summary["tokens_per_second"]
        slowest = seconds if slowest is None else slowest
        right = f"{100 * summary['accuracy']:.1f} %"
        print(f"{describe(cache):64}{right:>8}{summary['nfe']:8.1f}{seconds / slowest:7.2f}", flush=True)


if __name__ == "__main__":
    main()
