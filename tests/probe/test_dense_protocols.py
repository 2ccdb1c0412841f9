"""Named protocols hold the numbers of their sources."""

from dataclasses import replace

import pytest

from tests.probe.dense_scenes import CLASSES, ColorModel
from veca.data.listing import TableBuilder
from veca.data.sets.dataset import DepthRange, LabeledDataset, Split
from veca.probe.protocols import (
    DENSE_KNN,
    DEPTH,
    SEGMENTATION,
    dense_knn_protocol,
    depth_protocol,
    for_model,
    segmentation_protocol,
)

NOTHING = Split(name="val", images=TableBuilder().table(), keys=())


def named(name: str, depth: DepthRange | None = None) -> LabeledDataset:
    return LabeledDataset(
        name=name,
        kind="depth" if depth else "masks",
        classes=CLASSES,
        train=None,
        test=NOTHING,
        depth=depth,
    )


def test_a_protocol_is_called_what_it_is_found_by() -> None:
    for known in (SEGMENTATION, DEPTH, DENSE_KNN):
        assert [protocol.name for protocol in known.values()] == list(known)


@pytest.mark.parametrize(
    ("name", "steps"),
    [
        ("voc2012", 20_000),
        ("voc2012-aug", 20_000),
        ("pascal-context-60", 40_000),
        ("ade20k", 40_000),
        ("coco-stuff", 80_000),
        ("coco-object", 80_000),
        ("cityscapes", 12_000),
        ("my own", 20_000),
    ],
)
def test_the_paper_has_its_steps_for_each_set(name: str, steps: int) -> None:
    assert segmentation_protocol("paper", named(name)).steps == steps
    assert segmentation_protocol("dinov3", named(name)).steps == 40_000


def test_the_paper_appends_the_image_feature_and_dinov3_does_not() -> None:
    for known in (SEGMENTATION, DEPTH):
        for name, protocol in known.items():
            assert protocol.append_image_feature == name.startswith("paper")
            assert (protocol.views is not None) == name.endswith("-small")
    paper, dinov3 = SEGMENTATION["paper"], SEGMENTATION["dinov3"]
    assert (paper.rates, paper.decay, paper.batch) == ((0.01,), 1e-4, 8)
    assert (dinov3.rates, dinov3.decay, dinov3.batch) == ((1e-3,), 1e-3, 16)
    assert paper.selection == "test-best-step"
    assert dinov3.selection == "none"


def test_small_protocols_have_the_steps_rates_and_hues_of_the_documentation() -> None:
    told = {
        name: (one.resolution, one.steps, one.batch, one.warmup, one.rates, one.augment.hue)
        for name, one in SEGMENTATION.items()
        if name.endswith("-small")
    }
    assert told == {
        "paper-small": (256, 2_000, 8, 0, (0.01,), 0.1),
        "dinov3-small": (256, 2_000, 16, 100, (1e-3,), 0.1),
    }
    assert (SEGMENTATION["paper"].augment.hue, SEGMENTATION["dinov3"].augment.hue) == (0.1, 0.5)
    depths = {
        name: (one.resolution, one.steps, one.batch, one.warmup, one.rates, one.loss_stride)
        for name, one in DEPTH.items()
        if name.endswith("-small")
    }
    assert depths == {
        "paper-small": (256, 1_500, 8, 0, (0.01,), 4),
        "dinov3-small": (256, 1_500, 16, 500, (3e-3,), 4),
    }
    assert DEPTH["dinov3"].rates == (3e-4,)


@pytest.mark.parametrize(("stride", "sides"), [(14, (518, 252)), (16, (512, 256)), (8, (512, 256))])
def test_the_paper_shows_patches_of_14_pixels_pictures_of_other_sizes(
    stride: int, sides: tuple[int, int]
) -> None:
    model = ColorModel(stride=stride)
    for known in (SEGMENTATION, DEPTH):
        found = tuple(for_model(known[name], model).resolution for name in ("paper", "paper-small"))
        assert found == sides


def test_the_paper_sees_a_model_without_a_class_token_by_its_patches_alone() -> None:
    plain = ColorModel()
    without = ColorModel()
    without.append_image_feature = False
    for known in (SEGMENTATION, DEPTH):
        for name in ("paper", "paper-small"):
            assert for_model(known[name], plain) == known[name]
            assert for_model(known[name], without) == replace(
                known[name], append_image_feature=False
            )


def test_other_protocols_are_the_same_for_all_models() -> None:
    model = ColorModel(stride=14)
    model.append_image_feature = False
    for known in (SEGMENTATION, DEPTH):
        for name, protocol in known.items():
            assert (for_model(protocol, model) == protocol) == (not name.startswith("paper"))


def test_depth_sets_have_their_usual_views() -> None:
    nyu = depth_protocol("dinov3", named("nyu-v2", DepthRange(nyu_crop=True)))
    assert [side * nyu.resolution for side in nyu.augment.crop] == pytest.approx([416, 544])
    kitti = depth_protocol("dinov3", named("kitti", DepthRange(kb_crop=True, max_depth=80.0)))
    assert [side * kitti.resolution for side in kitti.augment.crop] == pytest.approx([352, 704])
    assert kitti.augment.brightness == (0.9, 1.1)
    rooms = depth_protocol("dinov3", named("rooms", DepthRange()))
    assert rooms == DEPTH["dinov3"] == depth_protocol("dinov3", named("rooms"))
    assert depth_protocol("paper", named("kitti", DepthRange(kb_crop=True))) == DEPTH["paper"]


def test_an_unknown_name_is_refused_with_those_that_are_known() -> None:
    assert dense_knn_protocol("dense-knn").resolution == 512
    for call in (
        lambda: segmentation_protocol("dinov2", named("voc2012")),
        lambda: depth_protocol("dinov2", named("nyu-v2")),
        lambda: dense_knn_protocol("dinov2"),
    ):
        with pytest.raises(ValueError, match=r"no protocol 'dinov2' for this task; use \w+"):
            call()
