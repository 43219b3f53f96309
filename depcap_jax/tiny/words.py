"""The words that the task draws from; its checkers and its tokenizer know the same ones."""

from __future__ import annotations


def _words(text: str) -> tuple[str, ...]:
    return tuple(text.split())


NAMES = _words("Ann Bob Dan Eve Gus Ida Kim Leo")
FRIENDS = _words("Amy Ben Jim Meg Roy Sue")
THINGS = _words("apples books coins cups hats pens")
ANIMALS = _words("ant bee cat cow dog duck fox goat hen owl pig ram")
GAINS = _words("buys finds gets")
LOSSES = _words("drops loses sells")
OPERATIONS = {"add": "+", "minus": "-", "times": "*"}
LETTERS = "xyzabc"
FUNCTIONS = "fgh"
