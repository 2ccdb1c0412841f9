"""`veca distill`: train a student from a recipe; any field of it can be overridden."""

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import tyro

from veca.cli.flags import REGISTRY, command_line
from veca.distill.config import DistillConfig, Efficiency
from veca.distill.run import Outcome, Wishes
from veca.distill.training import NonFiniteError
from veca.recipes.distill import RECIPES, Recipe
from veca.recipes.run import run_recipe
from veca.runtime.distributed import is_main_process
from veca.runtime.signals import exit_code

NOT_FINITE = 3
"""Exit code of a run whose losses or gradients stay not finite."""

DESCRIPTION = """Train a student from a recipe on unlabeled images, taught by frozen networks.

Example: veca distill tiny --images photos --out runs/tiny

Many processes: torchrun --nproc-per-node 4 -m -- veca distill small --images photos --out runs/s

Repeat the command with --resume to continue a run that was stopped or killed.

Exit codes: 0 finished, 2 a mistake that the message explains, 3 losses stay not finite,
143 stopped by SIGTERM and 130 by Ctrl-C, both saved."""

HELP = """Train a student on unlabeled images: veca distill RECIPE --images DIR --out DIR

{recipes}

veca distill RECIPE --help lists every flag with the recipe's own values.
Example: veca distill tiny --images photos --out runs/tiny"""


@dataclass(frozen=True, kw_only=True)
class Flags:
    """What the command takes beside the fields of a recipe."""

    out: Annotated[Path, tyro.conf.arg(metavar="DIR")]
    """folder of the run"""

    resume: Annotated[bool, tyro.conf.FlagCreatePairsOff] = False
    """continue the newest verified checkpoint in --out; begin where there is none"""

    stage: int = 1
    """stage of the paper's recipes: 1, or 2 with several resolutions"""

    cache_teacher: Annotated[Path | None, tyro.conf.arg(metavar="DIR")] = None
    """keep the teachers' outputs of a set number of views of each image in this folder"""

    cache_only: Annotated[bool, tyro.conf.FlagCreatePairsOff] = False
    """compute the outputs that --cache-teacher lacks, by all processes, and end without training"""

    config: Annotated[DistillConfig, tyro.conf.arg(name="")]
    efficiency: Annotated[Efficiency, tyro.conf.arg(name="")]


def distill(words: Sequence[str]) -> None:
    """Run the command on the words after its name."""
    if not words or words[0] in {"-h", "--help"}:
        rows = [f"  {name:<11} {_first_line(name)}" for name in RECIPES]
        print(HELP.format(recipes="\n".join(rows)))
        if not words:
            raise SystemExit(2)
        return
    name, *rest = words
    if name not in RECIPES:
        raise ValueError(f"{name!r} is no recipe; the recipes are {', '.join(RECIPES)}.")
    flags = _flags(name, rest)
    if flags.config.recipe != RECIPES[name](_stage(rest)).config.recipe:
        raise ValueError(
            f"--recipe got {flags.config.recipe!r}; the recipe is the first word of the command, "
            f"as in veca distill {name}."
        )
    if flags.stage == 2 and flags.config.start is None:
        raise ValueError(
            "stage 2 begins with the model of stage 1; name it, as in --start runs/small/best."
        )
    wishes = Wishes(
        resume=flags.resume,
        cache_teacher=flags.cache_teacher,
        cache_only=flags.cache_only,
        command=command_line("distill", words),
    )
    try:
        outcome = run_recipe(Recipe(flags.config, flags.efficiency), flags.out, wishes, print)
    except NonFiniteError as error:
        print(f"veca: {error}", file=sys.stderr)
        raise SystemExit(NOT_FINITE) from error
    _leave(outcome, flags)


def _flags(name: str, words: Sequence[str]) -> Flags:
    """The flags, on top of the recipe's own values."""
    recipe = RECIPES[name](_stage(words))

    @dataclass(frozen=True, kw_only=True)
    class Chosen(Flags):
        """The flags of one recipe."""

        config: Annotated[DistillConfig, tyro.conf.arg(name="")] = recipe.config
        efficiency: Annotated[Efficiency, tyro.conf.arg(name="")] = recipe.efficiency

    with REGISTRY:
        return tyro.cli(
            Chosen,
            prog=f"veca distill {name}",
            description=f"{DESCRIPTION}\n\nThis recipe: {_first_line(name)}",
            args=words,
        )


def _stage(words: Sequence[str]) -> int:
    """The stage that is asked for, which decides the values that other flags override."""
    text = "1"
    for before, word in zip(("", *words), words, strict=False):
        if before == "--stage":
            text = word
        elif word.startswith("--stage="):
            text = word.partition("=")[2]
    if text not in {"1", "2"}:
        raise ValueError(f"--stage got {text!r}; give 1 or 2.")
    return int(text)


def _first_line(name: str) -> str:
    """What a recipe is, in a line."""
    return (RECIPES[name].__doc__ or "").partition("\n")[0]


def _leave(outcome: Outcome, flags: Flags) -> None:
    """Tell where the results are, and leave with the code that says how it ended."""
    if outcome.signal is not None:
        raise SystemExit(exit_code(outcome.signal))
    if not is_main_process():
        return
    if flags.cache_only:
        print("The teachers' outputs are kept; the command without --cache-only trains with them.")
        return
    print(
        f"Finished at step {outcome.step:,}: best/ and last/ in {outcome.folder} are models for "
        "veca.load, summary.html shows the curves."
    )
