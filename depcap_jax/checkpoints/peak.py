"""How much memory this process has needed."""

import resource
import sys
from pathlib import Path


def peak_memory() -> int:
    """The largest resident size so far, in bytes."""
    status = Path("/proc/self/status")
    if status.exists():
        # getrusage would count what the parent process had when it started this one.
        for line in status.read_text(encoding="ascii", errors="replace").splitlines():
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) * 1024
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024
