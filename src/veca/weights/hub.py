"""Models from the Hugging Face hub; teachers come from it by `teacher/hub_files.py`.

Downloads are kept in the hub's own cache, and are used from there when there is no network.
"""

from pathlib import Path
from typing import NamedTuple

from huggingface_hub import errors, hf_hub_download

from veca.runtime.version import VERSION
from veca.weights.configuration import read_json
from veca.weights.errors import WeightsError
from veca.weights.layout import CONFIG_NAME, WEIGHTS_NAME


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
