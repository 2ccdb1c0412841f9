"""Gives the cores of a student heads that do not move them yet, but can learn to.

    python docs/results/2026-11-16_veca-tiny/wake.py FROM TO

FROM is a folder with a model and its adaptors, TO a new one for `veca distill --start`. Stages 1 to
4 shrank every scale to nearly nothing, and what multiplies a zero does not learn.
"""

import shutil
import sys
from pathlib import Path

import torch
from torch import nn

import veca
from veca.backbone.cores import CoreStep
from veca.distill.run_folder import ADAPTORS_NAME


@torch.no_grad()
def main(source: str, target: str) -> None:
    """Read a model, write it with heads of zeros and scales as at the beginning."""
    model = veca.load(source)
    for step in model.core_steps:
        if isinstance(step, CoreStep):
            step.reset_parameters()
            nn.init.zeros_(step.head.weight)
            nn.init.zeros_(step.head.bias)
    veca.save(model, target)
    shutil.copy(Path(source) / ADAPTORS_NAME, Path(target) / ADAPTORS_NAME)


if __name__ == "__main__":
    main(*sys.argv[1:])
