"""Answers in a text: where it ends, the number of GSM8K, the LaTeX expression of MATH."""

from __future__ import annotations

import re
from collections.abc import Sequence
from fractions import Fraction

_NUMBER = r"-?\$?(?:\d[\d,]*(?:\.\d+)?|\.\d+)"


def cut_at(text: str, stops: Sequence[str]) -> str:
    """A text up to the first of some strings."""
    ends = [text.find(stop) for stop in stops if stop]
    return text[: min((end for end in ends if end >= 0), default=len(text))]


def find_number(text: str) -> Fraction | None:
    """The number after the last `####`; without one the last number of the text; None if there is none."""
    marked = re.findall(rf"####\s*({_NUMBER})", text)
    numbers = marked or re.findall(_NUMBER, text)
    return Fraction(re.sub(r"[,$]", "", numbers[-1])) if numbers else None


def find_expression(text: str) -> str | None:
    r"""The content of the last \boxed{...}, else what follows "the answer is"; None without either."""
    start = max(text.rfind("\\boxed"), text.rfind("\\fbox"))
    if start >= 0:
        return _argument(text[start:].split("x", 1)[1].removeprefix("ed"))
    said = re.findall(r"answer is:?\s*([^\n]+)", text, re.IGNORECASE)
    if not said:
        return None
    mathematics = re.match(r"\$(.+?)\$", said[-1])
    return mathematics[1] if mathematics else re.split(r"\.(?:\s|$)", said[-1])[0]


def same_expression(one: str, other: str) -> bool:
    """Whether two LaTeX answers are written alike, or are the same number; spacing and units do not count."""
    first, second = simplify(one), simplify(other)
    if first == second:
        return first != ""
    values = _value(first), _value(second)
    return values[0] is not None and values[0] == values[1]


def simplify(expression: str) -> str:
    """One spelling for the many ways to write the same answer in LaTeX."""
    text = expression.strip().strip("$").strip()
    text = re.sub(r"\\(?:left|right|displaystyle|mathrm|mathbf|big|Big)(?![a-zA-Z])", "", text)
    text = re.sub(r"\\[,;:! ]|~|\\q?quad(?![a-zA-Z])", "", text)
    text = re.sub(r"\\[dt]frac", r"\\frac", text)
    # A unit after the answer goes; words that are the answer stay.
    text = re.sub(r"(?<=\S)\s*\\(?:text|mbox)\{[^{}]*\}(?:\^\{?\d\}?)?$", "", text)
    text = re.sub(r"\\(?:text|mbox|textbf|textit)\{([^{}]*)\}", r"\1", text)
    text = re.sub(r"\^\{?\\circ\}?|\\?%|\\\$|\$", "", text)
    text = re.sub(r"\s+", "", text).rstrip(".")
    text = re.sub(r"^[a-zA-Z](?:\([a-zA-Z]\))?=(?=.)", "", text)
    text = re.sub(r"\\frac(\d)(\d)", r"\\frac{\1}{\2}", text)
    text = re.sub(r"\\frac(\d)\{", r"\\frac{\1}{", text)
    text = re.sub(r"\\frac(\{[^{}]*\})(\d)", r"\\frac\1{\2}", text)
    text = re.sub(r"\\sqrt(\w)", r"\\sqrt{\1}", text)
    text = re.sub(r"([_^])\{(\w)\}", r"\1\2", text)
    text = re.sub(r"(?<!\d)\.(?=\d)", "0.", text)
    return re.sub(r"(?<=\d),(?=\d{3}(?!\d))", "", text) if re.fullmatch(r"-?[\d,.]+", text) else text


def _argument(text: str) -> str:
    """What stands in the braces that `text` begins with, or its first word."""
    text = text.lstrip()
    if not text.startswith("{"):
        return re.split(r"[\s$]", text, maxsplit=1)[0]
    depth = 0
    for index, character in enumerate(text):
        depth += (character == "{") - (character == "}")
        if depth == 0:
            return text[1:index]
    return text[1:]  # cut off before the braces closed


def _value(text: str) -> Fraction | None:
    quotient = re.fullmatch(r"(-?)\\frac\{(-?\d+)\}\{(\d+)\}|(-?)(\d+)/(\d+)", text)
    if quotient:
        sign, above, below = quotient.groups()[:3] if quotient[3] else quotient.groups()[3:]
        return Fraction(f"{sign}1") * Fraction(int(above), int(below)) if int(below) else None
    return Fraction(text) if re.fullmatch(r"-?\d+(?:\.\d+)?", text) else None
