"""The command as it was typed, for whoever reads what it made."""

import os
import shlex
from collections.abc import Mapping, Sequence


def as_typed(name: str, words: Sequence[str], given: Mapping[str, str] = os.environ) -> str:
    """A command by its name and words, behind torchrun where that started several processes.

    Only the number of processes is told of torchrun: where they met is no part of what they did.
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
