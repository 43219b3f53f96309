"""The task of the embedded models: six kinds of small problems, alone or several at once, drawn from a seed.

`math` has exactly one right reply; `steps`, `choose`, `shuffle`, `story` and `code` have many, and the
training reply is drawn at random among them. Tokens of such a reply depend on each other: a decoder that
commits several of them at once, each on its own marginal, mixes two right replies into a wrong one.

Every text here is canonical: it is what the tokenizer decodes its own encoding to.
"""

from __future__ import annotations

import functools
import hashlib
import itertools
import random
from collections.abc import Callable, Iterable, Iterator

from depcap_jax.tiny import Problem
from depcap_jax.tiny.words import (
    ANIMALS,
    FRIENDS,
    FUNCTIONS,
    GAINS,
    LETTERS,
    LOSSES,
    NAMES,
    OPERATIONS,
    THINGS,
)
from training import vocabulary

# Some letters are likelier than others, as in people's programs.
_LETTER_WEIGHTS = (5, 4, 3, 2, 2, 1)
_FUNCTION_WEIGHTS = (5, 3, 2)

LONG_ANSWER = (60, 120)
"""Tokens of an answer to several things at once."""
LONG_PROMPT = 120
"""Tokens of such a prompt, at the most."""

_tokenizer = functools.cache(vocabulary.build)


def is_held_out(prompt: str) -> bool:
    """Whether a prompt belongs to the held-out sixteenth of all prompts; the others are for training."""
    return hashlib.sha256(prompt.encode()).digest()[0] % 16 == 0


def problems(
    seed: object, *, held_out: bool, kind: str | None = None, easiest: float = 1.0
) -> Iterator[Problem]:
    """An endless stream of one split, of one kind or of all in the proportions of `KINDS`.

    Each problem has a level between `easiest` and 1, from short problems, and in `math` small numbers, to all
    of them; held-out problems have level 1.
    """
    rng = random.Random(repr((seed, held_out, kind)))
    names, weights = list(KINDS), [share for share, _ in KINDS.values()]
    while True:
        chosen = kind or rng.choices(names, weights)[0]
        prompt, answer = KINDS[chosen][1](rng, rng.uniform(easiest, 1.0))
        if is_held_out(prompt) == held_out:
            yield Problem(chosen, prompt, answer)


def several(seed: object, *, held_out: bool, level: float = 1.0) -> Iterator[Problem]:
    """An endless stream of prompts that ask for several things of one split, each answered under its number.

    At level 1 answers have 60 to 120 tokens, at level 0 half of that.
    """
    rng = random.Random(repr((seed, held_out, "several")))
    single = problems((seed, "several"), held_out=held_out)
    least, most = (round(length * (1 + level) / 2) for length in LONG_ANSWER)
    while True:
        goal, parts = rng.randint(least, most), []
        while len(parts) < 2 or _tokens(_numbered(p.answer for p in parts)) < goal:
            parts.append(next(single))
        prompt, answer = (
            _numbered(texts) for texts in zip(*((p.prompt, p.answer) for p in parts), strict=True)
        )
        if least <= _tokens(answer) <= most and _tokens(prompt) <= LONG_PROMPT:
            yield Problem("several", prompt, answer)


def _numbered(texts: Iterable[str]) -> str:
    return "\n".join(f"{number}. {text}" for number, text in enumerate(texts, 1))


def _tokens(text: str) -> int:
    return len(_tokenizer().encode(text).ids)


def draw_long_held_out(count: int = 400) -> list[Problem]:
    """The held-out problems that ask for several things; no part of them is of the training split."""
    return list(itertools.islice(several("held-out", held_out=True), count))


def draw_held_out(count: int = 500) -> list[Problem]:
    """The held-out problems that ship with the package: no prompt twice, kinds by their shares, shuffled."""
    chosen: list[Problem] = []
    for kind, (share, _) in KINDS.items():
        drawn = itertools.islice(problems("held-out", held_out=True, kind=kind), 2 * count)
        unique = {problem.prompt: problem for problem in drawn}
        chosen += list(unique.values())[: count * share // 100]
    random.Random(0).shuffle(chosen)
    return chosen


def _up_to(rng: random.Random, low: int, high: int, level: float) -> int:
    """A number from `low` to the part of the way to `high` that `level` has reached."""
    return rng.randint(low, low + round(level * (high - low)))


def _math(rng: random.Random, level: float) -> tuple[str, str]:
    name, things, total = rng.choice(NAMES), rng.choice(THINGS), rng.randint(10, 90)
    told, steps = [f"{name} has {total} {things}."], []
    for _ in range(_up_to(rng, 1, 3, level)):
        # Totals keep two digits, so that the shape of a reply can be read off its prompt.
        amount = _up_to(rng, 2, 9, level)
        new = rng.choice([n for n in (total - amount, total + amount) if 10 <= n <= 99])
        told.append(f"{name} {rng.choice(GAINS if new > total else LOSSES)} {amount}.")
        steps.append(f"{total} {'+' if new > total else '-'} {amount} = {new}")
        total = new
    told.append(f"How many {things} does {name} have?")
    return " ".join(told), "\n".join([*steps, f"#### {total}"])


def _total(rng: random.Random, low: int, high: int) -> int:
    """A number from `low` to `high` whose units are 1 to 8: from it, its ten has room both ways."""
    return rng.choice([n for n in range(low, high + 1) if 1 <= n % 10 <= 8])


def _new_total(rng: random.Random, total: int) -> int:
    """Any other number of the same ten."""
    ten = total - total % 10
    return rng.choice([n for n in range(ten, ten + 10) if n != total])


def _steps(rng: random.Random, level: float) -> tuple[str, str]:
    count, start = _up_to(rng, 2, 4, level), _total(rng, 10, 99)
    total, lines = start, []
    for _ in range(count):
        new = _new_total(rng, total)
        lines.append(f"{total} {'+' if new > total else '-'} {abs(new - total)} = {new}")
        total = new
    return f"Go from {start} {rng.choice(THINGS)} in {count} steps.", "\n".join(lines)


def _choose(rng: random.Random, level: float) -> tuple[str, str]:
    count = _up_to(rng, 2, 4, level)
    items = rng.sample(ANIMALS, count + rng.randint(1, 2))
    picked = [items[i] for i in sorted(rng.sample(range(len(items)), count))]
    return f"Choose {count} of these in order: {', '.join(items)}.", f"I choose {', '.join(picked)}."


def _shuffle(rng: random.Random, level: float) -> tuple[str, str]:
    items = rng.sample(ANIMALS, _up_to(rng, 3, 4, level))
    order = rng.sample(items, len(items))
    rule = rng.choice([f" Put {order[0]} first.", f" Put {order[-1]} last.", "", ""])
    return f"Shuffle these: {', '.join(items)}.{rule}", f"{', '.join(order)}."


def _story(rng: random.Random, level: float) -> tuple[str, str]:
    hero, things, total = rng.choice(NAMES), rng.choice(THINGS), _total(rng, 20, 80)
    count = rng.choices((1, 2, 3, 4), (4, 3 * level, 2 * level, level))[0]
    prompt = f"Tell a story about {hero}, {total} {things} and {count} visit{'s' if count > 1 else ''}."
    told = [f"{hero} had {total} {things}."]
    for _ in range(count):
        friend, new = rng.choice(FRIENDS), _new_total(rng, total)
        giver, taker = (hero, friend) if new < total else (friend, hero)
        told += [
            # Equally long, so that what follows stands at the same distance from the prompt.
            rng.choice([f"{hero} met {friend}.", f"{friend} met {hero}.", f"Then {friend} came."]),
            f"{giver} gave {taker} {abs(new - total)} {things}.",
            f"{taker} thanked {giver}.",
            f"{rng.choice(['Now', 'So'])} {hero} has {new} {things}.",
        ]
        total = new
    return prompt, " ".join(told)


def _code(rng: random.Random, level: float) -> tuple[str, str]:
    operations = [(rng.choice(list(OPERATIONS)), rng.randint(1, 9)) for _ in range(_up_to(rng, 2, 4, level))]
    names: list[str] = []
    while len(names) <= len(operations):
        name = rng.choices(LETTERS, _LETTER_WEIGHTS)[0]
        if name not in names:
            names.append(name)
    lines = [f"def {rng.choices(FUNCTIONS, _FUNCTION_WEIGHTS)[0]}({names[0]}):"]
    for (operation, number), old, new in zip(operations, names, names[1:], strict=False):
        lines.append(f"    {new} = {old} {OPERATIONS[operation]} {number}")
    lines.append(f"    return {names[-1]}")
    asked = ", ".join(f"{operation} {number}" for operation, number in operations)
    return f"Write code: {asked}.", "\n".join(lines)


KINDS: dict[str, tuple[int, Callable[[random.Random, float], tuple[str, str]]]] = {
    "math": (24, _math),
    "steps": (16, _steps),
    "choose": (12, _choose),
    "shuffle": (14, _shuffle),
    "story": (18, _story),
    "code": (16, _code),
}
"""Each kind's share in percent and its generator of a prompt and one right reply."""
