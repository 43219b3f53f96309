"""What differs from one execution of a run to the next, left out."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def without_timing(content: Any) -> Any:
    """A run's JSON content without its times."""
    timing = ("seconds", "tokens_per_second", "compile_seconds")
    if isinstance(content, Mapping):
        return {key: without_timing(value) for key, value in content.items() if key not in timing}
    return [without_timing(value) for value in content] if isinstance(content, list) else content
