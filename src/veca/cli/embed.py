"""`veca embed` and `veca search`: features of many images, and similarity search among them."""

import json
import sys
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from signal import SIGINT
from typing import Annotated

import tyro

from veca.cli.flags import command_line, from_here, read_flags
from veca.embed.collection import Collection
from veca.embed.contact_sheet import contact_sheet, write_sheet
from veca.embed.embed import EmbedConfig, EmbedSummary, embed_images
from veca.embed.search import nearest, query_vector
from veca.runtime.files import printable
from veca.runtime.logging import duration
from veca.runtime.signals import exit_code, stop_requests
from veca.weights.hub import DEFAULT_MODEL

EMBED = """Store the features of many images as Parquet files, one row per image.

Images are given as files, folders, .tar files, patterns, or .txt and .lst lists with a path per
line, relative to the list. Images that cannot be read get a row with the reason; the exit code is 0
as long as the collection has any feature. Repeat the command to continue an interrupted run, to add
new images, and to compute damaged files and changed images again.

Example: veca embed photos more.tar --budget 16 --out features"""

SEARCH = """Find the images of a collection that are most similar to one, and draw a contact sheet.

The image may be any file, or one of the collection (its path, or photos.tar#name), which needs no
model. The search is exact: every feature is compared, by cosine similarity.

Example: veca search beach.jpg --in features --top 12 --out sheet.png"""

DEFAULTS = EmbedConfig()

Paths = Annotated[
    tuple[str, ...],
    tyro.conf.Positional,
    tyro.conf.arg(metavar="PATHS...", help_behavior_hint="(one or more)"),
]


def embed(words: Sequence[str]) -> None:
    """Run `veca embed` with these arguments."""
    with stop_requests() as flag:
        job = read_flags(_embed_job, words, prog="veca embed", description=EMBED)
        try:
            summary = job(
                command=command_line("embed", words), show_progress=True, stop=flag.requested
            )
        except KeyboardInterrupt as stopped:
            print("Finished shards are kept; repeat the command to continue.", file=sys.stderr)
            raise SystemExit(exit_code(flag.signal or SIGINT)) from stopped
    print("\n".join(_summary_lines(summary)))


def _embed_job(  # noqa: PLR0913 - the flags of the command
    paths: Paths,
    /,
    *,
    out: Annotated[Path, tyro.conf.arg(metavar="DIR")],
    model: Annotated[str, tyro.conf.arg(metavar="M")] = DEFAULT_MODEL,
    config: Annotated[EmbedConfig, tyro.conf.arg(name=""), tyro.conf.FlagCreatePairsOff] = DEFAULTS,
    batch: int = 16,
    workers: int = 2,
    device: str = "auto",
) -> Callable[..., EmbedSummary]:
    """Parse the flags.

    Args:
        paths: images, folders, .tar files, .txt or .lst lists, patterns in quotes
        out: folder of the collection, new or to be continued
        model: a folder, .safetensors file, bundled name, hub name, or a size (untrained)
        config: what to compute and store
        batch: images of equal size that go through the model together, at most
        workers: processes that decode images; 0 decodes in the main process
        device: auto, cpu, cuda, cuda:1
    """
    return partial(
        embed_images, paths, model, out, config,
        num_workers=workers, batch_size=batch, device=device,
    )  # fmt: skip


def _summary_lines(summary: EmbedSummary) -> list[str]:
    """Sentences on what a run did."""
    meta = summary.meta
    stored = (
        f"{summary.folder} has {summary.images:,} features of {meta.backbone['width']} channels "
        f"({meta.settings['dtype']}, computed in {meta.settings['precision']})"
    )
    lines = [f"Nothing to do: {stored}."]
    if done := summary.embedded + summary.failed:
        rate = done / max(summary.seconds, 1e-9)
        changed = f" ({summary.changed:,} changed files again)" if summary.changed else ""
        lines = [
            f"Embedded {summary.embedded:,} images{changed} in {duration(summary.seconds)}, "
            f"{rate:,.1f} images/s; {stored}."
        ]
    if summary.unreadable:
        lines.append(
            f"{summary.unreadable:,} images could not be read ({summary.failed:,} in this run); "
            "the column 'error' has the reasons."
        )
        lines += [f"  {printable(error)}" for error in summary.errors]
    if summary.ignored:
        lines.append(f"Ignored {summary.ignored:,} files without an image file extension.")
    return lines


def search(words: Sequence[str]) -> None:
    """Run `veca search` with these arguments."""
    read_flags(_search, words, prog="veca search", description=SEARCH)


def _search(  # noqa: PLR0913 - the flags of the command
    image: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="IMAGE")],
    /,
    *,
    folder: Annotated[Path, tyro.conf.arg(name="in", metavar="DIR")],
    top: int = 12,
    out: Annotated[Path, tyro.conf.arg(metavar="PNG")] = Path("sheet.png"),
    as_json: Annotated[bool, tyro.conf.arg(name="json"), tyro.conf.FlagCreatePairsOff] = False,
    model: Annotated[
        str | None, tyro.conf.arg(metavar="M", help_behavior_hint="(default: as recorded)")
    ] = None,
    device: str = "auto",
) -> None:
    """Search a collection.

    Args:
        image: the image to search with
        folder: collection made by veca embed
        top: number of matches
        out: contact sheet to write
        as_json: print JSON
        model: current path of the model of the collection, if it has moved
        device: where the model runs
    """
    collection = Collection.open(folder)
    query = query_vector(collection, image, model, device)
    matches = nearest(collection, query.feature, top)
    write_sheet(contact_sheet(query.image, matches), out)
    if as_json:
        found = {
            "image": query.image.name,
            "collection": str(collection.folder),
            "count": len(collection),
            "missing_shards": collection.missing,
            "untrained": collection.meta.untrained,
            "sheet": str(out),
            "matches": [
                {"rank": match.rank, "similarity": match.similarity, "path": match.image.path}
                for match in matches
            ],
        }
        print(json.dumps(found, indent=2))
        return
    if collection.meta.untrained:
        print("warning: the model is untrained; similarities are not meaningful")
    if collection.missing:
        print(
            f"warning: {collection.missing} shards are missing; repeat the veca embed command to "
            "complete the collection"
        )
    for match in matches:
        print(f"{match.rank:>4}  {match.similarity:.4f}  {from_here(match.image.path)}")
    print(f"Contact sheet: {out}")
