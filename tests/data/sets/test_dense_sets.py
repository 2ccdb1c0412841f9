"""Every set with masks or depth of the paper can be asked for by its name."""

from pathlib import Path

import pytest

from veca.data.sets.dataset import DatasetChecks, DatasetError
from veca.data.sets.registry import DENSE_SETS


def test_all_sets_of_the_paper_have_names() -> None:
    assert set(DENSE_SETS) == {
        "voc2012", "voc2012-aug", "pascal-context-60", "pascal-context-59", "ade20k",
        "coco-stuff", "coco-object", "cityscapes", "nyu-v2", "nyu-v2-labeled", "kitti",
    }  # fmt: skip


@pytest.mark.parametrize("name", DENSE_SETS)
def test_an_empty_folder_is_an_error_that_names_the_set_and_what_is_missing(
    name: str, tmp_path: Path
) -> None:
    with pytest.raises(DatasetError, match=rf"(?s)^{name} .*is missing"):
        DENSE_SETS[name](tmp_path, DatasetChecks(name))
