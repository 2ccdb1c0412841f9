"""Files of a teacher from the Hugging Face hub, and what to do when it does not give them."""

import json
from pathlib import Path

from huggingface_hub import errors, hf_hub_download, try_to_load_from_cache

from veca.runtime import VERSION
from veca.teacher.layouts import OPEN_CLIP_CONFIG, OPEN_CLIP_WEIGHTS, PREPROCESSOR_NAME
from veca.teacher.registry import OPEN
from veca.teacher.teacher import TeacherError
from veca.weights.format import CARD_NAME, CONFIG_NAME, WEIGHTS_NAME

INDEX_NAME = f"{WEIGHTS_NAME}.index.json"
"""Which shard has which weights, where they lie in several files."""


class UnreachableError(TeacherError):
    """The hub does not answer, and the file is not in the cache."""


def fetch_config(repository: str) -> Path:
    """The folder in the cache that now has the model's configuration, which is small."""
    try:
        found = _fetch(repository, CONFIG_NAME)
    except UnreachableError:
        cached = try_to_load_from_cache(repository, OPEN_CLIP_CONFIG)
        if not isinstance(cached, str):
            raise
        return Path(cached).parent
    if found is None:
        found = _fetch(repository, OPEN_CLIP_CONFIG)
    if found is None:
        raise TeacherError(
            f"{repository} on the hub has no {CONFIG_NAME}, so it is no teacher; check the name; "
            f"{_others()}"
        )
    return found.parent


def fetch_rest(repository: str, folder: Path) -> None:
    """All else of the same revision: weights, normalization, model card."""
    revision = folder.name  # the hub's cache has a folder for each commit
    for name in (PREPROCESSOR_NAME, CARD_NAME):
        _fetch(repository, name, revision)
    if _fetch(repository, WEIGHTS_NAME, revision) is not None:
        return
    try:
        index = _fetch(repository, INDEX_NAME, revision)
    except UnreachableError:
        if not _fetch_open_clip(repository, revision):
            raise
        return
    if index is not None:
        for name in sorted(set(json.loads(index.read_text("utf-8"))["weight_map"].values())):
            _fetch(repository, name, revision)
    elif not _fetch_open_clip(repository, revision):
        raise TeacherError(
            f"{repository} on the hub has no {WEIGHTS_NAME}, and pickled weights are not read; "
            "load it with transformers, write it into a folder with save_pretrained, and give "
            f"that; {_others()}"
        )


def _fetch_open_clip(repository: str, revision: str) -> bool:
    """Whether a repository that has weights in no other layout has them in that of open_clip."""
    if _fetch(repository, OPEN_CLIP_CONFIG, revision) is None:
        return False
    names = OPEN_CLIP_WEIGHTS
    return any(_fetch(repository, name, revision) is not None for name in names)


def _fetch(repository: str, name: str, revision: str | None = None) -> Path | None:
    """One file, from the cache where it is new enough; None where the repository has none."""
    try:
        return _download(repository, name, revision)
    except errors.LocalEntryNotFoundError as error:
        if isinstance(error.__cause__, errors.HfHubHTTPError):  # an answer, though no good one
            raise _worded(error.__cause__, repository) from error
        if revision is not None and name != INDEX_NAME:
            return None  # offline, and the cache has the rest of the model
        raise UnreachableError(
            f"the hub cannot be reached and {repository} is not in the cache; go online, or copy "
            f"the model into a folder and give that; {_others()}"
        ) from error
    except errors.EntryNotFoundError:
        return None
    except errors.HfHubHTTPError as error:
        raise _worded(error, repository) from error


def _download(repository: str, name: str, revision: str | None) -> Path:
    """Ask the hub; what it refuses keeps its own error, all else becomes ours."""
    try:
        found = hf_hub_download(
            repository, name, revision=revision, library_name="veca", library_version=VERSION
        )
    except errors.HFValidationError as error:
        raise TeacherError(f"{repository!r} is no name on the hub: {error}") from error
    except OSError:  # the hub's refusals, or a full disk, say
        raise
    except Exception as error:  # the web client's own errors, which have no common name
        raise TeacherError(
            f"the download of {repository} from the hub broke off ({error}); try again."
        ) from error
    return Path(found)


def _worded(error: errors.HfHubHTTPError, repository: str) -> TeacherError:
    """What the hub's refusal means, and what to do about it."""
    status = error.response.status_code
    missing = isinstance(error, errors.RepositoryNotFoundError)
    if isinstance(error, errors.GatedRepoError) or (status in {401, 403} and not missing):
        return TeacherError(
            f"{repository} on the hub asks for consent first: accept the licence on "
            f"https://huggingface.co/{repository} and run `hf auth login`, or give a local folder "
            f"that holds the model; {_others()}"
        )
    if missing:
        return TeacherError(
            f"{repository} is not on the hub, or is private: check the name, run `hf auth login`, "
            f"or give a local folder that holds the model; {_others()}"
        )
    return TeacherError(
        f"the hub answered {status} when asked for {repository}; try again later, or give a local "
        f"folder that holds the model; {_others()}"
    )


def _others() -> str:
    """Teachers that anyone can have."""
    return f"these teachers need no consent: {OPEN}."
