"""What `import depcap_jax` costs, and what it brings: `python -m benchmarks.imports [OTHER_CHECKOUT]`.

With another checkout, an older one say, both are measured in turn, so that a noisy machine is noisy for both.
"""

from __future__ import annotations

import statistics
import subprocess
import sys
from pathlib import Path

_REPEATS = 7
_WATCHED = ("jax", "flax", "orbax", "tensorstore", "tqdm", "transformers", "matplotlib")
_PROGRAM = f"""
import sys, time
begin = time.perf_counter()
import depcap_jax
print(time.perf_counter() - begin, *(name for name in {_WATCHED!r} if name in sys.modules))
"""


def measure(checkout: Path) -> tuple[float, list[str]]:
    """Seconds of one import in a fresh process, and which of the watched packages it brought."""
    done = subprocess.run(
        [sys.executable, "-c", _PROGRAM], cwd=checkout, capture_output=True, text=True, check=True
    )
    seconds, *packages = done.stdout.split()
    return float(seconds), packages


def main() -> None:
    """Prints a line per checkout."""
    checkouts = [Path(__file__).parents[1], *map(Path, sys.argv[1:])]
    runs = [[measure(checkout) for checkout in checkouts] for _ in range(_REPEATS)]
    for checkout, measured in zip(checkouts, zip(*runs, strict=True), strict=True):
        median = statistics.median(seconds for seconds, _ in measured)
        print(
            f"{checkout.name:20} {median:6.3f} s (median of {_REPEATS})  {' '.join(measured[0][1]) or 'none'}"
        )


if __name__ == "__main__":
    main()
