"""The command `veca`: imports and runs one command.

A user's mistake is one sentence on stderr and exit code 2, never a traceback; VECA_TRACEBACK=1
shows where it came from.
"""

import io
import keyword
import os
import sys
from collections.abc import Sequence
from importlib import import_module
from pathlib import Path

from veca.runtime import VERSION, VecaError

USER_ERROR = 2

COMMANDS = {
    "analyze": ("veca.cli.analyze", "what cores do on a set of images, in numbers"),
    "bench": ("veca.cli.bench", "time, memory and FLOPs beside full attention"),
    "demo": ("veca.cli.demo", "sample photos through several budgets: a table and a page"),
    "distill": ("veca.cli.distill", "train a student from images and a teacher; resumes"),
    "embed": ("veca.cli.embed", "features of files, folders and tar files; resumes"),
    "explore": ("veca.cli.explore", "a page with budget, resolution and layer as sliders"),
    "export": ("veca.cli.export", "one ONNX or torch file whose budget is an input"),
    "figures": ("veca.cli.figures", "what a model sees: feature colors, cores, paths, objects"),
    "import": ("veca.cli.info", "a checkpoint of the authors' release becomes a model folder"),
    "info": ("veca.cli.info", "size, license, teacher, budgets, cost and hash of a model"),
    "predict": ("veca.cli.predict", "labels, masks or depth of new images with a fitted head"),
    "probe": ("veca.cli.probe", "evaluate frozen features: classes, segmentation, depth"),
    "search": ("veca.cli.embed", "nearest images in an embedded collection"),
}
"""Module and summary; the module is imported when its command runs, since most load torch."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command and return the exit code."""
    _set_up_process()
    words = sys.argv[1:] if arguments is None else list(arguments)
    if not words or words[0] in {"-h", "--help", "help"}:
        rows = [f"  veca {name:<9} {summary}" for name, (_, summary) in COMMANDS.items()]
        end = (
            "Run veca COMMAND --help for its flags and an example, veca --version for the version."
        )
        print("Elastic, linear-time vision backbones.", "", *rows, "", end, sep="\n")
        return 0 if words else USER_ERROR
    if words[0] == "--version":
        print(f"veca {VERSION}")
        return 0
    if words[0] not in COMMANDS:
        return _user_error(f"{words[0]!r} is not a command; use one of {', '.join(COMMANDS)}.")
    return _run(words[0], words[1:])


def _set_up_process() -> None:
    """What must be done before torch is imported and anything is printed."""
    if not {"GOMP_SPINCOUNT", "KMP_BLOCKTIME"} & os.environ.keys():
        # By default a thread that waits for the others of a product spins on its processor and so
        # stops those it waits for wherever anything else runs: docs/decisions.md, 2026-11-19.
        os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        stream = getattr(sys, name)
        if stream is None:  # closed by the caller, as in `veca info M >&-`
            setattr(sys, name, Path(os.devnull).open(mode, encoding="utf-8"))  # noqa: SIM115
        elif isinstance(stream, io.TextIOWrapper) and mode == "w":
            stream.reconfigure(errors="backslashreplace")  # file names need not be UTF-8


def _run(name: str, words: Sequence[str]) -> int:
    """Run a command; report what a user can fix in one sentence."""
    try:
        function = f"{name}_" if keyword.iskeyword(name) else name
        getattr(import_module(COMMANDS[name][0]), function)(words)
        sys.stdout.flush()
    except SystemExit as end:  # --help, and flags that the parser has already complained about
        return end.code if isinstance(end.code, int) else USER_ERROR if end.code else 0
    except KeyboardInterrupt:
        print("veca: interrupted.", file=sys.stderr)
        return 130  # as shells report Ctrl-C
    except BrokenPipeError:  # the reader, such as `head`, has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1  # as rich does
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
    from veca.runtime.files import printable  # noqa: PLC0415 - `veca --help` needs no more files

    print(f"veca: {printable(' '.join(message.split()))}", file=sys.stderr)
    return USER_ERROR
