"""For the reference: a setting is documented by its declaration; `a, b: ...` documents both arguments."""

from __future__ import annotations

import ast
import re
from typing import Any

import griffe


class Settings(griffe.Extension):
    """Reads `setting(default=..., low=..., high=..., doc=...)` as the attribute's docstring and value."""

    def on_attribute_instance(self, *, node: Any, attr: griffe.Attribute, **_: Any) -> None:
        """Called for each attribute of each class."""
        call = getattr(node, "value", None)
        if not (isinstance(call, ast.Call) and getattr(call.func, "id", "") == "setting"):
            return
        given = {word.arg: word.value for word in call.keywords}
        low, high = (ast.unparse(given[name]) if name in given else None for name in ("low", "high"))
        meaning = ast.literal_eval(given["doc"]) if "doc" in given else attr.name
        sentence = f"{meaning[:1].upper()}{meaning[1:]}."
        if low and high:
            sentence += f" In [{low}, {high}]."
        elif low:
            sentence += f" At least {low}."
        attr.value = ast.unparse(given["default"]) if "default" in given else None
        attr.docstring = griffe.Docstring(sentence, parent=attr)

    def on_function_instance(self, *, func: griffe.Function, **_: Any) -> None:
        """Called for each function: one line for arguments that are documented together becomes one each."""
        if func.docstring:
            together = re.compile(r"^( +)(\w+(?:, \w+)+): (.*)$", re.MULTILINE)
            func.docstring.value = together.sub(self._apart, func.docstring.value)

    @staticmethod
    def _apart(found: re.Match[str]) -> str:
        return "\n".join(f"{found[1]}{name}: {found[3]}" for name in found[2].split(", "))
