"""The library of vision transformers, an extra: brought in when it is needed, and kept quiet."""

from collections.abc import Iterator
from contextlib import contextmanager
from types import ModuleType
from typing import Any

from veca.teacher.teacher import TeacherError


def transformers_class(name: str) -> Any:  # noqa: ANN401 - the library is not typed for us
    """A class of `transformers` by its name."""
    found = getattr(_transformers(), name, None)
    if found is None:
        raise TeacherError(
            f"the installed transformers {_transformers().__version__} has no {name}; update it "
            "with `pip install --upgrade transformers`."
        )
    return found


@contextmanager
def quiet() -> Iterator[None]:
    """No progress bars and no notes of `transformers` in here."""
    logging = _transformers().utils.logging
    verbosity, bars = logging.get_verbosity(), logging.is_progress_bar_enabled()
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        logging.set_verbosity(verbosity)
        if bars:
            logging.enable_progress_bar()


def _transformers() -> ModuleType:
    """The library, which takes seconds to import."""
    try:
        import transformers  # noqa: PLC0415 - an extra
    except ImportError as error:
        raise TeacherError(
            "vision transformers as teachers need the library transformers, which is not "
            "installed; `pip install 'veca[teachers]'` brings it."
        ) from error
    found: ModuleType = transformers
    return found
