"""Lists on the command line, as tyro reads them: values with commas in one word."""

from collections.abc import Callable, Sequence
from typing import Any, get_args, get_origin

import tyro

from veca.distill.schedules import ResolutionPhase

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
