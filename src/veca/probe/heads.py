"""Fitted heads, per-image results and examples on disk.

A head is one safetensors file, `OUT/heads/NAME.safetensors`. Its metadata (task, classes, backbone,
setting, preprocessing, metrics) is hashed with the tensors. The backbone itself is not stored:
`model` names it and `weights` is its hash. `OUT/per_image/NAME.safetensors` has the result for each
test image, with one of the rows of its result, by which `bootstrap.py` finds it;
`OUT/examples/NAME.safetensors` has pictures for the page likewise (`pictures.py`).
"""

import hashlib
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from torch import Tensor

from veca.data.listing import absolute
from veca.probe.pictures import examples_of
from veca.probe.rows import ProbeError, ProbeResult, Row, Setting, Task, row_from_json
from veca.runtime.device import ResolvedPrecision
from veca.runtime.tensors import TensorFile, load_tensors, save_tensors

HEADS_FOLDER = "heads"
PER_IMAGE_FOLDER = "per_image"
EXAMPLES_FOLDER = "examples"
SUFFIX = ".safetensors"

FORMAT = 2
"""Rises when the content of a head file changes its meaning."""

DENSE_TASKS = ("segmentation", "dense-knn", "depth")


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


def save_head(head: SavedHead, path: Path) -> None:
    """Write a head; an existing file is replaced."""
    metadata = {"kind": "head", "format": FORMAT, **vars(head)}
    metadata |= {"setting": head.setting._asdict(), "classes": list(head.classes)}
    del metadata["tensors"]
    save_tensors(path, head.tensors, metadata)


def load_head(path: Path) -> SavedHead:
    """Read a head and verify its hash, which covers the metadata too."""
    try:
        tensors, metadata = load_tensors(path)
    except (FileNotFoundError, IsADirectoryError) as error:
        problem = "is a folder" if path.is_dir() else "does not exist"
        raise ProbeError(
            f"{path} {problem}; give the --out folder of a veca probe run, or a .safetensors file "
            f"below its {HEADS_FOLDER}/."
        ) from error
    except OSError as error:
        raise ProbeError(f"the head {path} cannot be read ({error}); fit it again.") from error
    if metadata.pop("kind", None) != "head":
        raise ProbeError(
            f"{path} holds other tensors; give a head that veca probe wrote below {HEADS_FOLDER}/."
        )
    if (found := metadata.pop("format", None)) != FORMAT:
        raise ProbeError(
            f"{path} has head format {found}, but this version of veca reads {FORMAT}; fit it "
            "again."
        )
    own = {"setting": Setting(**metadata["setting"]), "classes": tuple(metadata["classes"])}
    return SavedHead(**metadata | own, tensors=tensors)


def save_result(result: ProbeResult, row: Row, feature: str | None, out: Path) -> Path | None:
    """Save the per-image results and, if there is one, the head; return the file of the head.

    `row` is any row of the result, which identifies it; `out` is the folder of the report;
    `feature` is what the user asked for, None for the default, which is left out of names.
    """
    classes = result.data.eval_classes
    folder, metadata = out / PER_IMAGE_FOLDER, {"eval_classes": classes and list(classes)}
    name = _save_with_row(folder, result.per_image, metadata, row, feature)
    if not result.tensors:
        return None
    shared = ("task", "data", "weights", "setting", "resolution", "protocol", "seed", "precision")
    head = SavedHead(
        **{name: getattr(row, name) for name in shared},
        classes=result.data.classes,
        model=_model_name(row),
        facts=dict(result.facts),
        metrics=dict(result.metrics),
        tensors=result.tensors,
    )
    save_head(head, out / HEADS_FOLDER / name)
    return out / HEADS_FOLDER / name


def save_examples(results: Sequence[ProbeResult], row: Row, feature: str | None, out: Path) -> None:
    """Save pictures of a model's results, given by rising settings; `row` is one of the last."""
    tensors, metadata = examples_of(results)
    _save_with_row(out / EXAMPLES_FOLDER, tensors, metadata, row, feature)


def _save_with_row(
    folder: Path,
    tensors: Mapping[str, Tensor],
    metadata: Mapping[str, Any],
    row: Row,
    feature: str | None,
) -> str:
    """Save what belongs to a result with one of its rows; returns the name of the file."""
    text = f"{row.weights or _model_name(row)}\n{row.data_sha256}"
    owner = hashlib.sha256(text.encode("utf-8", "surrogateescape")).hexdigest()
    name = _file_name(row, feature, owner, folder)
    save_tensors(folder / name, tensors, {"row": row.as_json(), "owner": owner, **metadata})
    return name


def _model_name(row: Row) -> str:
    """The model as `veca predict` looks for it."""
    return absolute(row.model) if Path(row.model).expanduser().exists() else row.model


def _file_name(row: Row, feature: str | None, owner: str, folder: Path) -> str:
    """Describe a measurement in characters that are safe in a file name.

    A hash is appended if another model or dataset took the name.
    """
    path = Path(row.model).expanduser()
    model = "-".join(path.parts[-2:]) if path.exists() else row.model
    parts = [row.task, row.data, model, row.setting.label, f"{row.resolution}px", row.protocol]
    parts += [] if feature is None else [feature]
    parts += [] if row.precision == "fp32" else [row.precision]
    name = re.sub(r"[^A-Za-z0-9.+=_-]+", "-", "_".join([*parts, f"s{row.seed}"]))
    try:
        with TensorFile(folder / f"{name}{SUFFIX}") as file:
            taken = file.metadata["owner"] != owner
    except OSError:  # none, or damaged
        taken = False
    return f"{name}-{owner[:8]}{SUFFIX}" if taken else f"{name}{SUFFIX}"


def find_results(*folders: Path) -> dict[str, Path]:
    """Files of what is saved of results by the identity of these; the newest file wins.

    Files are matched by the row in their metadata, not by name; damaged and foreign ones are
    skipped.
    """
    found = {}
    paths = [path for folder in folders for path in folder.glob("*.safetensors")]
    for path in sorted(paths, key=lambda path: path.stat().st_mtime_ns):
        try:
            with TensorFile(path) as file:
                row = row_from_json(file.metadata["row"])
        except (OSError, ValueError, KeyError):
            continue
        found[result_key(row, row.seed)] = path
    return found


def result_key(row: Row, seed: int) -> str:
    """Identity of a result: equal for all of its rows, whatever the role or name of the model."""
    ignored = ["metric", "unit", "role", "trained", "seed"]
    return f"{seed} {row.identity(*ignored, *([] if row.weights is None else ['model']))}"
