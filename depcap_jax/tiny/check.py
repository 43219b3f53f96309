"""The checkers: each reads the prompt alone and accepts every right reply to it and nothing else."""

from __future__ import annotations

import re
from collections.abc import Callable

_NAME = r"[A-Z][a-z]+"


def check(kind: str, prompt: str, reply: str) -> bool:
    """True if and only if `reply`, but for white space at its ends, is a right reply to `prompt`.

    Raises:
      ValueError: if the kind is unknown or the prompt is not one of its prompts.
    """
    if kind not in _CHECKERS:
        raise ValueError(f"kind must be one of {', '.join(_CHECKERS)}, got {kind!r}")
    return _CHECKERS[kind](prompt, reply.strip())


def _read(pattern: str, prompt: str) -> re.Match[str]:
    match = re.fullmatch(pattern, prompt)
    if match is None:
        raise ValueError(f"not a prompt of this kind: {prompt!r}")
    return match


def _math(prompt: str, reply: str) -> bool:
    told = _read(rf"({_NAME}) has (\d+) (\w+)\.((?: \1 [^.]+\.)+) How many \3 does \1 have\?", prompt)
    total, lines = int(told[2]), []
    for event in told[4].removesuffix(".").split("."):
        words = event.split()[1:]
        amount = int(words[1])
        if words[2:3] == ["bags"]:
            lines.append(f"{amount} * {words[4]} = {amount * int(words[4])}")
            amount *= int(words[4])
        elif words[2:] != ["more"]:
            amount = -amount
        lines.append(f"{total} {'-' if amount < 0 else '+'} {abs(amount)} = {total + amount}")
        total += amount
    return reply == "\n".join([*lines, f"#### {total}"])


def _steps(prompt: str, reply: str) -> bool:
    start, goal, count = map(int, _read(r"Go from (\d+) to (\d+) in (\d+) steps\.", prompt).groups())
    lines, total = reply.split("\n"), start
    for line in lines:
        step = re.fullmatch(rf"{total} \+ ([1-6]) = (\d+)", line)
        if step is None or int(step[2]) != total + int(step[1]):
            return False
        total += int(step[1])
    return len(lines) == count and total == goal


def _choose(prompt: str, reply: str) -> bool:
    asked = _read(r"Choose (\d+) of these in order: (.*)\.", prompt)
    said = re.fullmatch(r"I choose (.*)\.", reply)
    if said is None:
        return False
    picked, rest = said[1].split(", "), iter(asked[2].split(", "))
    # `in` consumes the iterator, so each pick must stand after the one before.
    return len(picked) == int(asked[1]) and all(item in rest for item in picked)


def _shuffle(prompt: str, reply: str) -> bool:
    asked = _read(r"Shuffle these: ([^.]*)\.(?: Put (\w+) (first|last)\.)?", prompt)
    order = reply.removesuffix(".").split(", ")
    placed = asked[2] is None or order[0 if asked[3] == "first" else -1] == asked[2]
    return reply.endswith(".") and sorted(order) == sorted(asked[1].split(", ")) and placed


def _story(prompt: str, reply: str) -> bool:
    hero, number, things, count = _read(
        rf"Tell a story about ({_NAME}), (\d+) (\w+) and (\d+) friends?\.", prompt
    ).groups()
    opening = f"{hero} had {number} {things}."
    if not reply.startswith(opening):
        return False
    total, position, friends = int(number), len(opening), set()
    visit = re.compile(
        rf" (?:{hero} met (?P<a>{_NAME})|(?P<b>{_NAME}) met {hero}|Then (?P<c>{_NAME}) came)\."
        rf" (?P<giver>{_NAME}) gave (?P<taker>{_NAME}) (?P<amount>[2-6]) {things}\."
        rf" (?P=taker) thanked (?P=giver)\. (?:Now|So) {hero} has (?P<total>\d+) {things}\."
    )
    while position < len(reply):
        told = visit.match(reply, position)
        if told is None:
            return False
        friend = told["a"] or told["b"] or told["c"]
        if {told["giver"], told["taker"]} != {hero, friend} or friend == hero or friend in friends:
            return False
        friends.add(friend)
        total += int(told["amount"]) * (1 if told["taker"] == hero else -1)
        if told["total"] != str(total):
            return False
        position = told.end()
    return len(friends) == int(count)


def _code(prompt: str, reply: str) -> bool:
    asked = _read(r"Write code: (.*)\.", prompt)[1].split(", ")
    head, *body = reply.split("\n")
    defined = re.fullmatch(r"def [a-z]\(([a-z])\):", head)
    if defined is None or len(body) != len(asked) + 1:
        return False
    latest = defined[1]  # names may be used again: what counts is that each line takes the latest value
    for line, operation in zip(body, asked, strict=False):
        word, number = operation.split()
        sign = {"add": r"\+", "minus": "-", "times": r"\*"}[word]
        assigned = re.fullmatch(rf"    ([a-z]) = {latest} {sign} {number}", line)
        if assigned is None:
            return False
        latest = assigned[1]
    return body[-1] == f"    return {latest}"


_CHECKERS: dict[str, Callable[[str, str], bool]] = {
    "math": _math,
    "steps": _steps,
    "choose": _choose,
    "shuffle": _shuffle,
    "story": _story,
    "code": _code,
}
