"""The command `veca`: imports and runs one command.

A user's mistake is one sentence on stderr and exit code 2, never a traceback; VECA_TRACEBACK=1
shows where it came from.
"""

import os
import sys
from collections.abc import Sequence
from importlib import import_module
from typing import NamedTuple

from veca.runtime import VERSION, VecaError

USER_ERROR = 2
OUTPUT_CUT = 1
"""The reader of our output closed the pipe; rich exits with the same code."""
INTERRUPTED = 130
"""As shells report Ctrl-C."""


class Command(NamedTuple):
    """One row of the table of commands."""

    module: str
    """Imported only when the command runs: most of them load torch."""

    summary: str


COMMANDS = {
    "bench": Command("veca.cli.bench", "time, memory and FLOPs beside full attention"),
    "demo": Command("veca.cli.demo", "sample photos through several budgets: a table and a page"),
    "distill": Command("veca.cli.distill", "train a student from images and a teacher; resumes"),
    "embed": Command("veca.cli.embed", "features of files, folders and tar files; resumes"),
    "info": Command("veca.cli.info", "size, license, teacher, budgets, cost and hash of a model"),
    "predict": Command(
        "veca.cli.predict", "labels, masks or depth of new images with a fitted head"
    ),
    "probe": Command("veca.cli.probe", "evaluate frozen features: classes, segmentation, depth"),
    "search": Command("veca.cli.embed", "nearest images in an embedded collection"),
}


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command and return the exit code."""
    words = sys.argv[1:] if arguments is None else list(arguments)
    if not words or words[0] in {"-h", "--help", "help"}:
        print(_help())
        return 0 if words else USER_ERROR
    if words[0] == "--version":
        print(f"veca {VERSION}")
        return 0
    name = words[0]
    if name not in COMMANDS:
        return _user_error(f"{name!r} is not a command; use one of {', '.join(COMMANDS)}.")
    return _run(name, words[1:])


def _run(name: str, words: Sequence[str]) -> int:
    """Run a command; report what a user can fix in one sentence."""
    try:
        getattr(import_module(COMMANDS[name].module), name)(words)
        sys.stdout.flush()
    except SystemExit as end:  # --help, and flags that the parser has already complained about
        return end.code if isinstance(end.code, int) else USER_ERROR if end.code else 0
    except KeyboardInterrupt:
        print("veca: interrupted.", file=sys.stderr)
        return INTERRUPTED
    except BrokenPipeError:  # the reader, such as `head`, has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return OUTPUT_CUT
    except (VecaError, ValueError, OSError) as error:
        if os.environ.get("VECA_TRACEBACK") == "1":
            raise
        return _user_error(str(error))
    except RuntimeError as error:
        # torch raises it in the main thread, wherever that is, when a worker dies.
        if "DataLoader worker (pid" not in str(error):
            raise
        return _user_error(f"{error} Use fewer workers.")
    return 0


def _user_error(message: str) -> int:
    """Print a message on one line of stderr."""
    print(f"veca: {' '.join(message.split())}", file=sys.stderr)
    return USER_ERROR


def _help() -> str:
    """Usage and the table of commands."""
    rows = [f"  veca {name:<9} {command.summary}" for name, command in COMMANDS.items()]
    end = "Run veca COMMAND --help for its flags and an example, veca --version for the version."
    return "\n".join(["Elastic, linear-time vision backbones.", "", *rows, "", end])
