"""Flags of all commands: how they are read and shown, lists with commas, the command as typed."""

import dataclasses
import os
import shlex
from collections.abc import Callable, Collection, Mapping, Sequence
from types import NoneType
from typing import Annotated, Any, TypeVar, get_args, get_origin, get_type_hints

import tyro

from veca.runtime.files import printable

Value = TypeVar("Value", int, float)
Read = TypeVar("Read")

REGISTRY = tyro.constructors.ConstructorRegistry()
"""How types of flags are read and shown where tyro's way is not ours."""


def read_flags(
    what: Callable[..., Read],
    words: Sequence[str],
    *,
    prog: str,
    description: str,
    common: Collection[str] = (),
) -> Read:
    """What the words of a command mean, by tyro; also shows the help.

    With the `common` fields of a dataclass, --help shows these alone, and --help-all every flag.
    """
    if common and isinstance(what, type) and {"-h", "--help"} & set(words):
        what = _hidden_but(what, common)
        description += "\n\nThese are the most common flags; --help-all lists every flag."
    args = ["--help" if word == "--help-all" else word for word in words]
    return tyro.cli(what, prog=prog, description=description, args=args, registry=REGISTRY)


def _hidden_but(flags: type, common: Collection[str]) -> type:
    """The same dataclass with all but these flags hidden, also within its annotated groups."""
    hints, changed = get_type_hints(flags, include_extras=True), []
    for item in dataclasses.fields(flags):
        if item.name in common:
            continue
        hint, default, factory = hints[item.name], item.default, item.default_factory
        group = get_args(hint)[0] if get_origin(hint) is Annotated else None
        if isinstance(group, type) and dataclasses.is_dataclass(group):
            values: Any = factory() if factory is not dataclasses.MISSING else default
            short = _hidden_but(group, common)
            hint = Annotated[(short, *hint.__metadata__)]
            default, factory = short(**vars(values)), dataclasses.MISSING
        else:
            hint = Annotated[hint, tyro.conf.Suppress]
        hidden: Any = dataclasses.field(default=default, default_factory=factory)
        changed.append((item.name, hint, hidden))
    return dataclasses.make_dataclass(
        flags.__name__, changed, bases=(flags,), frozen=True, kw_only=True
    )


@REGISTRY.primitive_rule
def _optional_rule(
    info: tyro.constructors.PrimitiveTypeInfo,
) -> tyro.constructors.PrimitiveConstructorSpec[Any] | None:
    """Show `int | None` as INT; the word None is read as before."""
    kinds = set(get_args(info.type))
    if len(kinds) != 2 or NoneType not in kinds:
        return None
    (kind,) = kinds - {NoneType}
    make = tyro.constructors.PrimitiveTypeInfo.make
    spec = REGISTRY.get_primitive_spec(make(kind, info.markers))
    if not isinstance(spec, tyro.constructors.PrimitiveConstructorSpec) or spec.nargs != 1:
        return None
    return dataclasses.replace(
        spec,
        instance_from_str=lambda words: (
            None if words == ["None"] else spec.instance_from_str(words)
        ),
        is_instance=lambda value: value is None or spec.is_instance(value),
        str_from_instance=lambda value: (
            ["None"] if value is None else spec.str_from_instance(value)
        ),
    )


def from_here(path: str) -> str:
    """A path on one line of a terminal, without the current folder."""
    here = os.path.join(os.path.abspath("."), "")  # noqa: PTH100, PTH118
    return printable(path.removeprefix(here))


def whole_numbers(flag: str, text: str) -> tuple[int, ...]:
    """Whole numbers, rising, each once."""
    return _values(flag, text, int, "whole numbers with commas, such as 8,16,64")


def numbers(flag: str, text: str) -> tuple[float, ...]:
    """Numbers, rising, each once."""
    return _values(flag, text, float, "numbers with commas, such as 0.25,1.0")


def _values(flag: str, text: str, kind: Callable[[str], Value], allowed: str) -> tuple[Value, ...]:
    """The values of a list with commas."""
    try:
        return tuple(sorted({kind(part) for part in text.split(",")}))
    except ValueError as error:
        raise ValueError(f"{flag} got {text!r}; give {allowed}.") from error


def texts(flag: str, text: str) -> tuple[str, ...]:
    """Strings in their order, each once."""
    found = tuple(dict.fromkeys(part.strip() for part in text.split(",") if part.strip()))
    if not found:
        raise ValueError(f"{flag} got {text!r}; give names with commas.")
    return found


def command_line(name: str, words: Sequence[str], given: Mapping[str, str] = os.environ) -> str:
    """The command as typed, on one line, with torchrun if it runs several processes."""
    own = ["veca", name, *words]
    try:
        count, here = int(given.get("WORLD_SIZE", "1")), int(given.get("LOCAL_WORLD_SIZE", "1"))
    except ValueError:  # not torchrun's; `init_distributed` reports it
        count = here = 1
    if count > 1:
        machines = ["--nnodes", str(count // here)] if count > here else []
        own = ["torchrun", *machines, "--nproc-per-node", str(here), "-m", "--", *own]
    return printable(shlex.join(own))
