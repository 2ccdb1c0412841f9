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

RECIPE = "tiny, as docs/results/2026-11-18_close-the-gap tells; the run is not finished"


def main(source: str, target: str) -> None:
    """Write model and adaptors."""
    told = model_info(source).provenance
    if told is None:
        raise ValueError(f"{source} does not tell where it comes from; give a run's last.")
    told = replace(told, command=COMMAND, recipe=RECIPE)  # no paths of one machine
    veca.save(veca.load(source), target, dtype=torch.float16, provenance=told)
    adaptors = load_file(Path(source) / ADAPTORS_NAME)
    halves = {name: tensor.half() for name, tensor in adaptors.items()}
    save_file(halves, Path(target) / ADAPTORS_NAME)


if __name__ == "__main__":
    main(*sys.argv[1:])
