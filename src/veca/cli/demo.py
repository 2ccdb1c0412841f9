"""`veca demo`: photographs through several budgets, as a table and a page."""

import time
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import tyro
from rich.console import Console
from rich.table import Table

from veca.analysis.demo import Demo, RunInfo, page, run_demo, sample_photos
from veca.analysis.machine import this_machine
from veca.cli.flags import command_line
from veca.runtime.device import Precision
from veca.runtime.files import make_folder, write_atomic
from veca.weights.checkpoint import NamedModel, load_or_build

DESCRIPTION = """Show one model at several budgets: a table, and a page with pictures.

Example: veca demo holiday.jpg --budgets 8,16,64 --out build/demo"""


def demo(words: Sequence[str]) -> None:
    """Run the command on the words after its name."""
    command = command_line("demo", words)

    def run(  # noqa: PLR0913 - the flags of the command
        photos: Annotated[tuple[Path, ...], tyro.conf.Positional] = (),
        /,
        *,
        model: str = "veca-tiny",
        budgets: str = "8,16,32,64",
        size: int = 448,
        precision: Precision = "auto",
        out: Path = Path("build/demo"),
    ) -> None:
        """Encode photos at every budget and write the report.

        Args:
            photos: pictures of your own; none means the samples that scikit-image ships
            model: a folder, .safetensors file, bundled name, hub name, or a size (untrained)
            budgets: numbers of cores, with commas
            size: short side of a photo in pixels
            precision: what the model computes with; auto is bf16 where the CPU computes it
                natively, else fp32
            out: folder of the report
        """
        found = load_or_build(model, precision=precision)
        _demo(photos or tuple(sample_photos()), found, _numbers(budgets), size, out, command)

    tyro.cli(run, prog="veca demo", description=DESCRIPTION, args=words)


def _demo(  # noqa: PLR0913, PLR0917 - the flags of the command
    photos: Sequence[Path],
    found: NamedModel,
    budgets: Sequence[int],
    size: int,
    out: Path,
    command: str,
) -> None:
    """Run it, print the table, write the page."""
    started = time.perf_counter()
    console = Console(highlight=False)
    console.print(f"[bold]{found.title}[/bold]")
    if not found.trained:
        console.print(
            "These weights are untrained: times and FLOPs are real, but the pictures show how the "
            "machine works, not what it has learned."
        )
    console.print(f"{len(photos)} photos at {', '.join(map(str, budgets))} cores ...")
    title = f"{found.title}, weights {found.digest[:12]}"
    info = RunInfo(title, found.trained, str(this_machine()), command)
    shown = run_demo(found.model, photos, budgets, size, info)
    console.print(_table(shown))
    make_folder(out)
    target = out / "report.html"
    write_atomic(target, [page(shown).encode()])
    print(f"Report: {target} ({time.perf_counter() - started:.0f} s in all)")


def _table(shown: Demo) -> Table:
    """What each budget costs, and how close it comes to the whole bank."""
    width, height = shown.pixels
    title = f"one image of {width} x {height} pixels, computed in {shown.precision}"
    table = Table(title=title, title_justify="left")
    for heading in (
        "cores", "ms here", "GFLOPs", "pairs", "of full attention", "image cos", "patch cos",
    ):  # fmt: skip
        table.add_column(heading, justify="right")
    for row in shown.rows:
        table.add_row(
            str(row.budget),
            f"{row.milliseconds:.0f} [{row.quartiles[0]:.0f}-{row.quartiles[1]:.0f}]",
            f"{row.gflops:.1f}",
            f"{row.pairs:,}",
            f"{row.pairs_share:.2%}",
            f"{row.image_similarity:.3f}",
            f"{row.patch_similarity:.3f}",
        )
    return table


def _numbers(text: str) -> list[int]:
    """Whole numbers with commas."""
    try:
        return [int(part) for part in text.split(",")]
    except ValueError as error:
        raise ValueError(
            f"--budgets got {text!r}; give numbers of cores with commas, such as 8,16,64."
        ) from error
