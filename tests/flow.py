"""Counts what a command runs through: modules that are loaded, files whose functions run.

`flow_of` starts this file in a process of its own, where nothing else has been imported.
"""

import inspect
import json
import os
import subprocess
import sys
import threading
from collections.abc import Sequence
from pathlib import Path
from types import FrameType
from typing import Any, NamedTuple

ROOT = Path(__file__).parents[1]
PACKAGE = str(ROOT / "src" / "veca") + os.sep


class Flow(NamedTuple):
    """What a command has run through when it ends."""

    modules: list[str]
    """Of this package, loaded by then."""

    files: list[str]
    """Of this package, of which a function has run, relative to it."""


def flow_of(words: Sequence[str], out: Path, before: str = "") -> Flow:
    """Run `veca` with these words to its end.

    Decoding happens in processes of its own (`--workers 1`), which do not count.

    Args:
        words: what stands behind `veca`, paths absolute: the command runs in the repository.
        out: a file for the answer.
        before: statements to run before the command and uncounted, such as to shorten a protocol.
    """
    paths = [str(ROOT), str(ROOT / "src")]
    done = subprocess.run(
        [sys.executable, "-m", "tests.flow", str(out), before, *words],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(paths), "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        check=False,
        timeout=600,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return Flow(**json.loads(out.read_text("utf-8")))


def _count(out: Path, before: str, words: Sequence[str]) -> int:
    """Run the command in this process, and write down what it ran through."""
    import torch  # noqa: F401, PLC0415 - none of ours, and slow to import under a profiler

    exec(before, {})
    ran: set[str] = set()

    def profile(frame: FrameType, event: str, _: Any) -> None:
        code = frame.f_code
        # Bodies of modules and classes, and comprehensions at the top of a file, are no functions.
        if (
            event == "call"
            and code.co_filename.startswith(PACKAGE)
            and code.co_flags & inspect.CO_OPTIMIZED
            and code.co_name not in {"<listcomp>", "<setcomp>", "<dictcomp>", "<genexpr>"}
        ):
            ran.add(code.co_filename)

    threading.setprofile(profile)
    sys.setprofile(profile)
    try:
        from veca.cli.main import main  # noqa: PLC0415 - it is what is counted

        exit_code = main(words)
    finally:
        sys.setprofile(None)
        threading.setprofile(None)
    modules = sorted(name for name in sys.modules if name.partition(".")[0] == "veca")
    files = sorted(Path(name).relative_to(PACKAGE).as_posix() for name in ran)
    out.write_text(json.dumps({"modules": modules, "files": files}), "utf-8")
    return exit_code


if __name__ == "__main__":
    sys.exit(_count(Path(sys.argv[1]), sys.argv[2], sys.argv[3:]))
