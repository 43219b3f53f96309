"""Pages that are one file: a template with its data in it, and nothing that asks the network."""

from __future__ import annotations

import html
import json
from pathlib import Path
from typing import Any


def fill(template: Path, title: str, data: dict[str, Any]) -> str:
    """The page of a template with `__TITLE__` and `__DATA__` in it; nothing of the data can be markup there.

    Raises:
      ValueError: if a number of the data is not finite.
    """
    text = json.dumps(data, ensure_ascii=False, separators=(",", ":"), allow_nan=False)
    # Inside <script> only "<" could end it or open a comment.
    text = text.replace("<", "\\u003c").replace("\u2028", "\\u2028").replace("\u2029", "\\u2029")
    before, after = template.read_text(encoding="utf-8").split("__DATA__")
    return before.replace("__TITLE__", html.escape(title)) + text + after
