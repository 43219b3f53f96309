"""The checkers: each reads the prompt alone and accepts every right reply to it and nothing else.

A right reply, by kind:

- math: a line per sentence that changes the total, in their order, then `#### ` and the last total.
- steps: as many lines as asked, each adding or subtracting 1 to 9 from the total of the line before.
- choose: as many of the animals as asked, in the prompt's order, no place twice.
- shuffle: all of the animals, each once, in any order that keeps the rule, if there is one.
- story: the opening, then as many visits as asked; who gives, who takes and what is left must agree.
- code: a function with a line per operation, in their order; every line takes the latest value.
- several: a right reply to each of the prompts that are asked in one, numbered as they are.
"""

from __future__ import annotations

import keyword
import re
from collections.abc import Callable

from depcap_jax.tiny.words import FRIENDS, GAINS, LOSSES, NAMES, OPERATIONS


def check(kind: str, prompt: str, reply: str) -> bool:
    """True if and only if `reply`, but for white space at its ends, is a right reply to `prompt`.

    Raises:
      ValueError: if the kind is unknown or the prompt is not one of its prompts.
    """
    if kind not in _CHECKERS:
        raise ValueError(f"kind must be one of {', '.join(_CHECKERS)}, got {kind!r}")
    return _CHECKERS[kind](prompt, reply.strip())


def _one_of(*tables: tuple[str, ...]) -> str:
    return f"(?:{'|'.join(word for table in tables for word in table)})"


_NAME = _one_of(NAMES, FRIENDS)
_EVENT = rf"{_one_of(GAINS, LOSSES)} [0-9]+\."
_LIST = "[a-z]+(?:, [a-z]+)*"
_OPERATION = rf"{_one_of(tuple(OPERATIONS))} [0-9]"


def _read(pattern: str, prompt: str) -> re.Match[str]:
    match = re.fullmatch(pattern, prompt)
    if match is None:
        raise ValueError(f"not a prompt of this kind: {prompt!r}")
    return match


def _math(prompt: str, reply: str) -> bool:
    told = _read(rf"({_NAME}) has ([0-9]+) ([a-z]+)\.((?: \1 {_EVENT})+) How many \3 does \1 have\?", prompt)
    total, lines = int(told[2]), []
    for event in told[4].removesuffix(".").split("."):
        _, verb, amount = event.split()
        sign, change = ("+", int(amount)) if verb in GAINS else ("-", -int(amount))
        lines.append(f"{total} {sign} {amount} = {total + change}")
        total += change
    return reply == "\n".join([*lines, f"#### {total}"])


def _steps(prompt: str, reply: str) -> bool:
    total, count = map(int, _read(r"Go from ([0-9]+) [a-z]+ in ([0-9]+) steps\.", prompt).groups())
    lines = reply.split("\n")
    for line in lines:
        step = re.fullmatch(r"[0-9]+ ([+-]) ([1-9]) = [0-9]+", line)
        new = total + int(step[1] + step[2]) if step else total
        # Compared as it is written: a total with a leading zero has the right value and is wrong.
        if step is None or line != f"{total} {step[1]} {step[2]} = {new}":
            return False
        total = new
    return len(lines) == count


def _choose(prompt: str, reply: str) -> bool:
    asked = _read(rf"Choose ([0-9]+) of these in order: ({_LIST})\.", prompt)
    said = re.fullmatch(rf"I choose ({_LIST})\.", reply)
    if said is None:
        return False
    picked, rest = said[1].split(", "), iter(asked[2].split(", "))
    # `in` consumes the iterator, so each pick must stand after the one before.
    return len(picked) == int(asked[1]) and all(item in rest for item in picked)


def _shuffle(prompt: str, reply: str) -> bool:
    asked = _read(rf"Shuffle these: ({_LIST})\.(?: Put ([a-z]+) (first|last)\.)?", prompt)
    order = reply.removesuffix(".").split(", ")
    placed = asked[2] is None or order[0 if asked[3] == "first" else -1] == asked[2]
    return reply.endswith(".") and sorted(order) == sorted(asked[1].split(", ")) and placed


def _story(prompt: str, reply: str) -> bool:
    hero, number, things, count = _read(
        rf"Tell a story about ({_NAME}), ([0-9]+) ([a-z]+) and ([0-9]+) visits?\.", prompt
    ).groups()
    opening = f"{hero} had {number} {things}."
    if not reply.startswith(opening):
        return False
    total, position, visits = int(number), len(opening), 0
    visit = re.compile(
        rf" (?:{hero} met (?P<a>{_NAME})|(?P<b>{_NAME}) met {hero}|Then (?P<c>{_NAME}) came)\."
        rf" (?P<giver>{_NAME}) gave (?P<taker>{_NAME}) (?P<amount>[1-9][0-9]?) {things}\."
        rf" (?P=taker) thanked (?P=giver)\. (?:Now|So) {hero} has (?P<total>[0-9]+) {things}\."
    )
    while position < len(reply):
        told = visit.match(reply, position)
        if told is None:
            return False
        friend = told["a"] or told["b"] or told["c"]
        if {told["giver"], told["taker"]} != {hero, friend} or friend == hero:
            return False
        visits += 1
        total += int(told["amount"]) * (1 if told["taker"] == hero else -1)
        if told["total"] != str(total):
            return False
        position = told.end()
    return visits == int(count)


def _code(prompt: str, reply: str) -> bool:
    asked = _read(rf"Write code: ({_OPERATION}(?:, {_OPERATION})*)\.", prompt)[1].split(", ")
    head, *body = reply.split("\n")
    defined = re.fullmatch(r"def ([a-z]+)\(([a-z]+)\):", head)
    if defined is None or len(body) != len(asked) + 1:
        return False
    names = [defined[1], defined[2]]
    for line, operation in zip(body, asked, strict=False):
        word, number = operation.split()
        # A name may be used again: what counts is that each line takes the latest value.
        assigned = re.fullmatch(rf"    ([a-z]+) = {names[-1]} {re.escape(OPERATIONS[word])} {number}", line)
        if assigned is None:
            return False
        names.append(assigned[1])
    return body[-1] == f"    return {names[-1]}" and not any(map(keyword.iskeyword, names))


def _several(prompt: str, reply: str) -> bool:
    asked, given = _numbered(prompt), _numbered(reply)
    given += [""] * (len(asked) - len(given))
    if len(asked) < 2:
        raise ValueError(f"not a prompt of this kind: {prompt!r}")
    # All are checked, also those without a reply: a prompt of no kind is refused.
    right = [_CHECKERS[_kind_of(part)](part, reply) for part, reply in zip(asked, given, strict=False)]
    return len(given) == len(asked) and all(right)


def _numbered(text: str) -> list[str]:
    """The parts of a text whose lines begin with "1. ", "2. " and so on; none if they do not."""
    number, *pieces = re.split(r"(?:\A|\n)([0-9])\. ", text)
    numbers, parts = pieces[::2], pieces[1::2]
    right = number == "" and numbers == [str(n) for n in range(1, len(numbers) + 1)]
    return parts if right else []


def _kind_of(prompt: str) -> str:
    """The kind that a prompt is of, read off its first word."""
    for opening, kind in _OPENINGS.items():
        if prompt.startswith(f"{opening} "):
            return kind
    return "math"


_OPENINGS = {"Go": "steps", "Choose": "choose", "Shuffle": "shuffle", "Tell": "story", "Write": "code"}
_CHECKERS: dict[str, Callable[[str, str], bool]] = {
    "math": _math,
    "steps": _steps,
    "choose": _choose,
    "shuffle": _shuffle,
    "story": _story,
    "code": _code,
    "several": _several,
}
