"""Hashes by which a labelled set is known, wherever it lies."""

import hashlib
from pathlib import Path
from typing import Any

from veca.data.labelled import LabelledSet, Split

MOST_READ_BYTES = 2**28
"""Masks and depth of a part that are read whole to know them again."""

SAMPLED = 64
"""Files of a larger part that are."""


def pictures_hash(data: LabelledSet) -> str:
    """SHA-256 over names and sizes of the pictures of a set, part by part."""
    text = "\n".join(f"{part.name} {part.fingerprint()}" for part in _parts(data))
    return hashlib.sha256(text.encode()).hexdigest()


def labels_hash(data: LabelledSet) -> str:
    """SHA-256 over what is told of the pictures, and what of it counts.

    Files of masks and depth are read where they are few, and known by their sizes and a sample of
    them where they are many.
    """
    found = hashlib.sha256("\n".join(data.classes).encode("utf-8", "surrogateescape"))
    found.update(f"{data.scored} {data.depth}".encode())
    for part in _parts(data):
        for values in (part.labels, part.counted):
            found.update(b"\0" if values is None else values.tobytes())
        sizes = [Path(target).stat().st_size for target in part.targets]
        found.update(repr(sizes).encode())
        whole = sum(sizes) <= MOST_READ_BYTES
        for target in part.targets[:: 1 if whole else max(1, len(sizes) // SAMPLED)]:
            found.update(hashlib.sha256(Path(target).read_bytes()).digest())
    return found.hexdigest()


def said_of(data: LabelledSet) -> dict[str, Any]:
    """What a report should say of a set besides its name: which list, which classes count."""
    if data.scored is None:
        return dict(data.facts)
    return {**data.facts, "scored": [data.classes[number] for number in data.scored]}


def _parts(data: LabelledSet) -> list[Split]:
    """The parts that a set has."""
    return [part for part in (data.train, data.held_out, data.test) if part is not None]
