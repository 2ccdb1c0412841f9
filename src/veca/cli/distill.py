"""`veca distill`: train a student from a recipe; any field of it can be overridden."""

import argparse
import sys
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, get_args, get_origin

import tyro

from veca.cli.flags import command_line, read_flags
from veca.distill.config import DistillConfig, RunOptions
from veca.distill.run import TrainResult
from veca.distill.run import distill as run_distill
from veca.distill.run_folder import RunFolder
from veca.distill.trainer import NonFiniteError
from veca.recipes.distill import RECIPES
from veca.runtime.distributed import is_main_process
from veca.runtime.files import write_atomic
from veca.runtime.logging import log_to_console
from veca.runtime.signals import exit_code
from veca.train.metrics import read_metrics
from veca.train.schedules import ResolutionPhase

NOT_FINITE = 3
"""Exit code of a run whose losses or gradients stay non-finite."""

DESCRIPTION = """Train a student from a recipe on unlabeled images, taught by frozen networks.

Example: veca distill tiny --images photos --out runs/tiny

Many processes: torchrun --nproc-per-node 4 -m -- veca distill small --images photos --out runs/s

Repeat the command with --resume to continue a run that was stopped or killed.

Exit codes: 0 finished; 2 user error; 3 losses stay non-finite; 143 stopped by SIGTERM and 130 by
Ctrl-C, both after saving."""

HELP = """Train a student on unlabeled images: veca distill RECIPE --images DIR --out DIR

{recipes}

veca distill RECIPE --help shows its flags, --help-all every one, with the recipe's own values.
Example: veca distill tiny --images photos --out runs/tiny"""


COMMON = (
    "out", "resume", "stage", "cache_teacher", "images", "validation", "teacher", "start", "slices",
    "seed", "steps", "batch", "resolution", "device", "workers", "accumulate",
)  # fmt: skip
"""Flags that --help shows."""


@dataclass(frozen=True, kw_only=True)
class Flags:
    """Flags of the command: its own, and the fields of a recipe."""

    out: Annotated[Path, tyro.conf.arg(metavar="DIR")]
    """folder of the run"""

    resume: Annotated[bool, tyro.conf.FlagCreatePairsOff] = False
    """continue from the newest verified checkpoint in --out, or start if there is none"""

    stage: int = 1
    """stage of the recipe: 1, or 2 with several resolutions, which needs --start"""

    cache_teacher: Annotated[Path | None, tyro.conf.arg(metavar="DIR")] = None
    """cache the teachers' outputs for --cache.crops views of each image in this folder"""

    cache_only: Annotated[bool, tyro.conf.FlagCreatePairsOff] = False
    """compute outputs missing in --cache-teacher, on all ranks, and exit without training"""

    config: Annotated[DistillConfig, tyro.conf.arg(name="")]
    options: Annotated[RunOptions, tyro.conf.arg(name="")]


def distill(words: Sequence[str]) -> None:
    """Run the command."""
    if not words or words[0] in {"-h", "--help", "--help-all"}:
        rows = [f"  {name:<11} {_first_line(name)}" for name in RECIPES]
        print(HELP.format(recipes="\n".join(rows)))
        if not words:
            raise SystemExit(2)
        return
    flags = parse(*words)
    with log_to_console(is_main_process()):
        try:
            result = _run(flags, command_line("distill", words))
        except NonFiniteError as error:
            print(f"veca: {error}", file=sys.stderr)
            raise SystemExit(NOT_FINITE) from error
        if result.signal is not None:
            if is_main_process():
                with suppress(OSError):  # no log yet, or no room
                    _draw_curves(flags, result)
            raise SystemExit(exit_code(result.signal))
        if is_main_process():
            _report(flags, result)


def parse(name: str, *words: str) -> Flags:
    """The flags of a recipe; their defaults are the recipe's values."""
    if name not in RECIPES:
        raise ValueError(f"unknown recipe {name!r}; the recipes are {', '.join(RECIPES)}.")
    recipe = RECIPES[name](_stage(words))

    @dataclass(frozen=True, kw_only=True)
    class RecipeFlags(Flags):
        config: Annotated[DistillConfig, tyro.conf.arg(name="")] = recipe.config
        options: Annotated[RunOptions, tyro.conf.arg(name="")] = recipe.options

    with REGISTRY:
        flags = read_flags(
            RecipeFlags,
            words,
            prog=f"veca distill {name}",
            description=f"{DESCRIPTION}\n\nThis recipe: {_first_line(name)}",
            common=COMMON,
        )
    if flags.config.recipe != recipe.config.recipe:
        raise ValueError(
            f"--recipe got {flags.config.recipe!r}; name the recipe as the first argument, as in "
            f"veca distill {name}."
        )
    if flags.stage == 2 and flags.config.start is None:
        raise ValueError(
            "stage 2 starts from the model of stage 1; give it, as in --start runs/small/best."
        )
    return flags


def _stage(words: Sequence[str]) -> int:
    """The value of --stage, which decides the defaults of other flags."""
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False, exit_on_error=False)
    parser.add_argument("--stage", nargs="?", default="1")
    text = parser.parse_known_args(words)[0].stage
    if text not in {"1", "2"}:
        raise ValueError(f"--stage got {text!r}; use 1 or 2.")
    return int(text)


def _first_line(name: str) -> str:
    """The summary of a recipe."""
    return (RECIPES[name].__doc__ or "").partition("\n")[0]


def _run(flags: Flags, command: str) -> TrainResult:
    """Prepare what the recipe or a flag asks for, and run."""
    config, cache, out = flags.config, flags.cache_teacher, flags.out.expanduser()
    if config.recipe == "quick":
        if config.images is None:
            # Here, since other recipes do not need it.
            from veca.recipes.quick import crop_photographs  # noqa: PLC0415

            if is_main_process():
                RunFolder(out).prepare(flags.resume)
            config = crop_photographs(config, out)
        if cache is None and config.cache.crops:
            cache = out / "teacher"
    initialize = None
    resuming = flags.resume and any(RunFolder(out).checkpoints.glob("step-*"))
    if config.slices is not None and not resuming and not flags.cache_only:
        # Here, since few runs need it.
        from veca.convert.slices import slices_of  # noqa: PLC0415

        initialize = slices_of(config)
    return run_distill(
        config,
        flags.out,
        flags.options,
        resume=flags.resume,
        cache_teacher=cache,
        cache_only=flags.cache_only,
        command=command,
        initialize=initialize,
    )


def _report(flags: Flags, result: TrainResult) -> None:
    """Draw the curves, and print where the results are."""
    if flags.cache_only:
        print("The teacher outputs are cached; run without --cache-only to train with them.")
        return
    if flags.config.recipe == "quick":
        from veca.recipes.quick import compare_with_constant  # noqa: PLC0415 - as above

        rows = read_metrics(RunFolder(result.folder).metrics)
        print("\n".join(compare_with_constant(rows)))
    curves = ", curves.png shows the losses"
    if not _draw_curves(flags, result):
        curves = "; no curves.png, which needs matplotlib (`pip install 'veca[figures]'`)"
    print(
        f"Finished at step {result.step:,}: best/ and last/ in {result.folder} are models for "
        f"veca.load{curves}."
    )


def _draw_curves(flags: Flags, result: TrainResult) -> bool:
    """Write curves.png, if matplotlib is installed."""
    try:
        # Here, since matplotlib is an extra.
        from veca.analysis.training_curves import plot_training  # noqa: PLC0415
    except ImportError:
        return False
    rows = read_metrics(RunFolder(result.folder).metrics)
    image = plot_training(rows, f"{result.folder.name}: {flags.config.recipe}")
    write_atomic(result.folder / "curves.png", [image])
    return True


REGISTRY = tyro.constructors.ConstructorRegistry()
"""Use as a context around tyro.cli."""


@REGISTRY.primitive_rule
def _list_rule(
    info: tyro.constructors.PrimitiveTypeInfo,
) -> tyro.constructors.PrimitiveConstructorSpec[Any] | None:
    """Read tuples of any length from one word: text, numbers or phases of resolutions."""
    if get_origin(info.type) is not tuple or get_args(info.type)[1:] != (...,):
        return None
    item = get_args(info.type)[0]
    phases = item is ResolutionPhase
    return tyro.constructors.PrimitiveConstructorSpec(
        nargs=1,
        metavar="FROM_SHARE:PIXELS*WEIGHT,...;..." if phases else f"{item.__name__.upper()},...",
        instance_from_str=lambda words: tuple(
            (_phase if phases else item)(part.strip())
            for part in words[0].split(";" if phases else ",")
            if part.strip()
        ),
        is_instance=lambda value: isinstance(value, tuple),
        str_from_instance=lambda values: [
            ";".join(map(_phase_text, values)) if phases else ",".join(map(str, values))
        ],
    )


def _phase(text: str) -> ResolutionPhase:
    """A phase such as '128', '128,160' or '0.14:256*0.35,384*0.65'."""
    start, _, rest = text.rpartition(":")
    pairs = [part.partition("*") for part in rest.split(",")]
    weights = tuple(float(weight or 1) for _, _, weight in pairs)
    return ResolutionPhase(
        sizes=tuple(int(size) for size, _, _ in pairs),
        weights=weights if "*" in rest else None,
        from_share=float(start or 0),
    )


def _phase_text(phase: ResolutionPhase) -> str:
    """The text that gives this phase."""
    weights = phase.weights or ("",) * len(phase.sizes)
    pairs = zip(phase.sizes, weights, strict=True)
    sizes = ",".join(f"{size}*{weight}".rstrip("*") for size, weight in pairs)
    return f"{phase.from_share}:{sizes}"
