"""From the name of a model to its files: path, bundled name or hub id.

Names that users give: whether they mean a path on this machine, and one that is there.

Models from the Hugging Face hub; teachers come from it by `teacher/hub_files.py`.

Downloads are kept in the hub's own cache, and are used from there when there is no network.

From what a user names to the files of a model: a path, a bundled name, or a name on the hub.
"""

import os
from pathlib import Path
from typing import NamedTuple

from huggingface_hub import errors, hf_hub_download

from veca.runtime import VERSION
from veca.weights.format import CONFIG_NAME, WEIGHTS_NAME, WeightsError, is_hub_id, read_json


def existing_path(name: str) -> Path | None:
    """The file or folder of a name, where there is one; '~' is a home."""
    try:
        path = Path(name).expanduser()
    except RuntimeError:  # nobody is called so
        return None
    return path if path.exists() else None


def missing_path(name: str) -> str | None:
    """What to say of a name that looks like a path where nothing is; None for all other names.

    A path begins with '.', '/' or '~', has several slashes, ends in '.safetensors', or begins with
    a folder that is here. All else may be known elsewhere, such as 'owner/name' on the hub.
    """
    if existing_path(name) is not None:
        return None
    if name.startswith((".", "/", "~")) or name.count("/") > 1 or name.endswith(".safetensors"):
        return f"there is no file or folder {name!r}"
    first, slash, _ = name.partition("/")
    if slash and Path(first).is_dir():
        return (
            f"there is no file or folder {name!r} (the hub is not asked, since a folder {first!r} "
            "is here; for a name on the hub run this elsewhere)"
        )
    return None


class Download(NamedTuple):
    """The files of a model in the cache."""

    weights: Path
    config: Path | None


def download(repository: str, revision: str | None) -> Download:
    """Fetch a model, its small configuration first so that no foreign weights are fetched."""
    config, cached_only = None, False
    try:
        config = _fetch(repository, CONFIG_NAME, revision, cached_only=False)
    except errors.LocalEntryNotFoundError:
        cached_only = True  # the hub cannot be reached, so do not wait for it a second time
    except errors.EntryNotFoundError:
        pass  # the weights describe themselves
    if config is not None:
        _check_kind(config, repository)
    try:
        weights = _fetch(repository, WEIGHTS_NAME, revision, cached_only)
    except errors.LocalEntryNotFoundError as error:
        raise WeightsError(
            f"the hub cannot be reached and {repository} is not in the cache; go online, or copy "
            "the model's folder here and load that."
        ) from error
    except errors.EntryNotFoundError as error:
        raise WeightsError(
            f"{repository} on the hub has no {WEIGHTS_NAME}, so it is no model of veca; check the "
            "name."
        ) from error
    return Download(weights, config)


def _check_kind(config: Path, repository: str) -> None:
    """Refuse the models of other libraries before their weights are fetched."""
    kind = read_json(config).get("model_type")
    if kind != "veca":
        raise WeightsError(
            f"{repository} on the hub holds a model of type {kind!r}, not 'veca'; check the name."
        )


def _fetch(repository: str, name: str, revision: str | None, cached_only: bool) -> Path:
    """One file, from the cache where it is new enough; errors say what to do."""
    try:
        path = hf_hub_download(
            repository,
            name,
            revision=revision,
            library_name="veca",
            library_version=VERSION,
            local_files_only=cached_only,
        )
    except errors.EntryNotFoundError as error:
        if isinstance(error.__cause__, errors.HfHubHTTPError):  # an answer, though no good one
            raise _worded(error.__cause__, repository, revision) from error
        raise
    except errors.HfHubHTTPError as error:
        raise _worded(error, repository, revision) from error
    except errors.HFValidationError as error:
        raise WeightsError(f"{repository!r} is no name on the hub: {error}") from error
    except OSError:  # a full disk, say; its own words tell
        raise
    except Exception as error:  # the web client's own errors, which have no common name
        raise WeightsError(
            f"the download of {repository} from the hub broke off ({error}); try again."
        ) from error
    return Path(path)


def _worded(error: errors.HfHubHTTPError, repository: str, revision: str | None) -> WeightsError:
    """What the hub's refusal means, and what to do about it."""
    if isinstance(error, errors.GatedRepoError):
        return WeightsError(
            f"{repository} on the hub asks for consent before it can be read; open its page, "
            "accept the terms, and log in with `hf auth login`."
        )
    if isinstance(error, errors.RepositoryNotFoundError):
        return WeightsError(
            f"{repository} is not on the hub, or is private; check the name, or log in with "
            "`hf auth login`."
        )
    if isinstance(error, errors.RevisionNotFoundError):
        return WeightsError(
            f"{repository} on the hub has no revision {revision!r}; give a branch, tag or commit "
            "that exists, or leave revision out."
        )
    return WeightsError(
        f"the hub answered {error.response.status_code} when asked for {repository}; try again "
        "later, or load a folder."
    )


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
