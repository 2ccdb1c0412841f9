"""The command `veca`: finds the command, imports and runs it, and reports errors in one sentence.

A user's mistake is one sentence on stderr and exit code 2, never a traceback; set VECA_TRACEBACK=1
to see where it came from.
"""

import os
import sys
from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from typing import NamedTuple

from veca.runtime import VERSION, VecaError

USER_ERROR = 2
OUTPUT_CUT = 1
"""The reader of our output closed it; rich exits with the same code."""
INTERRUPTED = 130
"""What a shell reports for a process that Ctrl-C ended."""

Run = Callable[[Sequence[str]], None]
"""Takes the words after the command's name."""


class Command(NamedTuple):
    """One row of the table of commands."""

    home: str
    """The module of the command, imported only when it runs: most of them load torch."""

    summary: str
    """What it does, in a line."""


COMMANDS: Mapping[str, Command] = {
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
        print(
            f"veca: {name!r} is no command; the commands are {', '.join(COMMANDS)}: see "
            "veca --help.",
            file=sys.stderr,
        )
        return USER_ERROR
    return _run(name, words[1:])


def _run(name: str, words: Sequence[str]) -> int:
    """Run a command; report what a user can mend in one sentence."""
    try:
        run: Run = getattr(import_module(COMMANDS[name].home), name)
        run(words)
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
        print(f"veca: {' '.join(str(error).split())}", file=sys.stderr)
        return USER_ERROR
    except RuntimeError as error:
        if "DataLoader worker (pid" not in str(
            error
        ):  # torch raises it wherever the main thread is
            raise
        print(f"veca: {' '.join(str(error).split())} Use fewer workers.", file=sys.stderr)
        return USER_ERROR
    return 0


def _help() -> str:
    """Usage and the table of commands."""
    rows = [f"  veca {name:<9} {command.summary}" for name, command in COMMANDS.items()]
    return "\n".join(
        [
            "Elastic, linear-time vision backbones.",
            "",
            *rows,
            "",
            "Run veca COMMAND --help for its flags and an example, veca --version for the version.",
        ]
    )
