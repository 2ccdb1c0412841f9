"""Which model an open weights file holds, from its header and the config.json beside it.

The header decides. A save that was interrupted between the two files leaves new weights beside an
old config.json; its hash then differs, and what it tells of the weights is dropped. Only a file
that veca did not write, and so has no description, is read by the config.json beside it.
"""

from pathlib import Path
from typing import Any, NamedTuple

from veca.backbone.config import BackboneConfig
from veca.weights.configuration import check_format, config_from_json, read_json
from veca.weights.errors import WeightsError
from veca.weights.provenance import Provenance, provenance_from_json
from veca.weights.skeleton import check_fit
from veca.weights.tensor_file import WeightsFile


class Identity(NamedTuple):
    """What a file says it holds."""

    config: BackboneConfig
    digest: str | None
    """The hash that the weights must have; None where nothing tells it."""
    provenance: Provenance | None
    notes: tuple[str, ...]


def identify(file: WeightsFile, config: Path | None) -> Identity:
    """The model in a file, whose tensors have the names and shapes that it needs."""
    if file.config is not None:
        provenance, notes = _told(config, file.digest)
        found = Identity(file.config, file.digest, provenance, notes)
    else:
        found = _from_config(file, config)
    check_fit(found.config, file.shapes, str(file.path))
    return found


def check_hash(found: str, identity: Identity, path: Path) -> None:
    """Refuse weights that are not the ones that were saved."""
    if identity.digest is not None and found != identity.digest:
        raise WeightsError(
            f"{path} has weights with the SHA-256 {found[:16]}..., but was saved with "
            f"{ascii(identity.digest)[1:17]}...; it was changed or damaged: get it again."
        )


def _told(config: Path | None, digest: str | None) -> tuple[Provenance | None, tuple[str, ...]]:
    """Provenance from config.json if it speaks of these weights, and a note if it does not."""
    if config is None:
        return None, ("There is no config.json to tell where the weights come from.",)
    try:
        content = read_json(config)
        check_format(content.get("format"), str(config))
        if content.get("weights_sha256") != digest:
            return None, (
                "config.json tells of other weights (an interrupted save?), so it was ignored.",
            )
        return _provenance(content), ()
    except WeightsError as error:
        return None, (f"config.json was ignored: {error}",)


def _from_config(file: WeightsFile, config: Path | None) -> Identity:
    """The model of a file without a description, by the config.json beside it."""
    if config is None:
        raise WeightsError(
            f"{file.path} does not say what model it holds and no config.json lies beside it; it "
            "was not saved by veca: put its config.json beside it, or check the file."
        )
    content = read_json(config)
    _check_kind(content, config)
    check_format(content.get("format"), str(config))
    digest = content.get("weights_sha256")
    return Identity(
        config_from_json(content.get("backbone"), str(config)),
        digest if isinstance(digest, str) else None,
        _provenance(content),
        ("The weights file has no description of its own; config.json was used.",),
    )


def _check_kind(content: dict[str, Any], config: Path) -> None:
    """Refuse the configuration of another library's model."""
    if content.get("model_type") != "veca":
        raise WeightsError(
            f"{config} describes a model of type {content.get('model_type')!r}, not 'veca'; only "
            "models that veca.save wrote can be loaded."
        )


def _provenance(content: dict[str, Any]) -> Provenance | None:
    """What a config.json tells of where weights come from, if anything."""
    return provenance_from_json(content["provenance"]) if "provenance" in content else None
