"""`veca explore`: a page with a budget slider, and a JSON API."""

import importlib.util
import sys
import webbrowser
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import tyro

from veca.runtime import VecaError
from veca.runtime.device import pick_device
from veca.weights.checkpoint import load_or_build

DESCRIPTION = """Open a page to play with a model: budget, resolution and layer as sliders.

The page shows feature colors, what cores read, their paths, objects and similarity of any picture
that is dropped on it, and what the setting costs beside full attention. It is served on this
machine only, needs no network, and stores nothing. Scripts can use the same JSON API (/api). Stop
it with Ctrl-C.

Example: veca explore veca-tiny --in embedded"""

NEEDED = ("fastapi", "uvicorn")


def explore(words: Sequence[str]) -> None:
    """Run the command on the words after its name."""
    tyro.cli(_explore, prog="veca explore", description=DESCRIPTION, args=words)


def _explore(
    model: Annotated[
        str | None,
        tyro.conf.Positional,
        tyro.conf.arg(
            metavar="[MODEL]", help_behavior_hint="(default: that of --in, or veca-tiny)"
        ),
    ] = None,
    /,
    *,
    folder: Annotated[
        Path | None,
        tyro.conf.arg(name="in", metavar="EMBEDDED", help_behavior_hint="(default: none)"),
    ] = None,
    port: Annotated[int, tyro.conf.arg(metavar="P")] = 8765,
    browser: bool = True,
) -> None:
    """Serve the page.

    Args:
        model: a folder, .safetensors file, bundled name, hub name, or a size (untrained)
        folder: collection made by veca embed, to show the nearest pictures
        port: port of the page on this machine; 0 takes any free one
        browser: whether to open the page in a browser
    """
    if any(importlib.util.find_spec(name) is None for name in NEEDED):
        raise VecaError(
            f"veca explore needs {' and '.join(NEEDED)}; run `pip install 'veca[explore]'`."
        )
    from veca.explore.server import free_socket, serve  # noqa: PLC0415 - needs an extra
    from veca.explore.session import Explorer  # noqa: PLC0415

    collection = None
    if folder is not None:
        from veca.explore.neighbors import Neighbors  # noqa: PLC0415 - needs another extra

        collection = Neighbors(folder)
        model = model or collection.model
    with free_socket(port) as listener:
        named = load_or_build(model or "veca-tiny", device=pick_device("auto"), precision="auto")
        address = f"http://127.0.0.1:{listener.getsockname()[1]}/"

        def ready() -> None:
            print(f"{named.title}: {address} (Ctrl-C stops it)", flush=True)
            if browser:
                webbrowser.open(address)

        try:
            serve(Explorer(named, collection), listener, ready)
        except KeyboardInterrupt:
            print("Stopped.", file=sys.stderr)
