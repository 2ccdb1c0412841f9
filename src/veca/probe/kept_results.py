"""Heads and single cases of a run on disk, under names that tell people what they are.

out/heads/<name>/                    a fitted head, for `veca predict`
out/cases/<name>.safetensors         what became of each test picture, for paired comparisons

A result that is measured again takes the place of the old one. Where two models or two sets would
come by the same name, as runs/best of two disks, the second one gets a name with a hash.
"""

import hashlib
import re
from dataclasses import dataclass
from pathlib import Path

from safetensors import SafetensorError, safe_open

from veca.data.names import absolute
from veca.probe.case_files import CASES_FOLDER, case_facts
from veca.probe.measured import Found
from veca.probe.rows import Row, Task
from veca.probe.saved_heads import SavedHead, save_head
from veca.runtime.files import make_folder, replace_file
from veca.runtime.tensor_files import tensor_pieces

HEADS_FOLDER = "heads"


@dataclass(frozen=True, kw_only=True)
class Origin:
    """What a result is of, besides what was found."""

    task: Task

    data: str
    """The set of the head, as it was named."""

    classes: tuple[str, ...]

    feature: str | None
    """As it was asked for; None means the usual one, which is left out of names."""

    pictures: str
    """Hash of the measured pictures."""

    row: Row | None = None
    """One of the rows that the result became, by which its cases are found again; None if none."""


def keep_result(found: Found, origin: Origin, out: Path) -> Path | None:
    """Write the cases and, if there is one, the head; return the folder of the head."""
    measured = found.measured
    name = _free_name(_name(found, origin), _owner(found, origin), out / CASES_FOLDER)
    metadata = {
        "data": measured.data.name,
        "sha256": origin.pictures,
        "owner": _owner(found, origin),
    }
    if origin.row is not None:
        metadata |= case_facts(origin.row, measured.data.scored)
    make_folder(out / CASES_FOLDER)
    replace_file(_cases(out / CASES_FOLDER, name), tensor_pieces(measured.cases, metadata))
    if measured.head is None:
        return None
    head = SavedHead(
        task=origin.task,
        data=measured.data.name,
        classes=origin.classes,
        model=_model(found),
        weights=found.who.model.digest,
        setting=measured.setting,
        resolution=found.resolution,
        protocol=measured.protocol,
        seed=measured.seed,
        precision=found.who.model.precision,
        facts=measured.head.facts,
        metrics=dict(measured.metrics),
        tensors=measured.head.tensors,
    )
    folder = out / HEADS_FOLDER / name
    save_head(head, folder)
    return folder


def _name(found: Found, origin: Origin) -> str:
    """What was measured, in letters that are safe in a file name."""
    measured, asked = found.measured, found.who.asked
    path = Path(asked).expanduser()
    model = "-".join(path.parts[-2:]) if path.exists() else asked
    words = [origin.task, measured.data.name, model, measured.setting.label]
    words += [f"{found.resolution}px", measured.protocol]
    words += [] if origin.feature is None else [origin.feature]
    words += [] if found.who.model.precision == "fp32" else [found.who.model.precision]
    return re.sub(r"[^A-Za-z0-9.+=_-]+", "-", "_".join([*words, f"s{measured.seed}"]))


def _model(found: Found) -> str:
    """The name of a model, which for a path is the same in every folder."""
    asked = found.who.asked
    return absolute(asked) if Path(asked).expanduser().exists() else asked


def _owner(found: Found, origin: Origin) -> str:
    """Hash of what a name may leave open: where the model lies, and where the set."""
    name, mark, folder = origin.data.partition("=")
    where = f"{name}={absolute(folder)}" if mark else absolute(origin.data)
    text = f"{_model(found)}\n{where}"
    return hashlib.sha256(text.encode("utf-8", "surrogateescape")).hexdigest()


def _free_name(name: str, owner: str, folder: Path) -> str:
    """The name, longer where it is another one's."""
    try:
        with safe_open(_cases(folder, name), "pt") as file:
            taken = (file.metadata() or {}).get("owner", owner) != owner
    except (OSError, SafetensorError):  # none, or damaged
        taken = False
    return f"{name}-{owner[:8]}" if taken else name


def _cases(folder: Path, name: str) -> Path:
    """The file of the cases of a name."""
    return folder / f"{name}.safetensors"
