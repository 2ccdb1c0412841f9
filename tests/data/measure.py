"""Prepare every file of a folder in a process of its own, and say what it took.

Run: python measure.py FOLDER. Prints JSON: the growth of the peak memory over all files in bytes,
and for each file the fastest of three runs in seconds, with the error or the shape.
"""

import json
import resource
import sys
import time
import warnings
from pathlib import Path

import veca

HARD_LIMIT = 1 << 30
"""Bytes of address space above the start, beyond which this process fails, not the machine."""


def peak() -> int:
    """The most memory that this process has held so far, in bytes."""
    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit


def limit_address_space() -> None:
    """Stop this process before it can hurt others, where the system can."""
    pages = Path("/proc/self/statm")
    if pages.exists():
        now = int(pages.read_text("ascii").split()[0]) * resource.getpagesize()
        resource.setrlimit(resource.RLIMIT_AS, (now + HARD_LIMIT, now + HARD_LIMIT))


def outcome(path: Path) -> str:
    """The shape of what comes out, or the type and the words of the error."""
    try:
        return str(tuple(veca.preprocess(path, size=64, fit="pad").shape))
    except Exception as error:
        return f"{type(error).__name__}: {error}"


def measured(path: Path) -> dict[str, str | float]:
    """What one file gives and takes."""
    seconds = []
    for _ in range(3):
        start = time.perf_counter()
        found = outcome(path)
        seconds.append(time.perf_counter() - start)
    return {"name": path.name, "seconds": min(seconds), "outcome": found}


def main(folder: Path) -> None:
    """Measure a folder."""
    warnings.simplefilter("ignore")
    paths = sorted(folder.iterdir())
    outcome(next(path for path in paths if path.name == "photo.png"))  # loads what loads lazily
    limit_address_space()
    before = peak()
    files = [measured(path) for path in paths]
    sys.stdout.write(json.dumps({"growth": peak() - before, "files": files}))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
