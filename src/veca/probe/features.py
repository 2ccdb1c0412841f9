"""Extract features of a frozen model: vectors of images, training crops, and patch maps.

Every model sees the same crops by the same code. Worker processes decode an image once for all
settings that lack it; settings are computed in parallel threads; `fill_cache` stores the results.
Crops go through the model in groups of fixed size, so that features depend neither on what was
cached before nor on the number of ranks. Another batch, device or number of threads may change
their last bits.
"""

import itertools
import random
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any, NamedTuple, TypeVar

import numpy as np
import torch
from jaxtyping import Float, Shaped, UInt8
from numpy.typing import NDArray
from torch import Tensor
from torch.utils.data import Dataset

from veca.data.augment import ViewConfig, center_view, min_side, training_view
from veca.data.images import DataError, DecodedImage, decode
from veca.data.listing import one_line, open_image
from veca.data.loader import sample_order, worker_loader
from veca.data.sets.dataset import DepthRange, Split, Target
from veca.probe.feature_cache import (
    FeatureCache,
    Group,
    RunContext,
    cache_key,
    fill_cache,
    item_name,
    load_target,
    unreadable,
)
from veca.probe.models import FrozenFeatures, FrozenModel, ProbeError
from veca.probe.protocols import Feature, Inference
from veca.probe.rows import Setting
from veca.probe.sliding_window import Sides, WindowGrid, cut_windows, slide, whole_image
from veca.probe.transforms import DenseCrop, crop_image, kitti_benchmark_crop
from veca.runtime.device import seed_for, usable_processors

MAX_PARALLEL = 4
"""Settings that are computed at the same time; each of them takes memory of its own."""

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

FEATURES: Mapping[Feature, tuple[str, ...]] = {
    "image": ("image",),
    "patch-mean": ("patch_mean",),
    "image+patch-mean": ("image", "patch_mean"),
}
"""Names of the cached vectors that a head sees side by side."""

Sample = TypeVar("Sample")


class Variant(NamedTuple):
    """One of the features of an image."""

    setting: Setting
    flipped: bool = False
    """Whether they are of its mirror image."""


@contextmanager
def map_settings(
    model: FrozenModel, count: int, num_workers: int
) -> Iterator[Callable[..., list[Any]]]:
    """A function that maps work over variants, on the CPU in parallel threads.

    Threads that share a matrix product wait for the slowest of them, which a data loader easily
    slows down. With a setting per thread, two processors computed 76 instead of 37 crops per second
    at three budgets of tiny.
    """
    threads, parallel = torch.get_num_threads(), 1
    if model.kind == "veca" and model.device.type == "cpu":  # others may not be thread-safe
        parallel = max(1, min(count, MAX_PARALLEL, threads, usable_processors()))
    torch.set_num_threads(max(1, min(threads, (usable_processors() - num_workers) // parallel)))

    def cost(variant: Variant | None) -> int:
        return variant.setting.budget or 0 if variant else 0

    def run(work: Callable[[Variant | None], Any], variants: Sequence[Variant | None]) -> list[Any]:
        slowest_first = sorted(variants, key=cost, reverse=True)
        futures = {variant: pool.submit(work, variant) for variant in slowest_first}
        return [futures[variant].result() for variant in variants]

    try:
        with ThreadPoolExecutor(parallel) as pool:
            yield run
    finally:
        torch.set_num_threads(threads)


def read_in_workers(
    load: Callable[[Any], Sample], tasks: Iterable[Any], num_workers: int
) -> Generator[Sample, None, None]:
    """The sample of each task, in order, loaded by worker processes; errors are raised here.

    Samples hold numpy arrays: these go through a pipe, while tensors would need shared memory, of
    which containers often have little.
    """
    with closing(worker_loader(_Loader(load), tasks, num_workers)) as answers:
        for sample, problem in answers:
            if problem is not None:
                raise DataError(problem)
            yield sample


class _Loader(Dataset[tuple[Any, str | None]]):
    """Loads samples in a worker process; errors come back as messages."""

    def __init__(self, load: Callable[[Any], Any]) -> None:
        self._load = load

    def __getitem__(self, task: Any) -> tuple[Any, str | None]:  # noqa: ANN401 - as `load` takes it
        try:
            return self._load(task), None
        except (OSError, ValueError) as error:
            return None, one_line(error)


@contextmanager
def prefix_errors(name: str) -> Iterator[None]:
    """Put the name of a file before an error about its content."""
    try:
        yield
    except ValueError as error:
        raise DataError(f"{name}: {error}") from error


class Pair(NamedTuple):
    """An image and its target."""

    picture: DecodedImage
    target: Target


def load_image(split: Split, index: int, smallest: int | None = None) -> DecodedImage:
    """An image of a split; `smallest` pixels of its short side suffice."""
    source = split.image(index)
    try:
        with open_image(source) as file:
            return decode(file, min_side=smallest)
    except (OSError, ValueError, MemoryError) as error:
        raise unreadable(source, one_line(error)) from error


def load_pair(split: Split, index: int) -> Pair:
    """An image and its target, which must have its size."""
    picture, target = load_image(split, index), load_target(split, index)
    if target.shape != picture.sides:
        raise DataError(
            f"{split.targets[index]} has {' x '.join(map(str, target.shape))} pixels, but its "
            f"image has {' x '.join(map(str, picture.sides))} (height x width, upright); restore "
            "both, or take them out of the set."
        )
    return Pair(picture, target)


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


def _fill(  # noqa: PLR0913, PLR0917 - the one pass that all features share
    model: FrozenModel,
    caches: Mapping[Any, FeatureCache],
    group_size: int,
    load: Callable[[range], Sample],
    forward: Callable[[range, Sample, Any], dict[str, Tensor]],
    ctx: RunContext,
) -> None:
    """Compute what caches lack.

    Args:
        model: sees the images.
        caches: one for each variant; None is the targets, which no model sees.
        group_size: items that are loaded and computed together.
        load: loads items in a worker process, so a partial of a function of this module.
        forward: the tensors to cache for loaded items at a variant.
        ctx: of the run.
    """
    variants = list(caches)

    def compute(groups: Sequence[Group]) -> Generator[list[dict[str, Tensor]], None, None]:
        samples = read_in_workers(load, (group.items for group in groups), ctx.num_workers)
        mapper = map_settings(model, len(variants), ctx.num_workers)
        with mapper as run, closing(samples):
            for (items, numbers), sample in zip(groups, samples, strict=True):
                work = partial(forward, items, sample)
                yield run(work, [variants[number] for number in numbers])

    fill_cache(list(caches.values()), group_size, compute, ctx)


def _half(values: Tensor) -> Tensor:
    """Features in half precision on the CPU."""
    return values.clamp(-MAX_HALF, MAX_HALF).half().cpu()


def _even(total: int, most: int) -> int:
    """The size of equal parts of a total, as few as possible, of at most `most` each."""
    return -(-total // -(-total // most))


@dataclass(frozen=True, kw_only=True)
class CropConfig:
    """Which crops of each image a classification probe sees."""

    resolution: int
    """Sides in pixels, rounded down to the model's stride."""
    resize_ratio: float = 1.125
    """Short side of the image before the center crop, in sides of the crop."""
    num_crops: int = 0
    """Random crops of each image, of varied scale, half of them mirrored; 0 is the center crop."""

    def __post_init__(self) -> None:
        """Validate the numbers."""
        if self.resolution < 1 or self.num_crops < 0:
            raise ProbeError(
                f"resolution={self.resolution} with num_crops={self.num_crops} is invalid: "
                "resolution must be >= 1, num_crops >= 0."
            )

    def view(self) -> ViewConfig:
        """How crops are made."""
        return ViewConfig(
            crop="random-resized" if self.num_crops else "resized",
            margin=float(self.resize_ratio),
            area=CROP_AREA,
            trivial_augment=False,
        )


class CachedFeatures:
    """The vectors of a split by setting: read when asked for; the last ones stay in memory."""

    def __init__(self, caches: Mapping[Setting, FeatureCache], feature: Feature = "image") -> None:
        self._caches, self._feature = caches, feature
        self._held: dict[Setting, Tensor] = {}

    def select(self, feature: Feature) -> "CachedFeatures":
        """The same crops with another feature."""
        return CachedFeatures(self._caches, feature)

    def __getitem__(self, setting: Setting) -> Float[Tensor, "R D"]:
        """Vectors of R crops; crop v of image i of N is row v * N + i."""
        if setting not in self._held:
            self._held.clear()  # before others are read
            self._held[setting] = self._read(self._caches[setting])
        return self._held[setting]

    def _read(self, cache: FeatureCache) -> Float[Tensor, "R D"]:
        """Vectors are stored image by image and returned crop by crop."""
        names, found = FEATURES[self._feature], None
        for chunk in range(cache.num_chunks):
            items, parts = cache.items(chunk), cache.read(chunk, names)
            rows = torch.cat([parts[name] for name in names], dim=2).transpose(0, 1)
            found = (
                rows.new_empty(len(rows), cache.count, rows.shape[2]) if found is None else found
            )
            found[:, items.start : items.stop] = rows
        return torch.empty(0) if found is None else found.flatten(0, 1)


def extract_image_features(
    model: FrozenModel,
    settings: Sequence[Setting],
    split: Split,
    crops: CropConfig,
    ctx: RunContext,
) -> CachedFeatures:
    """The image feature of every crop and the mean of its patch features, in fp32.

    What is not cached is computed now, for all settings in one pass.
    """
    side, per_image = model.round_down_to_patch(crops.resolution), max(1, crops.num_crops)
    shown = {"side": side, "resize_ratio": float(crops.resize_ratio), "crops": crops.num_crops}
    caches = {
        setting: FeatureCache(
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

    def forward(items: range, views: NDArray[np.uint8], variant: Variant) -> dict[str, Tensor]:
        names = [split.image(item).name for item in items for _ in range(per_image)]
        found = extract_in_groups(model, views, variant.setting, group, names)
        vectors = {"image": found.image, "patch_mean": mean_patch(found)}
        return {name: rows.unflatten(0, (-1, per_image)) for name, rows in vectors.items()}

    by_variant = {Variant(setting): cache for setting, cache in caches.items()}
    _fill(model, by_variant, images, partial(_load_crops, split, side, crops), forward, ctx)
    return CachedFeatures(caches)


def _load_crops(split: Split, side: int, crops: CropConfig, items: range) -> NDArray[np.uint8]:
    """The crops of images, image by image."""
    config, found = crops.view(), []
    for index in items:
        picture = load_image(split, index, min_side(side, config))
        with prefix_errors(split.image(index).name):
            for draw in range(crops.num_crops):
                number = random.Random(f"view/0/{draw}/{index}")
                found.append(training_view(picture, side, number, config))
            if not crops.num_crops:
                found.append(center_view(picture, side, config))
    return torch.stack(found).numpy()


def mean_patch(features: FrozenFeatures) -> Float[Tensor, "B DP"]:
    """The mean of the patch features of each image."""
    return features.patches.flatten(2).mean(2)


def select_feature(features: FrozenFeatures, feature: Feature) -> Float[Tensor, "B D"]:
    """The vectors that a classification head sees."""
    vectors = {"image": features.image, "patch_mean": mean_patch(features)}
    return torch.cat([vectors[name] for name in FEATURES[feature]], dim=1)


class DenseBatch(NamedTuple):
    """This rank's share of the training crops of a step."""

    features: Mapping[Setting, FrozenFeatures]
    targets: Shaped[Tensor, "b height width"]
    part: slice
    """Which crops of the whole batch they are."""


class CropTransform(NamedTuple):
    """How training crops of a dense task are drawn."""

    facts: Mapping[str, Any]
    """All that they depend on, as plain JSON."""
    make: Callable[[Pair, random.Random], DenseCrop]
    """Draws one crop; a partial of a function of a module, for worker processes."""


class CropSource(NamedTuple):
    """Where training crops come from, and the model that sees them."""

    model: FrozenModel
    settings: Sequence[Setting]
    split: Split
    transform: CropTransform
    ctx: RunContext


class Crops(NamedTuple):
    """Some training crops, stacked."""

    images: UInt8[np.ndarray, "b 3 h w"]
    targets: Shaped[np.ndarray, "b h w"]
    names: list[str]
    """Of their images."""


def share_of_batch(size: int, ctx: RunContext) -> slice:
    """The part of a batch that is this rank's."""
    rank, world_size = ctx.ranks.rank, ctx.ranks.world_size
    if size < world_size:
        raise DataError(f"a batch of {size} cannot be split among {world_size} ranks; use fewer.")
    return slice(rank * size // world_size, (rank + 1) * size // world_size)


def fresh_crops(
    source: CropSource, images: NDArray[np.int64], size: int, seed: int, steps: int
) -> Iterator[DenseBatch]:
    """Batches of new crops of these images, each seen at every setting."""
    model, settings, split, _, ctx = source
    part = share_of_batch(size, ctx)
    variants = [Variant(setting) for setting in dict.fromkeys(settings)]

    def tasks() -> Iterator[list[tuple[int, int]]]:
        for step in range(steps):
            places, epochs = sample_order(len(images), size, step, seed)
            drawn = zip(images[places][part].tolist(), epochs[part].tolist(), strict=True)
            yield [
                (index, seed_for(seed, epoch * len(split) + index, "view"))
                for index, epoch in drawn
            ]

    draw = partial(_draw_crops, split, source.transform.make)
    samples = read_in_workers(draw, tasks(), ctx.num_workers)
    with map_settings(model, len(variants), ctx.num_workers) as run, closing(samples):
        for crops in samples:
            found = run(partial(_extract_crops, model, crops, len(crops.images)), variants)
            features = {v.setting: one for v, one in zip(variants, found, strict=True)}
            yield DenseBatch(features, torch.from_numpy(crops.targets).to(ctx.ranks.device), part)


class CachedCrops:
    """Training crops drawn once, with cached features: crop v of image i of N is item v * N + i.

    All seeds and later runs share them; seeds differ in initial weights and the order of crops.
    """

    def __init__(self, source: CropSource, num_crops: int) -> None:
        """Compute what is not cached."""
        model, settings, split, transform, ctx = source
        self._source, self._num_crops = source, num_crops
        crops = {"count": num_crops, **transform.facts}
        keys: dict[Variant | None, dict[str, Any]] = {
            Variant(one): cache_key("crops", split, model, crops=crops, setting=one._asdict())
            for one in settings
        }
        keys[None] = cache_key("targets of crops", split, None, crops=crops)
        self._caches = {
            variant: FeatureCache(
                ctx.cache,
                key,
                count=num_crops * len(split),
                chunk_size=CROP_CHUNK,
                name=f"{model.name}-{split.name}" if variant else split.name,
            )
            for variant, key in keys.items()
        }
        load = partial(_draw_numbered_crops, split, transform.make)
        _fill(model, self._caches, CROP_GROUP, load, self._forward, ctx)
        self._held: dict[tuple[Variant | None, str], Tensor] = {}
        if sum(cache.nbytes() for cache in self._caches.values()) <= MAX_HELD_BYTES:
            for variant, cache in self._caches.items():
                names = FrozenFeatures._fields if variant else ("targets",)
                self._held |= {(variant, name): cache.stack(name) for name in names}

    def batches(self, images: NDArray[np.int64], size: int, seed: int) -> Iterator[DenseBatch]:
        """Endless batches of the crops of these images; every crop comes once per epoch."""
        part = share_of_batch(size, self._source.ctx)
        starts = np.arange(self._num_crops)[:, None] * len(self._source.split)
        items = (starts + images).reshape(-1)
        for step in itertools.count():
            places, _ = sample_order(len(items), size, step, seed)
            rows = items[places][part]
            features = {
                variant.setting: FrozenFeatures(
                    *(self._rows(variant, name, rows) for name in FrozenFeatures._fields)
                )
                for variant in self._caches
                if variant
            }
            yield DenseBatch(features, self._rows(None, "targets", rows), part)

    def _rows(self, variant: Variant | None, name: str, items: NDArray[np.int64]) -> Tensor:
        """Tensors of some items of a cache."""
        held = self._held.get((variant, name))
        rows = self._caches[variant].rows(name, items) if held is None else held[items]
        return rows.to(self._source.ctx.ranks.device)

    def _forward(self, items: range, crops: Crops, variant: Variant | None) -> dict[str, Tensor]:
        """What is cached of some crops."""
        del items
        if variant is None:
            return {"targets": torch.from_numpy(crops.targets)}
        found = _extract_crops(self._source.model, crops, CROP_GROUP, variant)
        return {"patches": _half(found.patches), "image": found.image}


def _extract_crops(
    model: FrozenModel, crops: Crops, group: int, variant: Variant
) -> FrozenFeatures:
    """Features of crops, in groups."""
    return extract_in_groups(model, crops.images, variant.setting, group, crops.names)


def _draw_numbered_crops(
    split: Split, make: Callable[[Pair, random.Random], DenseCrop], items: range
) -> Crops:
    """The crops that are cached as these items."""
    count = len(split)
    return _draw_crops(split, make, [(i % count, seed_for(0, i, "kept view")) for i in items])


def _draw_crops(
    split: Split,
    make: Callable[[Pair, random.Random], DenseCrop],
    draws: Sequence[tuple[int, int]],
) -> Crops:
    """Crops of images by their number and seed."""
    crops, names = [], [split.image(index).name for index, _ in draws]
    for (index, seed), name in zip(draws, names, strict=True):
        pair = load_pair(split, index)
        with prefix_errors(name):
            crops.append(make(pair, random.Random(seed)))
    images, targets = (torch.stack(parts).numpy() for parts in zip(*crops, strict=True))
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
            return slide(sides, self.short_side, self.short_side, self.window_stride)
        return whole_image(sides, self.short_side, self.stride)

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


class Windows(NamedTuple):
    """An image as it is shown to a model."""

    sides: Sides
    """Of the image after its crop."""
    images: dict[bool, NDArray[np.uint8]]
    """Its windows (G, 3, h, w), as they are and mirrored, by `Variant.flipped`."""


class PatchFeatures(NamedTuple):
    """Features of whole images or their windows, as cached by `extract_patch_features`."""

    caches: Mapping[Variant, FeatureCache]
    inference: InferenceConfig
    device: torch.device

    def __call__(self, index: int, variant: Variant) -> tuple[FrozenFeatures, WindowGrid]:
        """The features of an image on the device, and its windows."""
        names = (*FrozenFeatures._fields, "sides")
        image, patches, sides = self.caches[variant].item(index, names)
        features = FrozenFeatures(image.to(self.device), patches.to(self.device).float())
        height, width = sides.tolist()
        return features, self.inference.layout((height, width))


def extract_patch_features(
    model: FrozenModel,
    variants: Sequence[Variant],
    split: Split,
    inference: InferenceConfig,
    ctx: RunContext,
) -> PatchFeatures:
    """Features of the test images of a dense task, which all heads, seeds and protocols share.

    An image goes through the model alone, with all its windows, since images differ in size.
    """
    map_bytes = 2 * model.patch_width * (inference.short_side // model.stride) ** 2
    caches = {
        variant: FeatureCache(
            ctx.cache,
            cache_key(
                "patch maps", split, model, inference=asdict(inference), variant=list(variant)
            ),
            count=len(split),
            chunk_size=max(1, min(MAP_CHUNK, MAX_CHUNK_BYTES // map_bytes)),
            name=f"{model.name}-{split.name}",
        )
        for variant in variants
    }

    def forward(items: range, windows: Windows, variant: Variant) -> dict[str, Tensor]:
        name, images = split.image(items[0]).name, windows.images[variant.flipped]
        found = _extract_windows(model, images, variant.setting, name)
        tensors = {"image": found.image, "patches": _half(found.patches)}
        tensors["sides"] = torch.tensor(windows.sides)
        return {item_name(items[0], key): value for key, value in tensors.items()}

    flips = tuple(dict.fromkeys(variant.flipped for variant in variants))
    _fill(model, caches, 1, partial(_load_windows, split, inference, flips), forward, ctx)
    return PatchFeatures(caches, inference, ctx.ranks.device)


def _load_windows(
    split: Split, inference: InferenceConfig, flips: Sequence[bool], items: range
) -> Windows:
    """The windows of an image."""
    picture = load_image(split, items[0])
    with prefix_errors(split.image(items[0]).name):
        picture = inference.crop(picture)
    layout = inference.layout(picture.sides)
    return Windows(
        picture.sides, {flipped: cut_windows(picture, layout, flipped).numpy() for flipped in flips}
    )
