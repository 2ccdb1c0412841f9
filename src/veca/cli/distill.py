"""`veca distill`: train a student from a recipe; any field of it can be overridden."""

import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, get_args, get_origin

import tyro

from veca.cli.flags import command_line
from veca.distill.config import DistillConfig, RunOptions
from veca.distill.run import TrainResult
from veca.distill.run import distill as run_distill
from veca.distill.run_folder import RunFolder
from veca.distill.student import Initialize
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

veca distill RECIPE --help lists every flag with the recipe's own values.
Example: veca distill tiny --images photos --out runs/tiny"""


@dataclass(frozen=True, kw_only=True)
class Flags:
    """Flags of the command besides the fields of a recipe."""

    out: Annotated[Path, tyro.conf.arg(metavar="DIR")]
    """folder of the run"""

    resume: Annotated[bool, tyro.conf.FlagCreatePairsOff] = False
    """continue from the newest verified checkpoint in --out, or start if there is none"""

    stage: int = 1
    """stage of the paper's recipes: 1, or 2 with several resolutions"""

    cache_teacher: Annotated[Path | None, tyro.conf.arg(metavar="DIR")] = None
    """cache the teachers' outputs for --cache.crops views of each image in this folder"""

    cache_only: Annotated[bool, tyro.conf.FlagCreatePairsOff] = False
    """compute outputs missing in --cache-teacher, on all ranks, and exit without training"""

    config: Annotated[DistillConfig, tyro.conf.arg(name="")]
    options: Annotated[RunOptions, tyro.conf.arg(name="")]


def distill(words: Sequence[str]) -> None:
    """Run the command."""
    if not words or words[0] in {"-h", "--help"}:
        rows = [f"  {name:<11} {_first_line(name)}" for name in RECIPES]
        print(HELP.format(recipes="\n".join(rows)))
        if not words:
            raise SystemExit(2)
        return
    flags = _checked_flags(*words)
    with log_to_console(is_main_process()):
        try:
            result = _run(flags, command_line("distill", words))
        except NonFiniteError as error:
            print(f"veca: {error}", file=sys.stderr)
            raise SystemExit(NOT_FINITE) from error
        if result.signal is not None:
            raise SystemExit(exit_code(result.signal))
        if is_main_process():
            _report(flags, result)


def _checked_flags(name: str, *rest: str) -> Flags:
    """Parse the flags, and check what the recipe and the stage require."""
    if name not in RECIPES:
        raise ValueError(f"unknown recipe {name!r}; the recipes are {', '.join(RECIPES)}.")
    flags = _flags(name, rest)
    if flags.config.recipe != RECIPES[name](_stage(rest)).config.recipe:
        raise ValueError(
            f"--recipe got {flags.config.recipe!r}; name the recipe as the first argument, as in "
            f"veca distill {name}."
        )
    if flags.stage == 2 and flags.config.start is None:
        raise ValueError(
            "stage 2 starts from the model of stage 1; give it, as in --start runs/small/best."
        )
    return flags


def _run(flags: Flags, command: str) -> TrainResult:
    """Prepare what the recipe or a flag asks for, and run."""
    config, cache = flags.config, flags.cache_teacher
    quick = config.recipe == "quick"
    if quick and config.images is None:
        # Here, since other recipes do not need it.
        from veca.recipes.quick import crop_photographs  # noqa: PLC0415

        if is_main_process():
            RunFolder(flags.out.expanduser()).prepare(flags.resume)
        config = crop_photographs(config, flags.out.expanduser())
    if quick and cache is None and config.cache.crops:
        cache = flags.out.expanduser() / "teacher"
    return run_distill(
        config,
        flags.out,
        flags.options,
        resume=flags.resume,
        cache_teacher=cache,
        cache_only=flags.cache_only,
        command=command,
        initialize=_slices(config, flags),
    )


def _slices(config: DistillConfig, flags: Flags) -> Initialize | None:
    """The weights that --slices names, unless a checkpoint will be resumed."""
    checkpoints = RunFolder(flags.out.expanduser()).checkpoints
    resuming = flags.resume and any(checkpoints.glob("step-*"))
    if config.slices is None or resuming or flags.cache_only:
        return None
    # Here, since few runs need it.
    from veca.convert.slices import slices_of  # noqa: PLC0415

    return slices_of(config)


def _report(flags: Flags, result: TrainResult) -> None:
    """Draw the curves, and print where the results are."""
    if flags.cache_only:
        print("The teacher outputs are cached; run without --cache-only to train with them.")
        return
    rows = read_metrics(RunFolder(result.folder).metrics)
    if flags.config.recipe == "quick":
        from veca.recipes.quick import compare_with_constant  # noqa: PLC0415 - as above

        print("\n".join(compare_with_constant(rows)))
    try:
        # Here, since matplotlib is an extra.
        from veca.analysis.training_curves import plot_training  # noqa: PLC0415
    except ImportError:
        curves = ""
    else:
        image = plot_training(rows, f"{result.folder.name}: {flags.config.recipe}")
        write_atomic(result.folder / "curves.png", [image])
        curves = ", curves.png shows the losses"
    print(
        f"Finished at step {result.step:,}: best/ and last/ in {result.folder} are models for "
        f"veca.load{curves}."
    )


def _flags(name: str, words: Sequence[str]) -> Flags:
    """Parse the flags; defaults are the recipe's values."""
    recipe = RECIPES[name](_stage(words))

    @dataclass(frozen=True, kw_only=True)
    class Chosen(Flags):
        """The flags of one recipe."""

        config: Annotated[DistillConfig, tyro.conf.arg(name="")] = recipe.config
        options: Annotated[RunOptions, tyro.conf.arg(name="")] = recipe.options

    with REGISTRY:
        return tyro.cli(
            Chosen,
            prog=f"veca distill {name}",
            description=f"{DESCRIPTION}\n\nThis recipe: {_first_line(name)}",
            args=words,
        )


def _stage(words: Sequence[str]) -> int:
    """The value of --stage, which decides the defaults of other flags."""
    text = "1"
    for before, word in zip(("", *words), words, strict=False):
        if before == "--stage":
            text = word
        elif word.startswith("--stage="):
            text = word.partition("=")[2]
    if text not in {"1", "2"}:
        raise ValueError(f"--stage got {text!r}; use 1 or 2.")
    return int(text)


def _first_line(name: str) -> str:
    """The summary of a recipe."""
    return (RECIPES[name].__doc__ or "").partition("\n")[0]


REGISTRY = tyro.constructors.ConstructorRegistry()
"""Use as a context around tyro.cli."""

PHASES = "FROM_SHARE:PIXELS*WEIGHT,...;..."


@REGISTRY.primitive_rule
def _list_rule(
    info: tyro.constructors.PrimitiveTypeInfo,
) -> tyro.constructors.PrimitiveConstructorSpec[Any] | None:
    """Read tuples of any length whose items are text, numbers or phases of resolutions."""
    if get_origin(info.type) is not tuple or get_args(info.type)[1:] != (...,):
        return None
    item = get_args(info.type)[0]
    if item is ResolutionPhase:
        return _spec(PHASES, parse_phases, format_phases)
    if item in (str, int, float):
        return _spec(
            f"{item.__name__.upper()},...",
            lambda text: tuple(item(part.strip()) for part in text.split(",") if part.strip()),
            lambda values: ",".join(map(str, values)),
        )
    return None


def parse_phases(text: str) -> tuple[ResolutionPhase, ...]:
    """Phases such as '128', '128,160' or '0:256*0.35,384*0.65;0.14:256,768'."""
    return tuple(_phase(part.strip()) for part in text.split(";") if part.strip())


def format_phases(phases: Sequence[ResolutionPhase]) -> str:
    """The text that gives these phases."""
    return ";".join(map(_phase_text, phases))


def _phase(text: str) -> ResolutionPhase:
    """One phase."""
    start, colon, rest = text.rpartition(":")
    pairs = [part.partition("*") for part in rest.split(",")]
    weights = tuple(float(weight or 1) for _, _, weight in pairs)
    return ResolutionPhase(
        sizes=tuple(int(size) for size, _, _ in pairs),
        weights=weights if any(star for _, star, _ in pairs) else None,
        from_share=float(start) if colon else 0.0,
    )


def _phase_text(phase: ResolutionPhase) -> str:
    """The text of one phase."""
    weights = phase.weights or (None,) * len(phase.sizes)
    pairs = [
        str(size) if weight is None else f"{size}*{_number(weight)}"
        for size, weight in zip(phase.sizes, weights, strict=True)
    ]
    return f"{_number(phase.from_share)}:{','.join(pairs)}"


def _number(value: float) -> str:
    """The shortest text that gives this number."""
    return repr(value).removesuffix(".0")


def _spec(
    metavar: str, parse: Callable[[str], Any], text: Callable[[Any], str]
) -> tyro.constructors.PrimitiveConstructorSpec[Any]:
    """How one word becomes a value, and back for the help text."""
    return tyro.constructors.PrimitiveConstructorSpec(
        nargs=1,
        metavar=metavar,
        instance_from_str=lambda words: parse(words[0]),
        is_instance=lambda value: isinstance(value, tuple),
        str_from_instance=lambda value: [text(value)],
    )
