"""From what a user names to the files of a model: a path, a bundled name, or a name on the hub."""

import os
from pathlib import Path
from typing import NamedTuple

from veca.runtime.paths import existing_path, missing_path
from veca.weights.errors import WeightsError
from veca.weights.layout import CONFIG_NAME, WEIGHTS_NAME, is_hub_id

BUNDLED = Path(__file__).parent / "bundled"
"""Folder of the models that ship with the package, each in a folder of its name."""

Source = str | os.PathLike[str]


class Place(NamedTuple):
    """Where the files of a model are."""

    weights: Path
    config: Path | None
    """None where there is no config.json."""


def bundled_names() -> list[str]:
    """Names of the models that ship with the package."""
    return sorted(path.parent.name for path in BUNDLED.glob(f"*/{WEIGHTS_NAME}"))


def locate(source: Source, revision: str | None = None) -> Place:
    """The files that `source` means: an existing path first, then a bundled name, then the hub."""
    name = os.fspath(source)
    if (path := existing_path(name)) is not None:
        _refuse_revision(revision, f"the path {name!r}")
        return _in_folder(path) if path.is_dir() else _beside_file(path)
    if name in bundled_names():
        _refuse_revision(revision, f"the bundled model {name!r}")
        return _in_folder(BUNDLED / name)
    problem = missing_path(name) if isinstance(source, str) else None
    if isinstance(source, str) and problem is None and is_hub_id(name):
        from veca.weights.hub import download  # noqa: PLC0415 - loads a web client

        try:
            return Place(*download(name, revision))
        except WeightsError as error:  # a mistyped path can look like a name on the hub
            raise WeightsError(
                f"there is no folder or file {name!r} here, so it was sought on the hub: {error}"
            ) from error
    bundled = ", ".join(bundled_names()) or "none"
    raise WeightsError(
        f"{problem or f'{name!r} is not known'}; give a folder or .safetensors file that exists, a "
        f"bundled name ({bundled}), or a name on the hub such as 'owner/name'."
    )


def _in_folder(folder: Path) -> Place:
    """The files of a model that `veca.save` wrote."""
    if not (folder / WEIGHTS_NAME).is_file():
        raise WeightsError(
            f"{folder} holds no {WEIGHTS_NAME}; give the folder that veca.save wrote, or the "
            "file itself."
        )
    return _with_config(folder / WEIGHTS_NAME)


def _beside_file(path: Path) -> Place:
    """A weights file and the configuration that may lie beside it."""
    if path.suffix != ".safetensors":
        raise WeightsError(
            f"{path} is no .safetensors file; read a checkpoint of the authors' release with "
            "veca.load_official, and save it with veca.save."
        )
    return _with_config(path)


def _with_config(weights: Path) -> Place:
    """A weights file with the config.json beside it, if there is one."""
    config = weights.with_name(CONFIG_NAME)
    return Place(weights, config if config.is_file() else None)


def _refuse_revision(revision: str | None, what: str) -> None:
    """Only the hub keeps versions."""
    if revision is not None:
        raise WeightsError(
            f"revision={revision!r} was given for {what}, but only models on the hub have "
            "revisions; leave it out."
        )
