"""From a run to a model that others load: weights, card, and where they come from."""

import datetime
from collections.abc import Mapping, Sequence
from pathlib import Path

import torch
from torch import Tensor

from veca.backbone.model import VECA
from veca.distill.config import DistillConfig
from veca.runtime.files import replace_file
from veca.runtime.tensor_files import tensor_pieces
from veca.teacher.teacher import Teacher
from veca.weights.checkpoint import save
from veca.weights.provenance import NOT_RECORDED, Provenance

BACKBONE = "backbone."
ADAPTORS = "adaptors."
ADAPTORS_NAME = "adaptors.safetensors"


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
        replace_file(folder / ADAPTORS_NAME, tensor_pieces(chosen))


def provenance_of(
    config: DistillConfig, teachers: Sequence[Teacher], images: int, command: str | None
) -> Provenance:
    """What the card says of a run; the licence of the weights is their maker's to choose."""
    source = Path(config.images).name if config.images else "generated pictures"
    return Provenance(
        teacher=", ".join(teacher.name for teacher in teachers),
        teacher_licence=", ".join(teacher.licence or NOT_RECORDED for teacher in teachers),
        data=f"{images:,} unlabelled images ({source})",
        recipe=config.recipe if config.attention != "full" else f"{config.recipe}, full attention",
        command=command,
        seed=config.seed,
        date=datetime.datetime.now(tz=datetime.UTC).date().isoformat(),
    )
