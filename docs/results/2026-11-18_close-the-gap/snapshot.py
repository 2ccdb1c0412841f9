"""Store a run's moving average in half precision, with its adaptors, to be continued anywhere.

python docs/results/2026-11-18_close-the-gap/snapshot.py RUN/last weights/in-training/NAME

RUN is the folder of a stage; NAME is one of the models.
"""

import sys
from dataclasses import replace
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file

import veca
from veca.distill.run_folder import ADAPTORS_NAME
from veca.weights.checkpoint import model_info

COMMAND = "sh docs/results/2026-11-18_close-the-gap/run.sh, stage by stage"

RECIPE = "tiny, see docs/results/2026-11-18_close-the-gap; the run is not finished"

PREFIX = "Of the model it started from: "


def main(source: str, target: str) -> None:
    """Write model and adaptors."""
    known = model_info(source).provenance
    if known is None:
        raise ValueError(f"{source} has no record of its training; give a run's last.")
    notes = known.notes  # each stage prefixes the notes of the one before
    while notes and notes.startswith(2 * PREFIX):
        notes = notes.removeprefix(PREFIX)
    known = replace(known, command=COMMAND, recipe=RECIPE, notes=notes)  # no paths of one machine
    veca.save(veca.load(source), target, dtype=torch.float16, provenance=known)
    adaptors = load_file(Path(source) / ADAPTORS_NAME)
    halves = {name: tensor.half() for name, tensor in adaptors.items()}
    save_file(halves, Path(target) / ADAPTORS_NAME)


if __name__ == "__main__":
    main(*sys.argv[1:])
