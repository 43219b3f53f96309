"""The task of the embedded models: six kinds of small problems, drawn from a seed.

`math` has exactly one right reply; `steps`, `choose`, `shuffle`, `story` and `code` have many, and the
training reply is drawn at random among them. Tokens of such a reply depend on each other: a decoder that
commits several of them at once, each on its own marginal, mixes two right replies into a wrong one.

Every text here is canonical: it is what the tokenizer decodes its own encoding to.
"""

from __future__ import annotations

import dataclasses
import hashlib
import itertools
import random
from collections.abc import Callable, Iterator

from depcap_jax.tiny.check import check


def _words(text: str) -> tuple[str, ...]:
    return tuple(text.split())


NAMES = _words("Ann Bob Dan Eve Gus Ida Kim Leo")
THINGS = _words("apples books coins cups hats pens")
ANIMALS = _words("ant bee cat cow dog duck fox goat hen owl pig ram")
GAINS = ("buys", "finds", "gets")
LOSSES = ("drops", "loses", "sells")
OPERATIONS = {"add": "+", "minus": "-", "times": "*"}
LETTERS, LETTER_WEIGHTS = "xyzabc", (5, 4, 3, 2, 2, 1)
FUNCTIONS, FUNCTION_WEIGHTS = "fgh", (5, 3, 2)


@dataclasses.dataclass(frozen=True)
class Problem:
    """A prompt, the kind that says how replies are checked, and one right reply."""

    kind: str
    prompt: str
    answer: str

    def check(self, text: str) -> bool:
        """True if and only if `text` is a right reply, whole and without extras."""
        return check(self.kind, self.prompt, text)


def is_held_out(prompt: str) -> bool:
    """Whether a prompt belongs to the held-out sixteenth of all prompts; the others are for training."""
    return hashlib.sha256(prompt.encode()).digest()[0] % 16 == 0


def problems(
    seed: object, *, held_out: bool, kind: str | None = None, level: float = 1.0
) -> Iterator[Problem]:
    """An endless stream of one split, of one kind or of all in the proportions of `KINDS`.

    `level` in [0, 1] widens from short problems to long ones; the held-out problems have level 1.
    """
    rng = random.Random(repr((seed, held_out, kind)))
    names, weights = list(KINDS), [share for share, _ in KINDS.values()]
    while True:
        chosen = kind or rng.choices(names, weights)[0]
        prompt, answer = KINDS[chosen][1](rng, level)
        if is_held_out(prompt) == held_out:
            yield Problem(chosen, prompt, answer)


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
    """A count from `low` to the part of the way to `high` that `level` has reached."""
    return rng.randint(low, low + round(level * (high - low)))


def _math(rng: random.Random, level: float) -> tuple[str, str]:
    name, things = rng.choice(NAMES), rng.choice(THINGS)
    total = rng.randint(10, 40)
    told, steps = [f"{name} has {total} {things}."], []
    for _ in range(_up_to(rng, 1, 2, level)):
        event = rng.choice("+-*")
        if event == "*":
            bags, each = rng.choice([(b, e) for b in range(2, 4) for e in range(2, 4) if b * e <= 6])
            amount = bags * each
            told.append(f"{name} {rng.choice(GAINS)} {bags} bags of {each}.")
            steps.append(f"{bags} * {each} = {amount}")
        else:
            amount = rng.randint(2, 6)
            # Totals keep two digits, so that the shape of a reply can be read off its prompt.
            event = "-" if event == "-" and total - amount >= 10 else "+"
            if event == "-":
                told.append(f"{name} {rng.choice(LOSSES)} {amount}.")
            else:
                told.append(f"{name} {rng.choice(GAINS)} {amount} more.")
        new = total - amount if event == "-" else total + amount
        steps.append(f"{total} {'-' if event == '-' else '+'} {amount} = {new}")
        total = new
    told.append(f"How many {things} does {name} have?")
    return " ".join(told), "\n".join([*steps, f"#### {total}"])


def _steps(rng: random.Random, level: float) -> tuple[str, str]:
    count = rng.randint(5, 12) if level == 1 and rng.random() < 0.04 else _up_to(rng, 2, 4, level)
    start = rng.randint(10, 50)
    total, lines = start, []
    # Equally likely addends make every way to the same total equally likely.
    for _ in range(count):
        addend = rng.randint(1, 6)
        if total + addend > 99:
            return _steps(rng, level)
        lines.append(f"{total} + {addend} = {total + addend}")
        total += addend
    return f"Go from {start} to {total} in {count} steps.", "\n".join(lines)


def _choose(rng: random.Random, level: float) -> tuple[str, str]:
    count = _up_to(rng, 3, 4, level)
    items = rng.sample(ANIMALS, count + rng.randint(1, 2))
    picked = [items[i] for i in sorted(rng.sample(range(len(items)), count))]
    return f"Choose {count} of these in order: {', '.join(items)}.", f"I choose {', '.join(picked)}."


def _shuffle(rng: random.Random, level: float) -> tuple[str, str]:
    items = rng.sample(ANIMALS, _up_to(rng, 4, 5, level))
    order = rng.sample(items, len(items))
    rule = rng.choice([f" Put {order[0]} first.", f" Put {order[-1]} last.", "", ""])
    return f"Shuffle these: {', '.join(items)}.{rule}", f"{', '.join(order)}."


def _story(rng: random.Random, level: float) -> tuple[str, str]:
    hero, things, total = rng.choice(NAMES), rng.choice(THINGS), rng.randint(12, 40)
    count = rng.randint(2, 3) if level == 1 and rng.random() < 0.3 else 1
    prompt = f"Tell a story about {hero}, {total} {things} and {count} friend{'s' if count > 1 else ''}."
    told = [f"{hero} had {total} {things}."]
    for friend in rng.sample([name for name in NAMES if name != hero], count):
        gives = rng.random() < 0.5 and total > 11
        amount = rng.randint(2, min(6, total - 10)) if gives else rng.randint(2, 6)
        giver, taker = (hero, friend) if gives else (friend, hero)
        total += -amount if gives else amount
        told += [
            # Equally long, so that what follows stands at the same distance from the prompt.
            rng.choice([f"{hero} met {friend}.", f"{friend} met {hero}.", f"Then {friend} came."]),
            f"{giver} gave {taker} {amount} {things}.",
            f"{taker} thanked {giver}.",
            f"{rng.choice(['Now', 'So'])} {hero} has {total} {things}.",
        ]
    return prompt, " ".join(told)


def _code(rng: random.Random, level: float) -> tuple[str, str]:
    operations = [(rng.choice(list(OPERATIONS)), rng.randint(1, 9)) for _ in range(_up_to(rng, 2, 3, level))]
    names: list[str] = []
    while len(names) <= len(operations):
        name = rng.choices(LETTERS, LETTER_WEIGHTS)[0]
        if name not in names:
            names.append(name)
    lines = [f"def {rng.choices(FUNCTIONS, FUNCTION_WEIGHTS)[0]}({names[0]}):"]
    for (operation, number), old, new in zip(operations, names, names[1:], strict=False):
        lines.append(f"    {new} = {old} {OPERATIONS[operation]} {number}")
    lines.append(f"    return {names[-1]}")
    asked = ", ".join(f"{operation} {number}" for operation, number in operations)
    return f"Write code: {asked}.", "\n".join(lines)


KINDS: dict[str, tuple[int, Callable[[random.Random, float], tuple[str, str]]]] = {
    "math": (26, _math),
    "steps": (20, _steps),
    "choose": (12, _choose),
    "shuffle": (11, _shuffle),
    "story": (18, _story),
    "code": (13, _code),
}
"""Each kind's share in percent and its generator of a prompt and one right reply."""
