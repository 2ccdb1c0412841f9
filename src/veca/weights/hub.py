"""From the name of a model to its files: a path, a bundled model, or a model on the hub."""

import os
from pathlib import Path
from typing import NamedTuple

from huggingface_hub import errors, hf_hub_download

from veca.runtime import VERSION
from veca.weights.format import CONFIG_NAME, WEIGHTS_NAME, WeightsError, is_hub_id, read_json

BUNDLED = Path(__file__).parent / "bundled"
"""Models that ship with the package, each in a folder of its name."""

DEFAULT_MODEL = "veca-tiny"
"""The bundled model that commands use if none is named."""

Source = str | os.PathLike[str]


class ModelFiles(NamedTuple):
    """The files of a model."""

    weights: Path
    config: Path | None
    """None if there is no config.json."""


class OfflineError(WeightsError):
    """The hub cannot be reached, and the file is not in the cache."""


def resolve_model(source: Source, revision: str | None = None) -> ModelFiles:
    """The files of a model: an existing path first, then a bundled model, then the hub."""
    name = os.fspath(source)
    path = existing_path(name)
    if path is None and name in bundled_names():
        path = BUNDLED / name
    if path is not None:
        if revision is not None:
            raise WeightsError(
                f"revision={revision!r} was given for {name!r}, but only models on the hub have "
                "revisions; omit it."
            )
        return _local_files(path)
    problem = missing_path(name) if isinstance(source, str) else None
    if isinstance(source, str) and problem is None and is_hub_id(name):
        try:
            return download(name, revision)
        except WeightsError as error:  # a mistyped path can look like a name on the hub
            raise WeightsError(
                f"{name!r} is not a file or folder here, and on the hub: {error}"
            ) from error
    raise WeightsError(
        f"{problem or f'{name!r} is unknown'}; give a folder or .safetensors file, a bundled name "
        f"({', '.join(bundled_names()) or 'none'}), or a name on the hub such as 'owner/name'."
    )


def bundled_names() -> list[str]:
    """Names of the models that ship with the package."""
    return sorted(path.parent.name for path in BUNDLED.glob(f"*/{WEIGHTS_NAME}"))


def existing_path(name: str) -> Path | None:
    """The file or folder of this name, if it exists; '~' is expanded."""
    try:
        path = Path(name).expanduser()
    except RuntimeError:  # no such user
        return None
    return path if path.exists() else None


def missing_path(name: str) -> str | None:
    """An error text for a name that looks like a path but does not exist; None for other names.

    A path begins with '.', '/' or '~', has several slashes, ends in '.safetensors', or begins with
    a folder that exists here. Anything else may be known elsewhere, such as 'owner/name' on the
    hub.
    """
    if existing_path(name) is not None:
        return None
    if name.startswith((".", "/", "~")) or name.count("/") > 1 or name.endswith(".safetensors"):
        return f"there is no file or folder {name!r}"
    first, slash, _ = name.partition("/")
    if slash and Path(first).is_dir():
        return (
            f"there is no file or folder {name!r} (the hub is not searched, because a folder "
            f"{first!r} exists here)"
        )
    return None


def _local_files(path: Path) -> ModelFiles:
    """The files of a model in a folder, or of a weights file."""
    weights = path / WEIGHTS_NAME if path.is_dir() else path
    if not weights.is_file():
        raise WeightsError(f"{path} has no {WEIGHTS_NAME}; give the folder of a saved model.")
    if weights.suffix != ".safetensors":
        raise WeightsError(
            f"{path} is not a .safetensors file; if it is a checkpoint of the authors, "
            f"run `veca import {path} --out DIR`, or use veca.load_official."
        )
    config = weights.with_name(CONFIG_NAME)
    return ModelFiles(weights, config if config.is_file() else None)


def download(repository: str, revision: str | None) -> ModelFiles:
    """Download a model: first its small configuration, so that no foreign weights are fetched."""
    offline = False
    try:
        config = hub_file(repository, CONFIG_NAME, revision)
    except OfflineError:
        config, offline = None, True  # do not wait for the hub a second time
    if config is not None and (kind := read_json(config).get("model_type")) != "veca":
        raise WeightsError(f"{repository} is a model of type {kind!r}, not 'veca'.")
    weights = hub_file(repository, WEIGHTS_NAME, revision, cached_only=offline)
    if weights is None:
        raise WeightsError(f"{repository} has no {WEIGHTS_NAME}, so it is not a model of veca.")
    return ModelFiles(weights, config)


def hub_file(
    repository: str, name: str, revision: str | None = None, *, cached_only: bool = False
) -> Path | None:
    """A file from the hub or its cache; None if the repository does not have it."""
    try:
        path = hf_hub_download(
            repository,
            name,
            revision=revision,
            library_name="veca",
            library_version=VERSION,
            local_files_only=cached_only,
        )
    except errors.LocalEntryNotFoundError as error:
        if isinstance(error.__cause__, errors.HfHubHTTPError):  # the hub did answer
            raise _hub_error(error.__cause__, repository, revision) from error
        raise OfflineError(
            f"the hub cannot be reached and {repository} is not in the cache; go online, or copy "
            "the model's folder here and load that."
        ) from error
    except errors.EntryNotFoundError:
        return None
    except errors.HfHubHTTPError as error:
        raise _hub_error(error, repository, revision) from error
    except errors.HFValidationError as error:
        raise WeightsError(f"{repository!r} is not a valid name on the hub: {error}") from error
    except OSError:  # such as a full disk
        raise
    except Exception as error:  # errors of the HTTP client, which have no common base
        raise WeightsError(
            f"the download of {repository} from the hub failed ({error}); try again."
        ) from error
    return Path(path)


def _hub_error(error: errors.HfHubHTTPError, repository: str, revision: str | None) -> WeightsError:
    """The reason for the hub's refusal, and what to do about it."""
    status = error.response.status_code
    missing = isinstance(error, errors.RepositoryNotFoundError)
    if isinstance(error, errors.GatedRepoError) or (status in {401, 403} and not missing):
        reason = (
            f"is gated: accept the terms on https://huggingface.co/{repository} and log in with "
            "`hf auth login`"
        )
    elif missing:
        reason = "is not on the hub, or is private; check the name, or log in with `hf auth login`"
    elif isinstance(error, errors.RevisionNotFoundError):
        reason = f"has no revision {revision!r}; give an existing branch, tag or commit, or omit it"
    else:
        reason = f"cannot be read: the hub answered {status}; try again later"
    return WeightsError(f"{repository} {reason}.")
