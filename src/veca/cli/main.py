"""The command `veca`: finds the command that was asked for, runs it, and words what went wrong.

A user's mistake is one sentence on stderr and exit code 2, never a traceback; set VECA_TRACEBACK=1
to see where it came from.
"""

import os
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from veca.cli.bench import bench
from veca.cli.demo import demo
from veca.cli.distill import distill
from veca.cli.embed import embed
from veca.cli.info import info
from veca.cli.predict import predict
from veca.cli.probe import probe
from veca.cli.search import search
from veca.runtime.version import VERSION

USER_ERROR = 2
OUTPUT_CUT = 1
"""Nobody read to the end; rich exits with the same code."""
INTERRUPTED = 130
"""What a shell reports of a process that Ctrl-C ended."""


class Command(NamedTuple):
    """One row of the table of commands."""

    run: Callable[[Sequence[str]], None]
    """Takes the words after the command's name."""

    summary: str
    """What it does, in a line."""


COMMANDS: Mapping[str, Command] = {
    "bench": Command(bench, "ms, peak MB and GFLOPs beside full attention and other rivals"),
    "demo": Command(demo, "photos through several budgets: a table and a page with pictures"),
    "distill": Command(distill, "a student from images and a teacher; killed and resumed at will"),
    "embed": Command(embed, "features of files, folders and tar shards; resumes"),
    "info": Command(info, "what a model is: size, licence, teacher, budgets, cost, hash"),
    "predict": Command(predict, "labels, overlays or depth for new pictures with a fitted head"),
    "probe": Command(probe, "what frozen features are worth: classes, segmentation, depth"),
    "search": Command(search, "the nearest pictures in an embedded collection, with a sheet"),
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
    if words[0] not in COMMANDS:
        print(
            f"veca: {words[0]!r} is no command; the commands are {', '.join(COMMANDS)}: see "
            "veca --help.",
            file=sys.stderr,
        )
        return USER_ERROR
    return _run(COMMANDS[words[0]], words[1:])


def _run(command: Command, words: Sequence[str]) -> int:
    """Run a command; what a user can mend is told in a sentence."""
    try:
        command.run(words)
        sys.stdout.flush()
    except SystemExit as end:  # --help, and flags that the parser has already complained about
        return end.code if isinstance(end.code, int) else USER_ERROR if end.code else 0
    except KeyboardInterrupt:
        print("veca: interrupted.", file=sys.stderr)
        return INTERRUPTED
    except BrokenPipeError:  # the reader, such as `head`, has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return OUTPUT_CUT
    except (ValueError, OSError) as error:
        if os.environ.get("VECA_TRACEBACK") == "1":
            raise
        print(f"veca: {' '.join(str(error).split())}", file=sys.stderr)
        return USER_ERROR
    return 0


def _help() -> str:
    """How to call veca, and the table of commands."""
    rows = [f"  veca {name:<9} {command.summary}" for name, command in COMMANDS.items()]
    return "\n".join(
        [
            "Elastic, linear-time vision backbones.",
            "",
            *rows,
            "",
            "veca COMMAND --help tells more, with an example; veca --version tells the version.",
        ]
    )
