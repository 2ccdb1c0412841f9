"""Named protocols hold the numbers of their sources, and of the documentation."""

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from tests.probe.fixtures import CLASSES, ColorModel, class_split, color_set
from veca.data.listing import TableBuilder
from veca.data.sets.dataset import DepthRange, LabeledDataset, Split
from veca.probe.protocols import (
    DEPTH,
    LEARNING_RATES,
    LINEAR,
    LOGISTIC,
    MAX_CROPS,
    PAPER,
    PROTOCOLS,
    SEGMENTATION,
    adapt,
    find_protocol,
    train_val_split,
)
from veca.probe.rows import TASKS, ProbeError, Task


def dataset(name: str = "mine", depth: DepthRange | None = None) -> LabeledDataset:
    """A dataset of which protocols use the name and the range of depth."""
    empty = Split(name="val", images=TableBuilder().table(), keys=())
    kind: Any = "depth" if depth else "masks"
    return LabeledDataset(
        name=name, kind=kind, classes=CLASSES, train=None, test=empty, depth=depth
    )


def test_every_task_has_protocols_called_what_they_are_found_by() -> None:
    assert set(PROTOCOLS) == set(TASKS)
    for known in PROTOCOLS.values():
        assert [protocol.name for protocol in known.values()] == list(known)
    hashes = [protocol.sha256() for known in PROTOCOLS.values() for protocol in known.values()]
    assert len(set(hashes)) == len(hashes)
    changed = replace(PAPER, learning_rates=(0.06,))
    assert changed.sha256() != PAPER.sha256() == replace(PAPER).sha256()


@pytest.mark.parametrize("task", TASKS)
def test_an_unknown_name_is_refused_with_the_known_ones(task: Task) -> None:
    with pytest.raises(ProbeError, match=f"{task} has no protocol 'x'; use one of "):
        find_protocol(task, "x", dataset())


def test_the_paper_s_classifier_has_the_numbers_of_its_appendix() -> None:
    assert (PAPER.learning_rates, PAPER.momentum) == ((0.05,), 0.9)
    assert (PAPER.batch, PAPER.steps) == (128, 12_500)
    assert not PAPER.scale_learning_rates
    assert PAPER.validation_steps == tuple(range(1250, 12_501, 1250))


def test_dinov3_s_classifiers_have_its_thirteen_learning_rates() -> None:
    wanted = [1e-5, 2e-5, 5e-5, 1e-4, 2e-4, 5e-4, 1e-3, 2e-3, 5e-3, 1e-2, 2e-2, 5e-2, 0.1]
    assert list(LEARNING_RATES) == pytest.approx(wanted, rel=1e-12)
    dinov3 = LINEAR["dinov3"]
    assert (dinov3.feature, dinov3.selection) == ("image+patch-mean", "held-out")
    assert LINEAR["dinov3-test"].selection == "test"
    for name, found in LINEAR.items():
        assert found.steps == (1_000 if name.endswith("-small") else 12_500)
    np.testing.assert_allclose(LOGISTIC["dinov2"].c_values, 10 ** np.linspace(-6, 5, 45))


@pytest.mark.parametrize(
    ("selection", "steps", "expected"),
    [
        ("test-best-step", 2500, (1250, 2500)),
        ("test-best-step", 3000, (1250, 2500, 3000)),
        ("test-best-step", 10, (10,)),
        ("test", 3000, (3000,)),
        ("held-out", 3000, (3000,)),
    ],
)
def test_classifiers_are_validated_at_the_last_step_and_before_only_if_the_step_is_chosen(
    selection: Any, steps: int, expected: tuple[int, ...]
) -> None:
    assert replace(PAPER, selection=selection, steps=steps).validation_steps == expected


@given(steps=st.integers(1, 500), count=st.integers(1, 20))
def test_dense_heads_are_validated_at_equal_distances_and_at_the_end(
    steps: int, count: int
) -> None:
    if count > steps:
        return
    found = replace(SEGMENTATION["paper"], steps=steps, num_validations=count).validation_steps
    assert len(set(found)) == count
    assert found[-1] == steps
    gaps = [late - early for early, late in zip((0, *found), found, strict=False)]
    assert max(gaps) - min(gaps) <= 1


def test_a_fit_draws_from_as_many_crops_as_it_has_epochs_within_bounds(tmp_path: Path) -> None:
    def crops(name: str, data: LabeledDataset) -> int:
        return find_protocol("linear", name, data).num_crops  # type: ignore[attr-defined]

    class Long:
        """The images of a dataset with more of them than a fit sees."""

        def __len__(self) -> int:
            return 2_000_000

    few = color_set(tmp_path)
    assert [crops(name, few) for name in ("dinov3", "dinov3-small", "paper")] == [MAX_CROPS, 4, 0]
    many = class_split(tmp_path, "train", np.zeros(1, int))
    object.__setattr__(many, "images", Long())
    assert crops("dinov3", color_set(tmp_path, train=many)) == 2


def test_c_is_chosen_by_the_metric_that_a_dataset_is_known_by(tmp_path: Path) -> None:
    def metric(**changes: Any) -> str:
        data = color_set(tmp_path, **changes)
        return find_protocol("logistic", "dinov2", data).metric  # type: ignore[attr-defined]

    several = class_split(tmp_path, "test", np.eye(3, dtype=np.bool_))
    assert metric() == "top1"
    assert metric(per_class=True) == "mean_per_class"
    assert metric(test=several) == metric(test=several, per_class=True) == "map"


@pytest.mark.parametrize(("name", "steps"), [("ade20k", 40_000), ("my own", 20_000)])
def test_the_paper_has_its_steps_for_each_dataset(name: str, steps: int) -> None:
    found = [find_protocol("segmentation", one, dataset(name)) for one in ("paper", "dinov3")]
    assert [one.steps for one in found] == [steps, 40_000]  # type: ignore[attr-defined]


def test_the_paper_appends_the_image_feature_and_dinov3_does_not() -> None:
    for known in (SEGMENTATION, DEPTH):
        for name, protocol in known.items():
            assert protocol.append_image_feature == name.startswith("paper")
            assert (protocol.num_crops is not None) == name.endswith("-small")
    paper, dinov3 = SEGMENTATION["paper"], SEGMENTATION["dinov3"]
    assert (paper.learning_rates, paper.weight_decay, paper.batch) == ((0.01,), 1e-4, 8)
    assert (dinov3.learning_rates, dinov3.weight_decay, dinov3.batch) == ((1e-3,), 1e-3, 16)
    assert (paper.selection, dinov3.selection) == ("test-best-step", "none")


def test_small_protocols_have_the_numbers_of_the_documentation() -> None:
    small = {
        (name, *astuple): protocol.learning_rates
        for known in (SEGMENTATION, DEPTH)
        for name, protocol in known.items()
        if name.endswith("-small")
        for astuple in [(protocol.steps, protocol.batch, protocol.warmup, protocol.pixel_stride)]
    }
    assert small == {
        ("paper-small", 2_000, 8, 0, 8): (0.01,),
        ("dinov3-small", 2_000, 16, 100, 8): (1e-3,),
        ("paper-small", 1_500, 8, 0, 4): (0.01,),
        ("dinov3-small", 1_500, 16, 500, 4): (3e-3,),
    }
    assert {name: one.augment.hue for name, one in SEGMENTATION.items()} == {
        "paper": 0.1, "dinov3": 0.5, "dinov3-chosen": 0.5, "paper-small": 0.1, "dinov3-small": 0.1
    }  # fmt: skip
    assert DEPTH["dinov3"].learning_rates == (3e-4,)


def test_depth_datasets_have_their_usual_crops() -> None:
    def crop(name: str, depth: DepthRange | None) -> Any:
        return find_protocol("depth", name, dataset(depth=depth))

    nyu = crop("dinov3", DepthRange(nyu_crop=True))
    assert [side * nyu.resolution for side in nyu.augment.crop] == pytest.approx([416, 544])
    kitti = crop("dinov3", DepthRange(kb_crop=True, max_depth=80.0))
    assert [side * kitti.resolution for side in kitti.augment.crop] == pytest.approx([352, 704])
    assert kitti.augment.brightness == (0.9, 1.1)
    assert crop("dinov3", DepthRange()) == DEPTH["dinov3"] == crop("dinov3", None)
    assert crop("paper", DepthRange(kb_crop=True)) == DEPTH["paper"]


@pytest.mark.parametrize(("stride", "sides"), [(14, (518, 252)), (16, (512, 256)), (8, (512, 256))])
def test_the_paper_uses_other_resolutions_for_patches_of_14_pixels(
    stride: int, sides: tuple[int, int]
) -> None:
    model = ColorModel(stride=stride)
    for known in (SEGMENTATION, DEPTH):
        found = [adapt(known[name], model) for name in ("paper", "paper-small")]
        assert tuple(one.resolution for one in found) == sides
        assert adapt(known["paper"], model, 504).resolution == 504
        assert adapt(known["dinov3"], model) == known["dinov3"]


def test_the_paper_s_heads_on_a_model_without_a_class_token_see_patches_only() -> None:
    plain, without = ColorModel(), ColorModel()
    without.append_image_feature = False
    for known in (SEGMENTATION, DEPTH):
        for protocol in known.values():
            expected = replace(protocol, feature="patches")
            assert adapt(protocol, plain) == protocol
            assert adapt(protocol, without) == expected
            assert adapt(protocol, without, feature="patches+image").feature == "patches+image"
    assert adapt(PAPER, without).resolution == without.default_resolution


@pytest.mark.parametrize(
    ("task", "feature"), [("knn", "patches"), ("depth", "image"), ("dense-knn", "patches+image")]
)
def test_a_feature_that_a_task_does_not_have_is_refused(task: Task, feature: str) -> None:
    protocol = next(iter(PROTOCOLS[task].values()))
    with pytest.raises(ProbeError, match=f"feature '{feature.replace('+', '.')}' is not avail"):
        adapt(protocol, ColorModel(), feature=feature)


@pytest.mark.parametrize(
    ("task", "name", "chosen_on"),
    [
        ("knn", "dinov2", None),
        ("logistic", "dinov2", "held-out pictures"),
        ("linear", "paper", "the reported part"),
        ("linear", "dinov3", "held-out pictures"),
        ("linear", "dinov3-test", "the reported part"),
        ("linear", "paper-small", None),
        ("segmentation", "dinov3", None),
        ("segmentation", "dinov3-chosen", "held-out pictures"),
        ("depth", "paper-small", "the reported part"),
        ("dense-knn", "dense-knn", None),
    ],
)
def test_a_protocol_says_on_what_it_chooses(task: Task, name: str, chosen_on: str | None) -> None:
    assert PROTOCOLS[task][name].chosen_on == chosen_on


@given(count=st.integers(2, 300), share=st.floats(0.001, 0.999), seed=st.integers(0, 9))
def test_held_out_images_are_a_random_share(count: int, share: float, seed: int) -> None:
    split = train_val_split(count, share, seed)
    assert sorted(torch.cat(split).tolist()) == list(range(count))
    assert all(part.tolist() == sorted(part.tolist()) and len(part) for part in split)
    assert abs(len(split[1]) - share * count) <= 1 or 1 in map(len, split)
    assert math.prod(map(len, split)) > 0


def test_the_seed_decides_which_images_are_held_out() -> None:
    first, again, other = (train_val_split(100, 0.1, seed)[1] for seed in (0, 0, 1))
    assert torch.equal(first, again)
    assert not torch.equal(first, other)
    with pytest.raises(ProbeError, match="1 training images cannot be split"):
        train_val_split(1, 0.1, 0)
