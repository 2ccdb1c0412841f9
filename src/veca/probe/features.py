"""Extract features of a frozen model: vectors of images, training crops, and patch maps.

Every model sees the same crops by the same code. Crops go through the model in groups of fixed
size, so that features depend neither on what was cached before nor on the number of ranks. Another
batch, device or number of threads may change their last bits.
"""

import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import torch
from jaxtyping import Float, Shaped, UInt8
from numpy.typing import NDArray
from torch import Tensor

from veca.data.augment import ViewConfig, center_view, min_side, training_view
from veca.data.images import DataError, DecodedImage, decode
from veca.data.listing import one_line, open_image
from veca.data.loader import sample_order
from veca.data.sets.dataset import DepthRange, Split, Target
from veca.data.transforms import check_patches
from veca.probe.feature_cache import (
    ProbeContext,
    Variant,
    cache_key,
    fill_cache,
    load_target,
    map_settings,
    read_in_workers,
    unreadable,
)
from veca.probe.models import FrozenFeatures, FrozenModel
from veca.probe.protocols import Inference
from veca.probe.rows import ProbeError, Setting
from veca.probe.sliding_window import Sides, WindowGrid, cut_windows, slide, whole_image
from veca.probe.transforms import crop_image, kitti_benchmark_crop
from veca.runtime.device import seed_for
from veca.runtime.shards import ShardStore

IMAGE_CHUNK = 128
"""Images of a chunk of vectors."""

CROP_AREA = (0.08, 1.0)
"""Smallest and largest share of an image in a random crop for linear probes."""

CROP_GROUP = 16
"""Training crops of a dense task that go through the model together."""

CROP_CHUNK = 64
"""Training crops of a chunk, a multiple of `CROP_GROUP`."""

MAX_HELD_BYTES = 2**31
"""Cached crops of up to this size are read into memory before a fit."""

MAP_CHUNK = 64
"""Images of a chunk of patch maps, unless the maps are large."""

MAX_CHUNK_BYTES = 2**24
"""Bytes of a chunk of patch maps, unless a single map is larger."""

WINDOW_GROUP = 8
"""Windows of an image that go through the model together."""

MAX_HALF = 65504.0
"""The largest number in half precision; larger features are clamped to it."""

FEATURES: Mapping[str, tuple[str, ...]] = {
    "image": ("image",),
    "patch-mean": ("patch_mean",),
    "image+patch-mean": ("image", "patch_mean"),
}
"""Names of the cached vectors that a classification head sees side by side."""

DrawCrop = Callable[
    [DecodedImage, Target, random.Random], tuple[NDArray[np.uint8], NDArray[np.generic]]
]
"""Draws a training crop (3, height, width) and its target (height, width); a partial of a function
of a module, for worker processes."""


@contextmanager
def prefix_errors(name: str) -> Iterator[None]:
    """Put the name of a file before an error about its content."""
    try:
        yield
    except ValueError as error:
        raise DataError(f"{name}: {error}") from error


def load_image(split: Split, index: int, smallest: int | None = None) -> DecodedImage:
    """An image of a split; `smallest` pixels of its short side suffice."""
    source = split.image(index)
    try:
        with open_image(source) as file:
            return decode(file, min_side=smallest)
    except (OSError, ValueError, MemoryError) as error:
        raise unreadable(source, one_line(error)) from error


def check_size(split: Split, index: int, target: Target | Tensor, sides: Sides) -> None:
    """Require that a target has the size of its image."""
    if tuple(target.shape) != sides:
        raise DataError(
            f"{split.targets[index]} has {target.shape[0]} x {target.shape[1]} pixels, but its "
            f"image has {sides[0]} x {sides[1]} (height x width, upright); restore both, or take "
            "them out of the dataset."
        )


def extract_in_groups(
    model: FrozenModel,
    images: NDArray[np.uint8],
    setting: Setting,
    group: int,
    names: Sequence[str],
) -> FrozenFeatures:
    """Features of images (B, 3, H, W), a group at a time; errors call an image by its name.

    The last group is padded, since the size of a group can change the last bits.
    """
    count = len(images)
    padding = np.repeat(images[-1:], -count % group, axis=0)
    lots = torch.from_numpy(np.concatenate([images, padding])).split(group)
    parts = zip(*(model.extract(lot, setting) for lot in lots), strict=True)
    image, patches = (torch.cat(part)[:count] for part in parts)
    finite = image.isfinite().all(1) & patches.isfinite().flatten(1).all(1)
    if not finite.all():
        raise ProbeError(
            f"the features of {names[int((~finite).nonzero()[0])]} by {model.name} are not finite; "
            "take this image out of the set, or use another model."
        )
    return FrozenFeatures(image, patches)


def _half(values: Tensor) -> Tensor:
    """Features in half precision."""
    return values.clamp(-MAX_HALF, MAX_HALF).half()


def _even(total: int, most: int) -> int:
    """The size of equal parts of a total, as few as possible, of at most `most` each."""
    return -(-total // -(-total // most))


class CachedFeatures:
    """The vectors of a split by setting: read when asked for; the last ones stay in memory."""

    def __init__(self, caches: Mapping[Setting, ShardStore], feature: str) -> None:
        self._caches, self._names = caches, FEATURES[feature]
        self._held: dict[Setting, Tensor] = {}

    def __getitem__(self, setting: Setting) -> Float[Tensor, "R D"]:
        """Vectors of R crops; crop v of image i of N is row v * N + i."""
        if setting not in self._held:
            self._held.clear()  # before others are read
            self._held[setting] = self._read(self._caches[setting])
        return self._held[setting]

    def _read(self, cache: ShardStore) -> Float[Tensor, "R D"]:
        """Vectors are stored image by image and returned crop by crop."""
        found = torch.empty(0, cache.count, 0)
        for chunk in range(cache.num_chunks):
            items, parts = cache.items(chunk), cache.read(chunk, self._names)
            rows = torch.cat([parts[name] for name in self._names], dim=2).transpose(0, 1)
            if not chunk:
                found = rows.new_empty(len(rows), cache.count, rows.shape[2])
            found[:, items.start : items.stop] = rows
        return found.flatten(0, 1)


def extract_image_features(  # noqa: PLR0913
    model: FrozenModel,
    settings: Sequence[Setting],
    split: Split,
    ctx: ProbeContext,
    *,
    resolution: int,
    resize_ratio: float = 1.125,
    num_crops: int = 0,
    feature: str = "image",
) -> CachedFeatures:
    """One of `FEATURES` of every crop, in fp32.

    What is not cached is computed now, all features for all settings in one pass. `resolution` is
    the side of a crop, rounded down to the model's stride; before a center crop the short side of
    an image is `resize_ratio` times as long. Random crops are mirrored half of the time; without
    any (`num_crops` is 0), the center crop is seen.
    """
    side, per_image = model.round_down_to_patch(resolution), max(1, num_crops)
    shown = {"side": side, "resize_ratio": float(resize_ratio), "crops": num_crops}
    caches = {
        setting: ShardStore(
            ctx.cache,
            cache_key("vectors", split, model, setting=setting._asdict(), crops=shown),
            count=len(split),
            chunk_size=IMAGE_CHUNK,
            name=f"{model.name}-{split.name}",
        )
        for setting in settings
    }
    images = _even(IMAGE_CHUNK, max(1, min(IMAGE_CHUNK, ctx.batch // per_image)))
    group = _even(images * per_image, ctx.batch)

    def forward(items: range, crops: NDArray[np.uint8], variant: Variant) -> dict[str, Tensor]:
        names = [split.image(item).name for item in items for _ in range(per_image)]
        found = extract_in_groups(model, crops, variant.setting, group, names)
        vectors = {"image": found.image, "patch_mean": mean_patch(found)}
        return {name: rows.unflatten(0, (-1, per_image)) for name, rows in vectors.items()}

    view = ViewConfig(
        crop="random-resized" if num_crops else "resized",
        margin=float(resize_ratio),
        area=CROP_AREA,
        trivial_augment=False,
    )
    load = partial(_load_views, split, side, view, num_crops)
    by_variant = {Variant(setting): cache for setting, cache in caches.items()}
    fill_cache(model, by_variant, images, load, forward, ctx)
    return CachedFeatures(caches, feature)


def _load_views(
    split: Split, side: int, config: ViewConfig, num_crops: int, items: range
) -> NDArray[np.uint8]:
    """The crops of images, image by image."""
    found = []
    for index in items:
        picture = load_image(split, index, min_side(side, config))
        with prefix_errors(split.image(index).name):
            for number in range(num_crops):
                draw = random.Random(f"view/0/{number}/{index}")
                found.append(training_view(picture, side, draw, config))
            if not num_crops:
                found.append(center_view(picture, side, config))
    return torch.stack(found).numpy()


def mean_patch(features: FrozenFeatures) -> Float[Tensor, "B DP"]:
    """The mean of the patch features of each image."""
    return features.patches.flatten(2).mean(2)


def select_feature(features: FrozenFeatures, feature: str) -> Float[Tensor, "B D"]:
    """The vectors that a classification head sees."""
    vectors = {"image": features.image, "patch_mean": mean_patch(features)}
    return torch.cat([vectors[name] for name in FEATURES[feature]], dim=1)


class DenseBatch(NamedTuple):
    """This rank's share of the training crops of a step."""

    features: Mapping[Setting, FrozenFeatures]
    targets: Shaped[Tensor, "b height width"]
    part: slice
    """Which crops of the whole batch they are."""


class Crops(NamedTuple):
    """Some training crops, stacked."""

    images: UInt8[np.ndarray, "b 3 h w"]
    targets: Shaped[np.ndarray, "b h w"]
    names: list[str]
    """Of their images."""


class TrainingCrops:
    """Random crops of a dense task: new ones at every step, or a number drawn once and cached.

    All seeds and later runs share cached crops; seeds differ in initial weights and in the order of
    crops. Crop v of image i of N is item v * N + i.
    """

    def __init__(  # noqa: PLR0913, PLR0917
        self,
        model: FrozenModel,
        settings: Sequence[Setting],
        split: Split,
        draw: DrawCrop,
        facts: Mapping[str, Any],
        num_crops: int | None,
        ctx: ProbeContext,
    ) -> None:
        """Compute what is not cached.

        Crops depend on nothing but `facts`, plain JSON. `num_crops` are cached of each image; None
        draws new ones at every step.
        """
        self._model, self._split, self._draw, self._ctx = model, split, draw, ctx
        self._variants = [Variant(setting) for setting in settings]
        self._num_crops = num_crops
        self._held: dict[tuple[Variant | None, str], Tensor] = {}
        if num_crops is not None:
            self._fill(num_crops, {"count": num_crops, **facts})

    def batches(
        self, images: NDArray[np.int64], size: int, seed: int, steps: int
    ) -> Iterator[DenseBatch]:
        """Batches of crops of these images; every image or cached crop comes once per epoch."""
        part = share_of_batch(size, self._ctx)
        return (self._cached if self._num_crops else self._fresh)(images, size, seed, steps, part)

    def _fresh(
        self, images: NDArray[np.int64], size: int, seed: int, steps: int, part: slice
    ) -> Iterator[DenseBatch]:
        """New crops at every step."""
        split, num_workers, device = self._split, self._ctx.num_workers, self._ctx.ranks.device

        def tasks() -> Iterator[list[tuple[int, int]]]:
            for step in range(steps):
                places, epochs = sample_order(len(images), size, step, seed)
                drawn = zip(images[places][part].tolist(), epochs[part].tolist(), strict=True)
                yield [
                    (index, seed_for(seed, epoch * len(split) + index, "view"))
                    for index, epoch in drawn
                ]

        samples = read_in_workers(partial(_draw_crops, split, self._draw), tasks(), num_workers)
        mapper = map_settings(self._model, len(self._variants), num_workers)
        with mapper as run, closing(samples):
            for crops in samples:
                found = run(partial(self._extract, crops, len(crops.images)), self._variants)
                features = {v.setting: one for v, one in zip(self._variants, found, strict=True)}
                yield DenseBatch(features, torch.from_numpy(crops.targets).to(device), part)

    def _cached(
        self, images: NDArray[np.int64], size: int, seed: int, steps: int, part: slice
    ) -> Iterator[DenseBatch]:
        """Cached crops in random order."""
        items = (np.arange(self._num_crops or 0)[:, None] * len(self._split) + images).reshape(-1)
        for step in range(steps):
            places, _ = sample_order(len(items), size, step, seed)
            rows = items[places][part]
            features = {
                variant.setting: FrozenFeatures(
                    *(self._rows(variant, name, rows) for name in FrozenFeatures._fields)
                )
                for variant in self._variants
            }
            yield DenseBatch(features, self._rows(None, "targets", rows), part)

    def _fill(self, num_crops: int, facts: Mapping[str, Any]) -> None:
        """Compute what is not cached, and read all of it if it is not large."""
        model, split, ctx = self._model, self._split, self._ctx
        keys: dict[Variant | None, dict[str, Any]] = {
            one: cache_key("crops", split, model, crops=facts, setting=one.setting._asdict())
            for one in self._variants
        }
        keys[None] = cache_key("targets of crops", split, None, crops=facts)
        self._caches = {
            variant: ShardStore(
                ctx.cache,
                key,
                count=num_crops * len(split),
                chunk_size=CROP_CHUNK,
                name=f"{model.name}-{split.name}" if variant else split.name,
            )
            for variant, key in keys.items()
        }

        def forward(_: range, crops: Crops, variant: Variant | None) -> dict[str, Tensor]:
            if variant is None:
                return {"targets": torch.from_numpy(crops.targets)}
            found = self._extract(crops, CROP_GROUP, variant)
            return {"patches": _half(found.patches), "image": found.image}

        load = partial(_draw_numbered_crops, split, self._draw)
        fill_cache(model, self._caches, CROP_GROUP, load, forward, ctx)
        files = [c.path(chunk) for c in self._caches.values() for chunk in range(c.num_chunks)]
        if sum(file.stat().st_size for file in files) <= MAX_HELD_BYTES:
            for variant, cache in self._caches.items():
                for name in FrozenFeatures._fields if variant else ("targets",):
                    self._held[variant, name] = cache.rows(name, np.arange(cache.count))

    def _rows(self, variant: Variant | None, name: str, items: NDArray[np.int64]) -> Tensor:
        """Tensors of some items of a cache."""
        held = self._held.get((variant, name))
        rows = self._caches[variant].rows(name, items) if held is None else held[items]
        return rows.to(self._ctx.ranks.device)

    def _extract(self, crops: Crops, group: int, variant: Variant) -> FrozenFeatures:
        return extract_in_groups(self._model, crops.images, variant.setting, group, crops.names)


def share_of_batch(size: int, ctx: ProbeContext) -> slice:
    """The part of a batch that is this rank's."""
    rank, world_size = ctx.ranks.rank, ctx.ranks.world_size
    if size < world_size:
        raise DataError(f"a batch of {size} cannot be split among {world_size} ranks; use fewer.")
    return slice(rank * size // world_size, (rank + 1) * size // world_size)


def _draw_numbered_crops(split: Split, draw: DrawCrop, items: range) -> Crops:
    """The crops that are cached as these items."""
    return _draw_crops(
        split, draw, [(item % len(split), seed_for(0, item, "kept view")) for item in items]
    )


def _draw_crops(split: Split, draw: DrawCrop, draws: Sequence[tuple[int, int]]) -> Crops:
    """Crops of images by their number and seed."""
    crops, names = [], [split.image(index).name for index, _ in draws]
    for (index, seed), name in zip(draws, names, strict=True):
        picture, target = load_image(split, index), load_target(split, index)
        check_size(split, index, target, picture.sides)
        with prefix_errors(name):
            crops.append(draw(picture, target, random.Random(seed)))
    images, targets = (np.stack(parts) for parts in zip(*crops, strict=True))
    return Crops(images, targets, names)


@dataclass(frozen=True, kw_only=True)
class InferenceConfig:
    """How test images of a dense task are shown to a model."""

    short_side: int
    """Pixels of the short side, a multiple of the stride."""
    mode: Inference = "whole"
    window_stride: int = 0
    """Pixels from one window to the next; no effect on whole images."""
    stride: int
    """Of the model."""
    kb_crop: bool = False
    """Whether images are first cropped as those of KITTI."""

    def layout(self, sides: Sides) -> WindowGrid:
        """The windows of an image of this size, after the crop."""
        if self.mode == "slide":
            grid = slide(sides, self.short_side, self.short_side, self.window_stride)
        else:
            grid = whole_image(sides, self.short_side, self.stride)
        rows, columns = (side // self.stride for side in grid.scaled)
        shown = f"a picture of {sides[1]} x {sides[0]} pixels"
        check_patches(shown, (rows, columns), self.stride)
        return grid

    def crop(self, picture: DecodedImage) -> DecodedImage:
        """The part of an image that is shown."""
        if not self.kb_crop:
            return picture
        return crop_image(picture, kitti_benchmark_crop(picture.sides, DepthRange(kb_crop=True)))


def extract_windows(
    model: FrozenModel, picture: DecodedImage, inference: InferenceConfig, variant: Variant
) -> tuple[FrozenFeatures, WindowGrid]:
    """The features of one image, without a cache."""
    picture = inference.crop(picture)
    layout = inference.layout(picture.sides)
    windows = cut_windows(picture, layout, variant.flipped).numpy()
    return _extract_windows(model, windows, variant.setting, "an image"), layout


def _extract_windows(
    model: FrozenModel, windows: NDArray[np.uint8], setting: Setting, name: str
) -> FrozenFeatures:
    """Features of the windows of an image, few at a time."""
    count = len(windows)
    return extract_in_groups(model, windows, setting, _even(count, WINDOW_GROUP), [name] * count)


class PatchFeatures(NamedTuple):
    """Features of whole images or their windows, as cached by `extract_patch_features`."""

    caches: Mapping[Variant, ShardStore]
    inference: InferenceConfig
    device: torch.device

    def __call__(self, index: int, variant: Variant) -> tuple[FrozenFeatures, WindowGrid]:
        """The features of an image on the device, and its windows."""
        cache = self.caches[variant]
        with cache.open(index // cache.chunk_size) as file:
            image, patches = (file.read(f"{index}/{name}") for name in FrozenFeatures._fields)
            height, width = file.read(f"{index}/sides").tolist()
        features = FrozenFeatures(image.to(self.device), patches.to(self.device).float())
        return features, self.inference.layout((height, width))


def extract_patch_features(
    model: FrozenModel,
    variants: Sequence[Variant],
    split: Split,
    inference: InferenceConfig,
    ctx: ProbeContext,
) -> PatchFeatures:
    """Features of the test images of a dense task, which all heads, seeds and protocols share.

    An image goes through the model alone, with all its windows, since images differ in size.
    """
    map_bytes = 2 * model.patch_width * (inference.short_side // model.stride) ** 2
    shown = asdict(inference)
    caches = {
        variant: ShardStore(
            ctx.cache,
            cache_key("patch maps", split, model, inference=shown, variant=list(variant)),
            count=len(split),
            chunk_size=max(1, min(MAP_CHUNK, MAX_CHUNK_BYTES // map_bytes)),
            name=f"{model.name}-{split.name}",
        )
        for variant in variants
    }

    def forward(
        items: range, loaded: tuple[Sides, dict[bool, NDArray[np.uint8]]], variant: Variant
    ) -> dict[str, Tensor]:
        (sides, windows), name = loaded, split.image(items[0]).name
        found = _extract_windows(model, windows[variant.flipped], variant.setting, name)
        tensors = {
            "image": found.image,
            "patches": _half(found.patches),
            "sides": torch.tensor(sides),
        }
        return {f"{items[0]}/{key}": value for key, value in tensors.items()}

    flips = {variant.flipped for variant in variants}
    fill_cache(model, caches, 1, partial(_load_windows, split, inference, flips), forward, ctx)
    return PatchFeatures(caches, inference, ctx.ranks.device)


def _load_windows(
    split: Split, inference: InferenceConfig, flips: set[bool], items: range
) -> tuple[Sides, dict[bool, NDArray[np.uint8]]]:
    """Sides of an image after its crop, and its windows (G, 3, h, w) by `Variant.flipped`."""
    picture = load_image(split, items[0])
    with prefix_errors(split.image(items[0]).name):
        picture = inference.crop(picture)
        layout = inference.layout(picture.sides)
    return picture.sides, {
        flipped: cut_windows(picture, layout, flipped).numpy() for flipped in flips
    }
