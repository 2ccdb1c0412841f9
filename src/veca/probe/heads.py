"""Fitted heads and per-image results on disk.

A head is one safetensors file, `OUT/heads/NAME.safetensors`. Its metadata (task, classes, backbone,
setting, preprocessing, metrics) is hashed with the tensors. The backbone itself is not stored:
`model` names it and `weights` is its hash. `OUT/per_image/NAME.safetensors` has the result for each
test image, with one of the rows of its result, by which `bootstrap.py` finds it.
"""

import hashlib
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

from torch import Tensor

from veca.data.listing import absolute
from veca.probe.rows import TASKS, ProbeResult, Row, Setting, Task
from veca.runtime import VecaError
from veca.runtime.device import ResolvedPrecision
from veca.runtime.tensors import load_tensors, open_tensors, save_tensors

HEADS_FOLDER = "heads"
PER_IMAGE_FOLDER = "per_image"
SUFFIX = ".safetensors"

FORMAT = 2
"""Rises when the content of a head file changes its meaning."""

MAX_RESOLUTION = 2**14

DENSE_TASKS = ("segmentation", "dense-knn", "depth")


class HeadError(VecaError, ValueError):
    """A head that cannot be read or used."""


@dataclass(frozen=True, kw_only=True)
class SavedHead:
    """A head with all that is needed to use it on new images."""

    task: Task

    data: str
    """The dataset that it was fitted on."""

    classes: tuple[str, ...]
    """Class names by index; empty for depth."""

    model: str
    """Name of its backbone."""

    weights: str | None
    """Hash of the backbone's weights."""

    setting: Setting

    resolution: int
    """Pixels of the side of a view; of the short side for dense tasks."""

    protocol: str

    seed: int

    precision: ResolvedPrecision = "fp32"
    """Precision of its backbone."""

    facts: dict[str, Any] = field(default_factory=dict)
    """What the task needs besides, such as preprocessing or the range of depth."""

    metrics: dict[str, float] = field(default_factory=dict)
    """Measured on the test split."""

    tensors: Mapping[str, Tensor] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Refuse what a head cannot be."""
        if self.task not in TASKS or not 1 <= self.resolution <= MAX_RESOLUTION:
            raise ValueError(f"it is of {self.task!r} at {self.resolution!r} px")


def save_head(head: SavedHead, path: Path) -> None:
    """Write a head; an existing file is replaced."""
    metadata = {item.name: getattr(head, item.name) for item in fields(head)[:-1]}
    metadata |= {"setting": head.setting._asdict(), "classes": list(head.classes)}
    save_tensors(path, head.tensors, {"kind": "head", "format": FORMAT, **metadata})


def load_head(path: Path) -> SavedHead:
    """Read a head and verify its hash, which covers the metadata too."""
    try:
        tensors, metadata = load_tensors(path)
    except (FileNotFoundError, IsADirectoryError) as error:
        raise HeadError(
            f"{path} is not a head; give a .safetensors file below {HEADS_FOLDER}/ that veca probe "
            "wrote."
        ) from error
    except OSError as error:
        raise HeadError(f"the head {path} cannot be read ({error}); fit it again.") from error
    if metadata.pop("kind", None) != "head":
        raise HeadError(
            f"{path} holds other tensors; give a head that veca probe wrote below {HEADS_FOLDER}/."
        )
    if (found := metadata.pop("format", None)) != FORMAT:
        raise HeadError(
            f"{path} has head format {found}, but this version of veca reads {FORMAT}; fit it "
            "again."
        )
    try:
        own = {"setting": Setting(**metadata["setting"]), "classes": tuple(metadata["classes"])}
        return SavedHead(**metadata | own, tensors=tensors)
    except (KeyError, TypeError, ValueError) as error:
        raise HeadError(f"{path} is not a usable head ({error}); fit it again.") from error


def head_files(folder: Path) -> list[Path]:
    """Heads in a folder that veca probe wrote, or in its folder of heads."""
    places = (f"{HEADS_FOLDER}/*{SUFFIX}", f"*{SUFFIX}")
    return sorted(path for place in places for path in folder.glob(place))


def save_result(result: ProbeResult, row: Row, feature: str | None, out: Path) -> Path | None:
    """Save the per-image results and, if there is one, the head; return the file of the head.

    Args:
        result: what a task found.
        row: one of its rows, which identifies it.
        feature: as the user gave it; None means the default, which is left out of names.
        out: folder of the report.
    """
    model = row.model
    if Path(model).expanduser().exists():
        model = absolute(model)
    text = f"{row.weights or model}\n{row.data_sha256}"
    owner = hashlib.sha256(text.encode("utf-8", "surrogateescape")).hexdigest()
    name = _free_name(_name(row, feature), owner, out / PER_IMAGE_FOLDER)
    path = out / PER_IMAGE_FOLDER / f"{name}{SUFFIX}"
    save_per_image(path, result.per_image, row, result.data.eval_classes, owner)
    if not result.tensors:
        return None
    head = SavedHead(
        task=row.task,
        data=row.data,
        classes=result.data.classes,
        model=model,
        weights=row.weights,
        setting=result.setting,
        resolution=row.resolution,
        protocol=row.protocol,
        seed=result.seed,
        precision=row.precision,
        facts=dict(result.facts),
        metrics=dict(result.metrics),
        tensors=result.tensors,
    )
    path = out / HEADS_FOLDER / f"{name}{SUFFIX}"
    save_head(head, path)
    return path


def save_per_image(
    path: Path,
    tensors: Mapping[str, Tensor],
    row: Row,
    eval_classes: Sequence[int] | None,
    owner: str = "",
) -> None:
    """Write per-image results; `owner` identifies the weights and images of a file name."""
    classes = None if eval_classes is None else list(eval_classes)
    save_tensors(path, tensors, {"row": row.as_json(), "eval_classes": classes, "owner": owner})


def _name(row: Row, feature: str | None) -> str:
    """What was measured, in characters that are safe in a file name."""
    path = Path(row.model).expanduser()
    model = "-".join(path.parts[-2:]) if path.exists() else row.model
    parts = [row.task, row.data, model, row.setting.label, f"{row.resolution}px", row.protocol]
    parts += [] if feature is None else [feature]
    parts += [] if row.precision == "fp32" else [row.precision]
    return re.sub(r"[^A-Za-z0-9.+=_-]+", "-", "_".join([*parts, f"s{row.seed}"]))


def _free_name(name: str, owner: str, folder: Path) -> str:
    """The name, with a hash if another model or dataset of the same name has it."""
    try:
        with open_tensors(folder / f"{name}{SUFFIX}") as file:
            taken = file.metadata.get("owner", owner) != owner
    except OSError:  # none, or damaged
        taken = False
    return f"{name}-{owner[:8]}" if taken else name
