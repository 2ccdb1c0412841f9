"""The library of vision transformers, there or not."""

import sys

import pytest

from tests.teacher.small_models import transformers
from veca.teacher.teacher import TeacherError
from veca.teacher.vit import quiet, transformers_class


def test_a_class_is_found_by_its_name() -> None:
    assert transformers_class("DINOv3ViTModel") is transformers.DINOv3ViTModel


def test_a_class_that_an_old_library_lacks_asks_for_an_update() -> None:
    with pytest.raises(TeacherError, match=r"has no VitOfTomorrow; update it"):
        transformers_class("VitOfTomorrow")


def test_without_the_library_the_error_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(sys.modules, "transformers", None)
    with pytest.raises(TeacherError, match=r"pip install 'veca\[teachers\]'"):
        transformers_class("DINOv3ViTModel")


def fail_quietly() -> None:
    """Fail where the library is quiet."""
    logging = transformers.utils.logging
    with quiet():
        assert not logging.is_progress_bar_enabled()
        assert logging.get_verbosity() == logging.ERROR
        raise KeyError


@pytest.mark.parametrize("bars", [True, False])
def test_the_library_speaks_again_afterwards_as_it_did_before(bars: bool) -> None:
    logging = transformers.utils.logging
    (logging.enable_progress_bar if bars else logging.disable_progress_bar)()
    verbosity = logging.get_verbosity()
    with pytest.raises(KeyError):
        fail_quietly()
    assert logging.is_progress_bar_enabled() == bars
    assert logging.get_verbosity() == verbosity
    logging.disable_progress_bar()
