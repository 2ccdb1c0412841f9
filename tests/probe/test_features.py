"""Features are those of the crops, computed once, whatever the batch, workers or earlier runs."""

import itertools
import random
import tarfile
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch import Tensor

from tests.data.corpus import photo
from tests.data.pictures import saved_model
from tests.probe.fixtures import (
    ALL,
    ALONE,
    AUGMENT,
    CPU,
    FEW,
    SETTINGS,
    SIDE,
    WHOLE_IMAGES,
    CellModel,
    ColorModel,
    context_in,
    dense_split,
    image_split,
    scene,
)
from veca.data.augment import ViewConfig, center_view, training_view
from veca.data.images import DataError, ImageError, decode, image_from_array
from veca.data.listing import TableBuilder, members
from veca.data.sets.dataset import Split
from veca.probe import features
from veca.probe.feature_cache import ProbeContext, Variant
from veca.probe.features import (
    CROP_AREA,
    FEATURES,
    CachedFeatures,
    DenseBatch,
    InferenceConfig,
    TrainingCrops,
    extract_image_features,
    extract_patch_features,
    extract_windows,
    load_image,
    select_feature,
    share_of_batch,
)
from veca.probe.models import FrozenFeatures, FrozenModel, find_model
from veca.probe.protocols import Inference
from veca.probe.rows import ProbeError, Setting
from veca.probe.transforms import segmentation_crop
from veca.runtime.distributed import Ranks

CENTER: dict[str, Any] = {"resolution": SIDE}
RANDOM: dict[str, Any] = {"resolution": SIDE, "num_crops": 3}
EVERY = np.arange(6)
SIDE_OF_CROPS = 32
WHOLE = InferenceConfig(short_side=32, stride=8)
SLIDING = replace(WHOLE, mode="slide", window_stride=20)
VARIANTS = [Variant(FEW), Variant(ALL), Variant(ALL, flipped=True)]


@pytest.fixture(autouse=True)
def small_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(features, "IMAGE_CHUNK", 4)


@pytest.fixture
def split(tmp_path: Path) -> Split:
    return image_split(tmp_path / "pictures")


@pytest.fixture
def scenes(tmp_path: Path) -> Split:
    return dense_split(tmp_path / "scenes", "train", "masks", range(6))


@pytest.fixture
def ctx(tmp_path: Path) -> ProbeContext:
    return context_in(tmp_path / "cache")


def vectors_of(
    split: Split,
    ctx: ProbeContext,
    model: FrozenModel | None = None,
    settings: Sequence[Setting] = SETTINGS,
    **crops: Any,
) -> CachedFeatures:
    """Image features, by default of center crops at all settings."""
    return extract_image_features(model or CellModel(), settings, split, ctx, **CENTER | crops)


def one_by_one(views: list[Tensor], setting: Setting) -> FrozenFeatures:
    """Features of views that go through the model alone."""
    found = [CellModel().extract(view[None], setting) for view in views]
    return FrozenFeatures(*(torch.cat(parts) for parts in zip(*found, strict=True)))


def test_vectors_are_those_of_the_center_crops_at_each_setting(
    split: Split, ctx: ProbeContext
) -> None:
    views = [
        center_view(decode(split.image(index).name), SIDE, ViewConfig()) for index in range(11)
    ]
    for feature in FEATURES:
        found = vectors_of(split, ctx, feature=feature)
        for setting in SETTINGS:
            wanted = one_by_one(views, setting)
            torch.testing.assert_close(found[setting], select_feature(wanted, feature))


def test_vectors_of_random_crops_are_ordered_crop_by_crop(split: Split, ctx: ProbeContext) -> None:
    setting = SETTINGS[0]
    found = vectors_of(split, ctx, **RANDOM, feature="image+patch-mean")
    config = ViewConfig(crop="random-resized", area=CROP_AREA, trivial_augment=False)
    views = [
        training_view(
            decode(split.image(index).name), SIDE, random.Random(f"view/0/{view}/{index}"), config
        )
        for view in range(3)
        for index in range(len(split))
    ]
    wanted = select_feature(one_by_one(views, setting), "image+patch-mean")
    torch.testing.assert_close(found[setting], wanted)


def test_the_vectors_of_the_last_setting_stay_in_memory(split: Split, ctx: ProbeContext) -> None:
    found = vectors_of(split, ctx)
    vectors = found[SETTINGS[0]]
    assert found[SETTINGS[0]] is vectors
    assert found[SETTINGS[1]] is not vectors
    assert list(found._held) == [SETTINGS[1]]


def test_each_image_is_decoded_once_for_all_settings(
    tmp_path: Path, ctx: ProbeContext, monkeypatch: pytest.MonkeyPatch
) -> None:
    decoded: list[str] = []

    def counting(source: Any, **choices: Any) -> Any:
        decoded.append(source)
        return decode(source, **choices)

    monkeypatch.setattr(features, "decode", counting)
    model, eight = CellModel(), image_split(tmp_path / "pictures", 8)
    vectors_of(eight, ctx, model)
    assert sorted(decoded) == [eight.image(index).name for index in range(8)]
    assert model.asked == dict.fromkeys(SETTINGS, 8)


def test_a_new_setting_computes_only_itself(split: Split, ctx: ProbeContext) -> None:
    model = CellModel()
    before = vectors_of(split, ctx, model, SETTINGS[:2])
    model.asked.clear()
    again = vectors_of(split, ctx, model, [*SETTINGS, SETTINGS[0]])
    assert set(model.asked) == {SETTINGS[2]}
    for setting in SETTINGS[:2]:
        assert torch.equal(again[setting], before[setting])


@pytest.mark.parametrize(
    ("crops", "shared"),
    [
        ({"resolution": SIDE + 3}, True),
        ({"resize_ratio": 1.0}, False),
        ({"resolution": SIDE + 4}, False),
        ({"num_crops": 1}, False),
    ],
)
def test_features_are_shared_by_equal_crops_only(
    split: Split, ctx: ProbeContext, crops: dict[str, Any], shared: bool
) -> None:
    model = CellModel()
    vectors_of(split, ctx, model, SETTINGS[:1])
    model.asked.clear()
    vectors_of(split, ctx, model, SETTINGS[:1], **crops)
    assert (not model.asked) == shared


@pytest.mark.parametrize(
    ("crops", "batch", "group"),
    [(CENTER, 1, 1), (CENTER, 3, 2), (CENTER, 99, 4), (RANDOM, 2, 2), (RANDOM, 7, 6)],
)
def test_features_depend_on_neither_batch_nor_workers(
    split: Split, tmp_path: Path, crops: dict[str, Any], batch: int, group: int
) -> None:
    model = CellModel()
    wanted = vectors_of(split, context_in(tmp_path / "a"), **crops)
    ctx = context_in(tmp_path / "b", batch=batch, num_workers=batch % 2)
    found = vectors_of(split, ctx, model, **crops)
    for setting in SETTINGS:
        torch.testing.assert_close(found[setting], wanted[setting], atol=1e-6, rtol=0)
    assert model.lots == {group}  # also that of the last images


def test_a_small_veca_gives_the_same_features_in_any_batches(split: Split, tmp_path: Path) -> None:
    model = find_model(str(saved_model(tmp_path / "model")), CPU)
    settings = model.settings((2, 4), (0.5, 1.0))
    one, other = (
        vectors_of(split, context_in(tmp_path / str(n), batch=n), model, settings, resolution=40)
        for n in (2, 4)
    )
    views = [center_view(decode(split.image(index).name), 32, ViewConfig()) for index in range(11)]
    for setting in settings:
        torch.testing.assert_close(one[setting], other[setting], atol=1e-5, rtol=1e-4)
        wanted = model.extract(torch.stack(views), setting)
        torch.testing.assert_close(one[setting], wanted.image, atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize("num_workers", [0, 1])
def test_an_image_that_cannot_be_read_is_an_error_that_names_it(
    split: Split, tmp_path: Path, num_workers: int
) -> None:
    damaged = Path(split.image(6).name)
    damaged.write_bytes(damaged.read_bytes()[:60])
    ctx = context_in(tmp_path, num_workers=num_workers)
    with pytest.raises(DataError, match=r"0006.png cannot be read .*take it out of the set"):
        vectors_of(split, ctx)
    with pytest.raises(DataError, match=r"0006.png cannot be read .*take it out of the set"):
        extract_patch_features(CellModel(), [Variant(SETTINGS[0])], split, WHOLE_IMAGES, ctx)


def test_features_that_are_not_finite_are_an_error_that_names_the_image(
    split: Split, ctx: ProbeContext
) -> None:
    class Broken(CellModel):
        def forward(
            self, images: Tensor, grid: tuple[int, int], setting: Setting
        ) -> FrozenFeatures:
            found = super().forward(images, grid, setting)
            if self.calls == 2:
                found.patches[-1, 0, 0, 0] = torch.nan
            return found

    message = r"the features of .*{}\.png by cells are not finite"
    with pytest.raises(ProbeError, match=message.format("0007")):
        vectors_of(split, ctx, Broken(), SETTINGS[:1])
    with pytest.raises(ProbeError, match=message.format("0001")):
        extract_patch_features(Broken(), [Variant(SETTINGS[0])], split, WHOLE_IMAGES, ctx)


def test_a_subset_may_lie_in_a_tar_shard(tmp_path: Path) -> None:
    shard = tmp_path / "shard.tar"
    with tarfile.open(shard, "w") as tar:
        for number in range(3):
            path = tmp_path / f"{number}.png"
            Image.fromarray(scene(number)[0]).save(path)
            tar.add(path, path.name)
    table = TableBuilder()
    for member in members(str(shard)):
        table.add(member)
    whole = Split(name="val", images=table.table(), keys=("0", "1", "2"), labels=np.arange(3))
    part = whole.subset(np.array([2]), "one")
    assert part.image(0) == whole.image(2)
    assert part.labels is not None
    assert part.labels.tolist() == [2]
    assert load_image(part, 0).sides == scene(2)[1].shape


# Training crops


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (lambda target: np.save(target, np.zeros((3, 4), np.uint8)),
         r"masks-0\.npy has 3 x 4 pixels, but its image has 40 x 56"),
        (lambda target: target.unlink(), r"masks-0\.npy cannot be read"),
    ],
)  # fmt: skip
def test_a_target_that_does_not_fit_its_image_is_named(
    spoil: Callable[[Path], None], message: str, scenes: Split, ctx: ProbeContext
) -> None:
    crops = crops_of(scenes, ctx, None)
    spoil(Path(scenes.targets[0]))
    with pytest.raises(DataError, match=message):
        next(crops.batches(EVERY, 6, 0, 1))


def crops_of(
    split: Split, ctx: ProbeContext, num_crops: int | None, model: ColorModel | None = None
) -> TrainingCrops:
    draw = partial(segmentation_crop, side=SIDE_OF_CROPS, augment=AUGMENT)
    facts = {"side": SIDE_OF_CROPS}
    return TrainingCrops(model or ColorModel(), (FEW, ALL), split, draw, facts, num_crops, ctx)


def assert_equal(one: DenseBatch, other: DenseBatch) -> None:
    assert torch.equal(one.targets, other.targets)
    for setting in (FEW, ALL):
        for left, right in zip(one.features[setting], other.features[setting], strict=True):
            assert torch.equal(left, right)


def test_cached_features_are_those_of_the_crops_of_their_targets(
    scenes: Split, ctx: ProbeContext
) -> None:
    model = ColorModel()
    cached = crops_of(scenes, ctx, 3, model)
    assert model.asked == {FEW: 32, ALL: 32}  # 18, padded to groups of 16
    batch = next(cached.batches(EVERY, 5, 1, 1))
    assert batch.targets.shape == (5, SIDE_OF_CROPS, SIDE_OF_CROPS)
    assert batch.part == slice(0, 5)
    # Patches that are mostly barn are the reddest.
    barn = (batch.targets == 1).float().unfold(1, 8, 8).unfold(2, 8, 8).mean((3, 4))
    reddest = batch.features[ALL].patches[:, 0].float() - batch.features[ALL].patches[:, 1].float()
    assert torch.corrcoef(torch.stack((barn.flatten(), reddest.flatten())))[0, 1] > 0.9
    assert not batch.features[FEW].patches[:, 1:].any()


def test_a_second_run_computes_no_crops_and_memory_or_disk_give_equal_batches(
    scenes: Split, ctx: ProbeContext, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = crops_of(scenes, ctx, 2)
    monkeypatch.setattr(features, "MAX_HELD_BYTES", 0)
    model = ColorModel()
    again = crops_of(scenes, ctx, 2, model)
    assert not model.asked
    assert first._held
    assert not again._held
    pairs = zip(first.batches(EVERY, 4, 0, 4), again.batches(EVERY, 4, 0, 4), strict=True)
    for one, other in pairs:
        assert_equal(one, other)


def test_every_crop_of_the_chosen_images_comes_once_per_epoch(
    scenes: Split, ctx: ProbeContext
) -> None:
    cached, chosen = crops_of(scenes, ctx, 2), np.array([1, 4, 5])
    first, second, third = cached.batches(chosen, 3, 0, 3)
    seen = {target.numpy().tobytes() for batch in (first, second) for target in batch.targets}
    assert len(seen) == 6
    assert {target.numpy().tobytes() for target in third.targets} <= seen
    other = next(cached.batches(chosen, 3, 1, 1))
    assert not torch.equal(other.targets, first.targets)


def test_fresh_crops_are_new_in_every_epoch_and_follow_from_the_seed(
    scenes: Split, tmp_path: Path
) -> None:
    first, second = crops_of(scenes, context_in(tmp_path), None).batches(EVERY, 6, 3, 2)
    assert not torch.equal(first.targets.sort(0)[0], second.targets.sort(0)[0])
    workers = crops_of(scenes, context_in(tmp_path, num_workers=2), None)
    for one, other in zip((first, second), workers.batches(EVERY, 6, 3, 2), strict=True):
        assert_equal(one, other)


def test_ranks_share_a_batch_without_gaps(tmp_path: Path) -> None:
    ranks = [Ranks(rank=rank, world_size=3, device=ALONE.device) for rank in range(3)]
    parts = [share_of_batch(8, context_in(tmp_path, one)) for one in ranks]
    assert [number for part in parts for number in range(8)[part]] == list(range(8))
    with pytest.raises(DataError, match="cannot be split among 3 ranks"):
        share_of_batch(2, context_in(tmp_path, ranks[0]))


# Patch maps of test images


@pytest.mark.parametrize("inference", [WHOLE, SLIDING])
def test_cached_maps_are_those_of_the_model_to_half_precision(
    inference: InferenceConfig, scenes: Split, ctx: ProbeContext
) -> None:
    found = extract_patch_features(ColorModel(), VARIANTS, scenes, inference, ctx)
    for index, variant in itertools.product(range(6), VARIANTS):
        patches, grid = found(index, variant)
        picture = load_image(scenes, index)
        expected, there = extract_windows(ColorModel(), picture, inference, variant)
        assert grid == there
        assert patches.patches.shape[0] == grid.count
        torch.testing.assert_close(patches.patches, expected.patches, rtol=1e-3, atol=1e-3)
        torch.testing.assert_close(patches.image, expected.image)


def test_maps_are_clamped_to_half_precision_and_keep_their_proportions(
    scenes: Split, ctx: ProbeContext
) -> None:
    class Loud(ColorModel):
        def forward(self, *given: Any) -> FrozenFeatures:
            image, patches = super().forward(*given)
            return FrozenFeatures(image, 1e6 * patches)

    found = extract_patch_features(Loud(), VARIANTS[1:2], scenes, WHOLE, ctx)
    maps = [found(index, Variant(ALL))[0].patches for index in range(3)]
    assert maps[0].max() == 65504.0
    assert [one.shape[2:] for one in maps] == [(4, 6), (4, 4), (6, 4)]


def test_chunks_of_large_maps_have_fewer_images(
    scenes: Split, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    one = 2 * 6 * 4 * 4  # half precision, channels, rows, columns of a square
    for most, chunks in ((2**24, 1), (3 * one, 2), (one, 6), (1, 6)):
        monkeypatch.setattr(features, "MAX_CHUNK_BYTES", most)
        ctx = context_in(tmp_path / str(most))
        extract_patch_features(ColorModel(), VARIANTS[:1], scenes, WHOLE, ctx)
        assert len(list(ctx.cache.glob("*/chunk-*.safetensors"))) == chunks


def test_mirrored_maps_are_those_of_the_mirrored_image(scenes: Split, ctx: ProbeContext) -> None:
    found = extract_patch_features(ColorModel(), VARIANTS, scenes, WHOLE, ctx)
    straight, _ = found(1, Variant(ALL))
    mirrored, _ = found(1, Variant(ALL, flipped=True))
    torch.testing.assert_close(mirrored.patches, straight.patches.flip(-1), rtol=1e-2, atol=1e-2)
    assert not torch.equal(mirrored.patches, straight.patches)


def test_maps_are_computed_once_for_each_variant(scenes: Split, ctx: ProbeContext) -> None:
    model = ColorModel()
    extract_patch_features(model, VARIANTS, scenes, WHOLE, ctx)
    assert model.asked == {FEW: 6, ALL: 12}
    extract_patch_features(model, VARIANTS[:2], scenes, WHOLE, ctx)
    assert model.asked == {FEW: 6, ALL: 12}
    extract_patch_features(model, VARIANTS[:1], scenes, replace(WHOLE, short_side=40), ctx)
    assert model.asked == {FEW: 12, ALL: 12}


@pytest.mark.parametrize("mode", ["whole", "slide"])
def test_too_many_patches_are_refused_before_they_take_memory(mode: Inference) -> None:
    inference = InferenceConfig(short_side=512, mode=mode, window_stride=341, stride=16)
    assert inference.layout((1, 200)).scaled == (512, 102_400)
    with pytest.raises(ImageError, match=r"1 x 330 pixels .* 337,920 patches, but at most 262,144"):
        inference.layout((330, 1))


def test_images_of_kitti_are_cropped_first() -> None:
    picture = image_from_array(photo(375, 1242))
    inference = replace(WHOLE, kb_crop=True)
    _, grid = extract_windows(ColorModel(), picture, inference, Variant(ALL))
    assert grid.original == (352, 1216)
