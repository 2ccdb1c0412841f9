"""What kept features depend on: the model that made them, and the pictures that they are of."""

import hashlib
from pathlib import Path
from typing import Any

from veca.data.errors import DataError, PictureError
from veca.data.input_table import Input
from veca.data.labelled import Split
from veca.data.reading import failure, open_input
from veca.probe.block_file import StoreError
from veca.probe.frozen import ProbeModel

SAMPLED_PICTURES = 16
"""Pictures that are looked into, since two sets may have files of the same names and sizes."""

SAMPLED_BYTES = 2**16
"""Bytes of each of them that are looked at."""

FEWER_WORKERS = "repeat the command with fewer --workers; what is kept is used again"
"""What to do when a process that decodes pictures was ended from outside."""


def model_facts(model: ProbeModel) -> dict[str, Any]:
    """What tells a model from another, wherever it lies and whatever it is called.

    A model without a digest is refused: what was kept of it could be that of another.
    """
    if model.digest is None:
        raise StoreError(
            f"features of {model.name} cannot be kept, since it has no digest by which they would "
            "be found again; give the model one."
        )
    found = {
        "digest": model.digest,
        "stride": model.stride,
        "image_width": model.image_width,
        "patch_width": model.patch_width,
    }
    # Features that were kept before there was a choice are fp32, and stay usable.
    return found if model.precision == "fp32" else {**found, "precision": model.precision}


def picture_facts(split: Split) -> dict[str, Any]:
    """What tells the pictures of a split from others, wherever they lie."""
    count = min(SAMPLED_PICTURES, len(split))
    sample = hashlib.sha256()
    for place in range(count):
        source = split.picture(place * len(split) // count)
        try:
            sample.update(hashlib.sha256(_first_bytes(source)).digest())
        except (OSError, PictureError) as error:
            raise unreadable(source, failure(error)) from error
    return {"names_and_sizes": split.fingerprint(), "sample": sample.hexdigest()}


def unreadable(source: Input, reason: str) -> DataError:
    """The error for a picture that cannot be read: without it a number would be of another set."""
    return DataError(
        f"{source.name} cannot be read ({reason}), and a number over the other pictures would not "
        "be one of this set; get the picture again, or take it out of the set."
    )


def _first_bytes(source: Input) -> bytes:
    """The beginning of an encoded picture."""
    with open_input(source) as file:
        if not isinstance(file, str):
            return file.read(SAMPLED_BYTES)
        with Path(file).open("rb") as opened:
            return opened.read(SAMPLED_BYTES)
