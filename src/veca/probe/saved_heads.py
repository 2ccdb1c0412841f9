"""Fitted heads on disk: a safetensors file, and JSON that says what it is a head of.

    head.json           task, classes, model, setting, how pictures are shown to it, its numbers
    head.safetensors    its tensors

The model itself is not in it: `model` names it, and `weights` is the hash by which it is known.
"""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

from safetensors import SafetensorError
from torch import Tensor

from veca.probe.setting import Setting
from veca.runtime.files import make_folder, replace_file
from veca.runtime.precision import ResolvedPrecision
from veca.runtime.tensor_files import read_tensors, tensor_pieces

FACTS_NAME = "head.json"
TENSORS_NAME = "head.safetensors"

FORMAT = 1
"""Rises when the content of the files changes its meaning."""


class HeadError(ValueError):
    """A head that cannot be read or used: what was got, what is allowed, what to do."""


@dataclass(frozen=True, kw_only=True)
class SavedHead:
    """A head with all that is needed to use it on new pictures."""

    task: str
    """Such as 'logistic', 'knn', 'segmentation', 'depth'."""

    data: str
    """The set that it was fitted on."""

    classes: tuple[str, ...]
    """Names by number; none for depth."""

    model: str
    """The name of its backbone."""

    weights: str | None
    """Hash of the backbone's weights."""

    setting: Setting

    resolution: int
    """Pixels of the side of a view; of the short side for dense tasks."""

    protocol: str

    seed: int

    precision: ResolvedPrecision = "fp32"
    """What its backbone computed with."""

    facts: dict[str, Any] = field(default_factory=dict)
    """What the task needs besides, such as the margin of a view or the range of depth."""

    metrics: dict[str, float] = field(default_factory=dict)
    """What it was measured to be worth on the test part."""

    tensors: Mapping[str, Tensor] = field(default_factory=dict)
    """The last field, since it goes into a file of its own."""


def save_head(head: SavedHead, folder: Path) -> None:
    """Write a head; a folder that holds one already gets the new one."""
    make_folder(folder)
    pieces = b"".join(bytes(piece) for piece in tensor_pieces(head.tensors))
    facts = {part.name: getattr(head, part.name) for part in fields(head)[:-1]}
    facts["setting"] = head.setting._asdict()
    facts["classes"] = list(head.classes)
    whole = {"format": FORMAT, "tensors": hashlib.sha256(pieces).hexdigest(), **facts}
    replace_file(folder / TENSORS_NAME, [pieces])
    replace_file(folder / FACTS_NAME, [(json.dumps(whole, indent=2) + "\n").encode()])


def load_head(folder: Path) -> SavedHead:
    """Read a head back, its tensors checked against their hash."""
    facts = _facts(folder)
    try:
        found = hashlib.sha256((folder / TENSORS_NAME).read_bytes()).hexdigest()
        tensors = read_tensors(folder / TENSORS_NAME)
    except (OSError, SafetensorError) as error:
        raise HeadError(
            f"{folder / TENSORS_NAME} cannot be read ({error}); fit the head again."
        ) from error
    if found != facts.pop("tensors", None):
        raise HeadError(
            f"{folder / TENSORS_NAME} is not the file that {FACTS_NAME} speaks of (its hash "
            "differs); fit the head again, or copy both files together."
        )
    try:
        facts["setting"] = Setting(**facts["setting"])
        facts["classes"] = tuple(facts["classes"])
        return SavedHead(**facts, tensors=tensors)
    except (KeyError, TypeError) as error:
        raise HeadError(
            f"{folder / FACTS_NAME} lacks a field or has one too many ({error}); fit it again."
        ) from error


def _facts(folder: Path) -> dict[str, Any]:
    """What the JSON says, or why it cannot be used."""
    try:
        facts = json.loads((folder / FACTS_NAME).read_text("utf-8"))
    except FileNotFoundError as error:
        raise HeadError(
            f"{folder} is no head (it has no {FACTS_NAME}); give a folder below heads/ that "
            "veca probe wrote."
        ) from error
    except ValueError as error:
        raise HeadError(f"{folder / FACTS_NAME} is damaged ({error}); fit it again.") from error
    if not isinstance(facts, dict) or facts.pop("format", None) != FORMAT:
        raise HeadError(
            f"{folder / FACTS_NAME} is of another version of veca; this one reads format {FORMAT}: "
            "fit the head again."
        )
    return facts
