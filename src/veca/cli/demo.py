"""`veca demo`: photographs through several budgets, as a table and a page."""

import shlex
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import tyro
from rich.console import Console
from rich.table import Table
from rich.text import Text

from veca.analysis.demo import Demo, page, run_demo, sample_photos
from veca.analysis.machine import this_machine
from veca.cli.flags import command_line, read_flags, whole_numbers
from veca.runtime.device import Precision
from veca.runtime.files import make_folder, write_atomic
from veca.weights.checkpoint import load_or_build
from veca.weights.hub import DEFAULT_MODEL

DESCRIPTION = """Show one model at several budgets: a table, and a page with pictures.

Example: veca demo holiday.jpg --budgets 8,16,64 --out build/demo"""


def demo(words: Sequence[str]) -> None:
    """Run the command on the words after its name."""
    command = command_line("demo", words)

    def run(  # noqa: PLR0913 - the flags of the command
        photos: Annotated[
            tuple[Path, ...],
            tyro.conf.Positional,
            tyro.conf.arg(metavar="[PHOTOS...]", help_behavior_hint=""),
        ] = (),
        /,
        *,
        model: Annotated[str, tyro.conf.arg(metavar="M")] = DEFAULT_MODEL,
        budgets: Annotated[str, tyro.conf.arg(metavar="CORES,...")] = "8,16,32,64",
        size: int = 448,
        precision: Precision = "auto",
        out: Path = Path("build/demo"),
    ) -> None:
        """Encode photos at every budget and write the report.

        Args:
            photos: your own images; the samples of scikit-image if not given
            model: a folder, .safetensors file, bundled name, hub name, or a size (untrained)
            budgets: numbers of cores, with commas
            size: short side of a photo in pixels
            precision: fp32, bf16 or auto (bf16 where the CPU computes it natively)
            out: folder of the report
        """
        started = time.perf_counter()
        found = load_or_build(model, precision=precision)
        shown_photos = photos or tuple(sample_photos())
        cores = whole_numbers("--budgets", budgets)
        console = Console(highlight=False)
        console.print(Text(found.title, "bold"))
        if not found.trained:
            console.print(
                "These weights are untrained: times and FLOPs are real, but the pictures show only "
                "how the model works, not what it has learned."
            )
        console.print(f"{len(shown_photos)} photos at {', '.join(map(str, cores))} cores ...")
        shown = run_demo(found.model, shown_photos, cores, size)
        console.print(_table(shown))
        explore = shlex.join(["veca", "explore", *([] if model == DEFAULT_MODEL else [model])])
        content = page(
            shown,
            model=f"{found.title}, weights {found.digest[:12]}",
            trained=found.trained,
            machine=str(this_machine()),
            command=command,
            explore=explore,
        )
        make_folder(out)
        write_atomic(out / "report.html", [content])
        seconds = time.perf_counter() - started
        print(f"Report: {out / 'report.html'} ({seconds:.0f} s in all)")
        print(f"Your own pictures, with a slider for the budget: {explore}")

    read_flags(run, words, prog="veca demo", description=DESCRIPTION)


def _table(shown: Demo) -> Table:
    """What each budget costs, and how close its features are to those of all cores."""
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
            f"{row.ms.median:.0f} [{row.ms.low:.0f}-{row.ms.high:.0f}]",
            f"{row.gflops:.1f}",
            f"{row.pairs:,}",
            f"{row.pairs_share:.2%}",
            f"{row.image_similarity:.3f}",
            f"{row.patch_similarity:.3f}",
        )
    return table
