"""`veca export`: a model as one file for other runtimes."""

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Literal

import tyro

from veca.cli.flags import texts
from veca.export.graph import Difference, ExportConfig, ExportError, export_program
from veca.export.onnx_file import export_onnx
from veca.weights.checkpoint import load_or_build

DESCRIPTION = """Write a model as one file, whose budget is an input.

'onnx' is for ONNX Runtime, OpenVINO and others; 'torch' is an ExportedProgram for
torch.export.load. The file takes any batch and image size and any number of cores, and is compared
with the model before it is written; if it differs too much, nothing is.

Example: veca export onnx veca-tiny --out veca-tiny.onnx"""


def export(words: Sequence[str]) -> None:
    """Run the command on the words after its name."""
    tyro.cli(_export, prog="veca export", description=DESCRIPTION, args=words)


def _export(  # noqa: PLR0913 - the flags of the command
    form: Annotated[Literal["onnx", "torch"], tyro.conf.Positional],
    model: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="MODEL")] = "veca-tiny",
    /,
    *,
    out: Annotated[Path, tyro.conf.arg(metavar="FILE")],
    precision: Literal["fp32", "fp16", "int8"] = "fp32",
    outputs: str = "image,cores,patches,points",
    budget: Annotated[int | None, tyro.conf.arg(metavar="C")] = None,
    ffn: Annotated[float | None, tyro.conf.arg(metavar="SHARE")] = None,
    fixed_size: Annotated[str | None, tyro.conf.arg(metavar="SIDE|HxW")] = None,
    preprocess: Annotated[bool, tyro.conf.FlagCreatePairsOff] = False,
    size: Annotated[int | None, tyro.conf.arg(metavar="PX")] = None,
) -> None:
    """Export a model.

    Args:
        form: onnx or torch
        model: a folder, .safetensors file, bundled name, hub name, or a size (untrained)
        out: the file to write
        precision: fp32, fp16, or int8 (weights of matrix products; onnx only)
        outputs: what the file gives: image, cores, patches, points
        budget: a fixed number of cores instead of an input
        ffn: share of the hidden units, for models with nested feed-forward layers
        fixed_size: the only height and width that the file takes, such as 512 or 384x512
        preprocess: take bytes (B, height, width, 3) of any size; resize and normalize in the file
        size: with --preprocess, the short side after resizing; 256 if not given
    """
    if out.is_dir() or not out.parent.is_dir():
        raise ExportError(f"{out} cannot be written; give a file name in an existing folder.")
    if size is not None and not preprocess:
        raise ExportError(f"--size {size} needs --preprocess; for one size only use --fixed-size.")
    loaded = load_or_build(model)
    config = ExportConfig(
        outputs=texts("--outputs", outputs),
        precision=precision,
        budget=budget,
        ffn=ffn,
        fixed_size=None if fixed_size is None else _sides(fixed_size),
        resize_to=size or 256 if preprocess else None,
    )
    print(f"Exporting {loaded.title}; tracing and checking take about a minute.")
    write = export_onnx if form == "onnx" else export_program
    print(_summary(out, write(loaded.model, out, config)))


def _sides(text: str) -> tuple[int, int]:
    """Height and width."""
    parts = text.lower().split("x")
    if len(parts) > 2 or not all(part.isdecimal() for part in parts):
        raise ExportError(f"--fixed-size got {text!r}; give one side, or HEIGHTxWIDTH.")
    return int(parts[0]), int(parts[-1])


def _summary(out: Path, found: Difference) -> str:
    """What was written, and how close it is."""
    return (
        f"Wrote {out} ({out.stat().st_size / 1e6:,.1f} MB). Compared with the model at several "
        f"sizes, batches and budgets: largest difference {found.largest:.1g}, smallest cosine "
        f"{found.cosine:.7f}."
    )
