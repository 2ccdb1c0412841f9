"""Flags that several commands share: lists with commas, resolution phases, the command as typed."""

import os
import shlex
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar, get_args, get_origin

import tyro

from veca.train.schedules import ResolutionPhase

Value = TypeVar("Value", int, float)


def whole_numbers(flag: str, text: str) -> tuple[int, ...]:
    """Whole numbers, rising, each once."""
    return _values(flag, text, int, "whole numbers with commas, such as 8,16,64")


def numbers(flag: str, text: str) -> tuple[float, ...]:
    """Numbers, rising, each once."""
    return _values(flag, text, float, "numbers with commas, such as 0.25,1.0")


def _values(flag: str, text: str, kind: Callable[[str], Value], allowed: str) -> tuple[Value, ...]:
    """The values in a text, or words on what is allowed."""
    try:
        return tuple(sorted({kind(part) for part in text.split(",")}))
    except ValueError as error:
        raise ValueError(f"{flag} got {text!r}; give {allowed}.") from error


def texts(flag: str, text: str) -> tuple[str, ...]:
    """Texts in their order, each once."""
    found = tuple(dict.fromkeys(part.strip() for part in text.split(",") if part.strip()))
    if not found:
        raise ValueError(f"{flag} got {text!r}; give names with commas.")
    return found


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


def command_line(name: str, words: Sequence[str], given: Mapping[str, str] = os.environ) -> str:
    """A command by its name and words, behind torchrun where that started several processes.

    Of torchrun only the number of processes is kept: the rendezvous does not change results.
    """
    own = ["veca", name, *words]
    try:
        count, here = int(given.get("WORLD_SIZE", "1")), int(given.get("LOCAL_WORLD_SIZE", "1"))
    except ValueError:  # not torchrun's; joining the workers says so
        return shlex.join(own)
    if count < 2:
        return shlex.join(own)
    machines = ["--nnodes", str(count // here)] if count > here else []
    return shlex.join(["torchrun", *machines, "--nproc-per-node", str(here), "-m", "--", *own])
