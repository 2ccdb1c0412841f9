"""Flags that several commands share: lists with commas, and the command as typed."""

import os
import shlex
from collections.abc import Callable, Mapping, Sequence
from typing import TypeVar

Value = TypeVar("Value", int, float)


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
    """The command as typed, with torchrun and its number of processes where there are several."""
    own = ["veca", name, *words]
    try:
        count, here = int(given.get("WORLD_SIZE", "1")), int(given.get("LOCAL_WORLD_SIZE", "1"))
    except ValueError:  # not torchrun's; `init_distributed` reports it
        return shlex.join(own)
    if count < 2:
        return shlex.join(own)
    machines = ["--nnodes", str(count // here)] if count > here else []
    return shlex.join(["torchrun", *machines, "--nproc-per-node", str(here), "-m", "--", *own])
