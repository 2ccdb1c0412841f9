"""`veca search`: the pictures of a collection that are most like one."""

import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import tyro

from veca.embed.collection import Collection, open_collection
from veca.embed.neighbours import Neighbour, nearest
from veca.embed.sheet import contact_sheet, write_sheet
from veca.embed.wanted import find_wanted

DESCRIPTION = """Find the pictures of a collection that are most like one, and draw them in a sheet.

The picture may be any file, or one of the collection (by its path, or shard.tar#name), which needs
no model. Every vector is compared, by the cosine.

Example: veca search beach.jpg --in features --top 12 --out sheet.png"""


def search(words: Sequence[str]) -> None:
    """Run the command on the words after its name."""
    tyro.cli(_search, prog="veca search", description=DESCRIPTION, args=words)


def _search(  # noqa: PLR0913 - the flags of the command
    image: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="IMAGE")],
    /,
    *,
    collection: Annotated[Path, tyro.conf.arg(name="in", metavar="DIR")],
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
        image: the picture to search with
        collection: folder that veca embed made
        top: how many pictures to find
        out: the contact sheet to write
        as_json: print JSON, for programs
        model: where the collection's model is now, if it has moved
        device: where the model runs
    """
    opened = open_collection(collection)
    wanted = find_wanted(opened, image, model, device)
    neighbours = nearest(opened, wanted.vector, top)
    write_sheet(contact_sheet(wanted.source, neighbours), out)
    if as_json:
        print(json.dumps(_as_json(wanted.source.name, opened, neighbours, out), indent=2))
        return
    if opened.record.model.untrained:
        print("The collection was made with untrained weights: similarities mean little.")
    if not opened.record.complete:
        print("The collection is not finished; only what it holds so far was searched.")
    for neighbour in neighbours:
        path = _shown(neighbour.entry.path)
        print(f"{neighbour.rank:>4}  {neighbour.similarity:.4f}  {path}")
    print(f"Contact sheet: {out}")


def _as_json(
    image: str, collection: Collection, neighbours: Sequence[Neighbour], sheet: Path
) -> dict[str, object]:
    """The answer as plain values."""
    record = collection.record
    return {
        "image": image,
        "collection": str(collection.folder),
        "count": record.count,
        "complete": record.complete,
        "untrained": record.model.untrained,
        "sheet": str(sheet),
        "neighbours": [
            {
                "rank": neighbour.rank,
                "similarity": neighbour.similarity,
                "index": neighbour.entry.index,
                "path": neighbour.entry.path,
            }
            for neighbour in neighbours
        ],
    }


def _shown(path: str) -> str:
    """A path for people: short where it lies below, without letters that a terminal would obey."""
    here = os.path.join(os.path.abspath("."), "")  # noqa: PTH100, PTH118
    return "".join(letter if letter.isprintable() else "?" for letter in path.removeprefix(here))
