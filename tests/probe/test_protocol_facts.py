"""Names of protocols stand for numbers, which a hash tells apart."""

from pathlib import Path

import pytest

from tests.probe.dense_scenes import ColorModel
from tests.probe.small_sets import color_set
from veca.probe import protocols
from veca.probe.protocols import LinearProtocol
from veca.probe.rows import TASKS, Task
from veca.probe.run import chosen_on, protocol_hash

NAMES: dict[Task, tuple[str, ...]] = {
    "knn": ("dinov2",),
    "logistic": ("dinov2",),
    "linear": ("paper", "dinov3", "dinov3-test", "paper-small", "dinov3-small"),
    "segmentation": ("paper", "dinov3", "dinov3-chosen", "paper-small", "dinov3-small"),
    "dense-knn": ("dense-knn", "dense-knn-small"),
    "depth": ("paper", "dinov3", "paper-small", "dinov3-small"),
}


def test_every_protocol_has_a_hash_of_its_own(tmp_path: Path) -> None:
    data = color_set(tmp_path)
    assert NAMES.keys() == set(TASKS)
    pairs = [(task, name) for task, names in NAMES.items() for name in names]
    found = [protocol_hash(task, name, data) for task, name in pairs]
    assert len(set(found)) == len(found)
    assert found == [protocol_hash(task, name, data) for task, name in pairs]


def test_another_number_under_the_same_name_is_another_hash(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = color_set(tmp_path)
    before = protocol_hash("linear", "paper", data)
    other = LinearProtocol(name="paper", rates=(0.06,), selection="test-best-step")
    monkeypatch.setattr(protocols, "LINEAR", {"paper": other})
    assert protocol_hash("linear", "paper", data) != before


def test_a_hash_for_a_model_differs_where_the_protocol_does(tmp_path: Path) -> None:
    data = color_set(tmp_path)
    usual, other = ColorModel(), ColorModel(stride=14)
    for task, names in NAMES.items():
        for name in names:
            plain = protocol_hash(task, name, data)
            dense = task in {"segmentation", "depth"} and name.startswith("paper")
            assert protocol_hash(task, name, data, usual) == plain
            assert (protocol_hash(task, name, data, other) != plain) == dense


@pytest.mark.parametrize(
    ("task", "name", "part"),
    [
        ("knn", "dinov2", None),
        ("logistic", "dinov2", "held-out pictures"),
        ("linear", "paper", "the reported part"),
        ("linear", "dinov3", "held-out pictures"),
        ("linear", "dinov3-test", "the reported part"),
        ("linear", "paper-small", None),
        ("segmentation", "paper", "the reported part"),
        ("segmentation", "dinov3", None),
        ("segmentation", "dinov3-chosen", "held-out pictures"),
        ("depth", "paper-small", "the reported part"),
        ("dense-knn", "dense-knn", None),
    ],
)
def test_a_protocol_says_on_what_it_chooses(
    tmp_path: Path, task: Task, name: str, part: str | None
) -> None:
    assert chosen_on(task, name, color_set(tmp_path)) == part
