"""Hashes by which a labelled set is known, wherever it lies."""

import hashlib
from pathlib import Path

from veca.data.labelled import LabelledSet, Split


def pictures_hash(data: LabelledSet) -> str:
    """SHA-256 over names and sizes of the pictures of a set, part by part."""
    text = "\n".join(f"{part.name} {part.fingerprint()}" for part in _parts(data))
    return hashlib.sha256(text.encode()).hexdigest()


def labels_hash(data: LabelledSet) -> str:
    """SHA-256 over what is told of the pictures; of masks and depth over the sizes of files."""
    found = hashlib.sha256("\n".join(data.classes).encode("utf-8", "surrogateescape"))
    for part in _parts(data):
        for values in (part.labels, part.counted):
            found.update(b"\0" if values is None else values.tobytes())
        for target in part.targets:
            found.update(b"%d\n" % Path(target).stat().st_size)
    return found.hexdigest()


def _parts(data: LabelledSet) -> list[Split]:
    """The parts that a set has."""
    return [part for part in (data.train, data.held_out, data.test) if part is not None]
