"""Looking outputs up: the right ones, in order, or a sentence."""

import numpy as np
import pytest
import torch

from tests.distill.kept_outputs import CPU, CellTeacher, opened, pictures, task_of
from veca.data.image_index import ImageIndex
from veca.distill.cache_store import CacheError
from veca.distill.teacher_cache import TeacherCache


@pytest.fixture(scope="module", name="index")
def fixture_index(tmp_path_factory: pytest.TempPathFactory) -> ImageIndex:
    """Six pictures."""
    return pictures(tmp_path_factory.mktemp("images"))


@pytest.fixture(scope="module", name="cache")
def fixture_cache(tmp_path_factory: pytest.TempPathFactory, index: ImageIndex) -> TeacherCache:
    """Outputs of two teachers for some of the pictures at two sizes."""
    return opened(
        tmp_path_factory.mktemp("cache"),
        index,
        [CellTeacher(), CellTeacher("other", seed=1, image_width=7)],
        images=np.array([1, 2, 5]),
        sizes=[16, 32],
    )


def test_a_task_gets_one_answer_from_each_teacher(cache: TeacherCache) -> None:
    first, second = cache.lookup(task_of([1, 5, 2, 1], [0, 1, 1, 1]), CPU)

    assert first.image.shape == (4, 5)
    assert second.image.shape == (4, 7)
    assert first.patches.shape == second.patches.shape == (4, 16, 6)
    assert cache.lookup(task_of([1], [0], 16), CPU)[0].patches.shape == (1, 4, 6)


def test_answers_do_not_depend_on_what_else_is_asked(cache: TeacherCache) -> None:
    images, crops = [5, 1, 2, 2, 5], [1, 0, 0, 1, 0]
    together = cache.lookup(task_of(images, crops), CPU)[1]
    for place, (image, crop) in enumerate(zip(images, crops, strict=True)):
        alone = cache.lookup(task_of([image], [crop]), CPU)[1]
        assert torch.equal(alone.image[0], together.image[place])
        assert torch.equal(alone.patches[0], together.patches[place])


@pytest.mark.parametrize("image", [0, 3, 99])
def test_an_image_that_is_not_kept_is_refused(cache: TeacherCache, image: int) -> None:
    with pytest.raises(CacheError, match=f"image {image} is none of the 3 images"):
        cache.lookup(task_of([1, image], [0, 0]), CPU)


@pytest.mark.parametrize("crop", [-1, 2])
def test_a_view_that_is_not_kept_is_refused_with_the_range(cache: TeacherCache, crop: int) -> None:
    with pytest.raises(CacheError, match=r"2 of each image are kept; draw from 0 to 1"):
        cache.lookup(task_of([1, 2], [0, crop]), CPU)


def test_a_resolution_that_is_not_kept_is_refused_with_those_that_are(
    cache: TeacherCache,
) -> None:
    with pytest.raises(CacheError, match=r"kept at 24 px, only at 16, 32; open"):
        cache.lookup(task_of([1], [0], 24), CPU)
