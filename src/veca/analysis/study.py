"""What the cores of a model do on a set of images, in numbers: `veca analyze`.

Each image is seen once: all layers at all budgets, the same image shifted, its cores in other
subsets; and for the first images of the set other resolutions, corruptions and attacks. Means are
kept, and of each image only what a comparison between images needs (features, and in four layers
core states and patches in half precision), so memory is bounded by the number of images.

`MEASURES` names all measures; docs/guides/figures.md says what each one is.
"""

import copy
import math
import os
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from jaxtyping import Float, UInt8
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional as F

from veca.analysis.measures import (
    View,
    agreement,
    best_overlap,
    effective_rank,
    knn_hits,
    map_area,
    map_overlap,
    map_roundness,
    matched_miou,
    objects_of,
    pair_cosine,
    path_lengths,
    rank_correlation,
)
from veca.analysis.perturb import ATTACKS, CORRUPTIONS, SHIFTS, STRENGTHS, attacked, corrupted
from veca.analysis.visualize import cluster_patches, core_segments
from veca.backbone.model import VECA, Features, LayerMaps
from veca.data.images import ImageError, Source, decode
from veca.data.sets.dataset import IGNORE_INDEX
from veca.data.sets.segmentation import UNKNOWN, plain_label_map, read_mask
from veca.data.transforms import IMAGENET, Geometry, fitted, resampled
from veca.runtime.device import seed_for

MEASURES = {
    "area": "share of the image that a core reads",
    "roundness": "narrow over wide extent of what a core reads",
    "object_iou": "best IoU of a core's patches with an object",
    "core_miou": "segmentation by clustered cores, mIoU in %",
    "patch_miou": "segmentation by clustered patches, mIoU in %",
    "effective_rank": "effective rank of core states over their number",
    "pair_cosine": "cosine between two cores of an image",
    "map_overlap": "overlap of what two cores read",
    "kept": "cores matched to themselves in a changed image",
    "displacement": "distance of matched points, in image sides",
    "correlation": "correlation of matched maps",
    "state_cosine": "cosine of matched states",
    "path": "way of a core over the layers, in image sides",
    "order": "rank correlation of area with the index of the core",
    "image_cosine": "image feature beside that of the unchanged image",
    "patch_cosine": "patches beside those of the unchanged image",
    "knn": "20-NN accuracy among the other images, in %",
    "jump": "distance of a core's point to that of the unchanged image",
}
"""All measures, in the order of reports, each with its name in a table."""

MIN_OBJECT = 0.01
"""Objects are counted from this share of the image on."""

EPSILONS = (1, 4)
"""Of attacks, in steps of 8-bit colors."""


@dataclass(frozen=True, kw_only=True)
class StudyConfig:
    """What is measured."""

    budgets: tuple[int, ...] = (8, 16, 32, 64)
    """Numbers of cores; those that a model does not have are left out."""

    size: int = 256
    """Side of the central square that is seen, in pixels."""

    resolutions: tuple[int, ...] = (256, 512, 768, 1024)
    """Sides over which features drift, the first one being the reference."""

    robust: int = 32
    """Images that are corrupted; half of them are attacked."""

    drift: int = 8
    """Images that are seen at all resolutions."""

    seed: int = 0


class Picture(NamedTuple):
    """One image of a study."""

    pixels: UInt8[Tensor, "3 size size"]
    geometry: Geometry
    mask: NDArray[np.uint8] | None
    """Classes of the original pixels: 0 is background, 255 is ignored."""
    label: str | None
    """For 20-NN; None if unknown."""
    larger: Callable[[int], UInt8[Tensor, "3 side side"]]
    """The same square at another size."""


@dataclass(frozen=True)
class StudyRow:
    """The mean of one measure over images (and cores, patches, objects)."""

    measure: str
    mean: float
    std: float
    count: int
    """Values in the mean."""
    budget: int | None = None
    layer: int | None = None
    setting: str = ""
    """What was changed, such as 'flip', 'noise 3', '8 to 16', 'last cores', '512 px'."""


class _Means:
    """Sums of measures."""

    def __init__(self) -> None:
        self._sums: dict[tuple[str, int | None, int | None, str], list[float]] = {}

    def add(
        self,
        measure: str,
        values: float | Sequence[float] | Tensor,
        budget: int | None = None,
        layer: int | None = None,
        setting: str = "",
    ) -> None:
        """Count one value or several."""
        array = np.atleast_1d(np.asarray(values, dtype=np.float64))
        sums = self._sums.setdefault((measure, budget, layer, setting), [0.0, 0.0, 0.0])
        for at, value in enumerate((array.size, array.sum(), np.square(array).sum())):
            sums[at] += float(value)

    def rows(self) -> list[StudyRow]:
        """All means, by measure."""
        found = []
        for (measure, budget, layer, setting), (count, total, squares) in self._sums.items():
            if count:
                mean = total / count
                std = math.sqrt(max(squares / count - mean**2, 0.0))
                found.append(StudyRow(measure, mean, std, int(count), budget, layer, setting))
        order = list(MEASURES)
        return sorted(found, key=lambda row: order.index(row.measure))


def study(model: VECA, pictures: Iterable[Picture], config: StudyConfig) -> list[StudyRow]:
    """Measure a model on images, which are read once and in order."""
    if model.config.attention == "full":
        work = _Study(model, config)
    else:
        own = tuple(budget for budget in config.budgets if budget <= model.config.cores)
        work = _CoreStudy(model, replace(config, budgets=own or (model.config.cores,)))
    with torch.no_grad():
        for number, picture in enumerate(pictures):
            work.see(number, picture)
        work.finish()
    return work.means.rows()


class _Study:
    """What any model can be asked: features of changed images."""

    def __init__(self, model: VECA, config: StudyConfig) -> None:
        self.model, self.config, self.means = model, config, _Means()
        self.budget: int | None = None
        """The largest of the study, at which images are changed."""
        self.labels: list[str | None] = []
        self.features: dict[tuple[str, int | None], list[Tensor]] = defaultdict(list)
        """Image features by setting and budget; '' is the unchanged image."""

    def see(self, number: int, picture: Picture) -> None:
        """Measure one image."""
        self.labels.append(picture.label)
        clean = self.encode(picture.pixels)
        self.features["", self.budget].append(clean.image[0].float().cpu())
        for name, shift in SHIFTS.items():
            changed = self.encode(shift.pixels(picture.pixels, self.seed(number)))
            self.compare(clean, changed, name, shift.maps)
        if number < self.config.drift:
            self._see_resolutions(picture)
        if number < self.config.robust:
            self._see_corruptions(number, picture, clean)
        if number < self.config.robust // 2:
            self._see_attacks(number, picture, clean)

    def finish(self) -> None:
        """What needs all images."""
        if None in self.labels or len(set(self.labels)) < 2:
            return
        kinds = {label: kind for kind, label in enumerate(sorted(map(str, set(self.labels))))}
        labels = torch.tensor([kinds[str(label)] for label in self.labels])
        for (setting, budget), found in self.features.items():
            bank = self.features["", self.budget if setting else budget]
            if setting.endswith("cores"):  # subsets are compared among themselves
                bank = found
            hits = knn_hits(torch.stack(bank), labels, torch.stack(found), torch.arange(len(found)))
            self.means.add("knn", 100 * hits.double(), budget, setting=setting)

    def encode(
        self, pixels: UInt8[Tensor, "3 height width"], budget: int | None = None
    ) -> Features:
        """Features of one image."""
        return self.model(self.normalized(pixels), budget or self.budget)

    def normalized(self, pixels: Tensor) -> Float[Tensor, "1 3 height width"]:
        """The input of the model."""
        return IMAGENET.normalize(pixels[None].to(self.model.final_norm.weight.device))

    def seed(self, number: int) -> int:
        """Of the noise in an image."""
        return seed_for(self.config.seed, number, "analyze")

    def compare(
        self,
        clean: Features,
        changed: Features,
        setting: str,
        mapped: Callable[[Tensor], Tensor] = lambda maps: maps,
        budget: int | None = None,
    ) -> None:
        """Cosines with the features of the unchanged image, at the same places."""
        budget = budget or self.budget
        image = F.cosine_similarity(clean.image, changed.image)
        self.means.add("image_cosine", float(image), budget, setting=setting)
        unit = F.normalize(clean.patch_map[0].float(), dim=0).cpu()
        other = F.normalize(changed.patch_map[0].float(), dim=0).cpu()
        other = F.adaptive_avg_pool2d(other, clean.grid)
        patches = F.cosine_similarity(mapped(unit), other, dim=0)
        self.means.add("patch_cosine", float(patches.mean()), budget, setting=setting)

    def _see_resolutions(self, picture: Picture) -> None:
        """Drift of features from the first resolution to the others."""
        first, *others = self.config.resolutions
        clean = self.encode(picture.larger(first))
        for side in others:
            self.compare(clean, self.encode(picture.larger(side)), f"{side} px")

    def _see_corruptions(self, number: int, picture: Picture, clean: Features) -> None:
        """All corruptions at all strengths; 'clean' is strength 0."""
        self._see_changed(clean, clean, "clean")
        for kind in CORRUPTIONS:
            for strength in range(1, STRENGTHS + 1):
                pixels = corrupted(picture.pixels, kind, strength, self.seed(number))
                self._see_changed(clean, self.encode(pixels), f"{kind} {strength}")

    def _see_attacks(self, number: int, picture: Picture, clean: Features) -> None:
        """Attacks on the image feature."""
        for name, steps in ATTACKS.items():
            for epsilon in EPSILONS:
                with torch.enable_grad():
                    colors = attacked(
                        self.model, picture.pixels[None], self.budget, epsilon=epsilon / 255,
                        steps=steps, seed=self.seed(number) % 2**31,
                    )  # fmt: skip
                changed = self.model(IMAGENET.normalize(colors.detach()), self.budget)
                self._see_changed(clean, changed, f"{name} {epsilon}/255")

    def _see_changed(self, clean: Features, changed: Features, setting: str) -> None:
        """Features, and where cores went, in a corrupted or attacked image."""
        self.features[setting, self.budget].append(changed.image[0].float().cpu())
        self.compare(clean, changed, setting)
        if self.budget is not None:
            moved = (clean.core_points - changed.core_points).norm(dim=-1) / 2
            self.means.add("jump", moved[0].cpu(), self.budget, setting=setting)


class _CoreStudy(_Study):
    """What a model with cores can be asked besides."""

    def __init__(self, model: VECA, config: StudyConfig) -> None:
        super().__init__(model, config)
        self.budget = config.budgets[-1]
        self.layers = tuple(range(model.config.layers))
        quarters = [round(part * (model.config.layers - 1) / 4) for part in range(1, 5)]
        self.kept_layers = sorted(set(quarters))
        self.views = sorted({round(2 / 3 * self.layers[-1]), self.layers[-1]})
        """Layers in which cores are compared between images."""
        self.areas: list[Tensor] = []
        self.targets: list[NDArray[np.uint8]] = []
        self.kept: dict[tuple[str, int], list[Tensor]] = defaultdict(list)
        """Core states, segments and patches of images with masks, by layer."""
        self.subsets = self._subset_models()

    def see(self, number: int, picture: Picture) -> None:
        """Measure one image."""
        super().see(number, picture)
        seen = {
            budget: self.model.layer_maps(self.normalized(picture.pixels), self.layers, budget)
            for budget in self.config.budgets
        }
        for budget, maps in seen.items():
            self._see_layers(budget, maps)
            if budget != self.budget:
                self.features["", budget].append(maps[-1].features.image[0].float().cpu())
            if picture.mask is not None:
                self._see_objects(budget, maps, picture)
        last = seen[self.config.budgets[-1]]
        if picture.mask is not None:
            self._keep(last, picture)
        self._see_agreement(number, picture, seen)
        self._see_subsets(last[-1].features, picture)

    def finish(self) -> None:
        """What needs all images."""
        super().finish()
        if self.areas:
            self.means.add("order", rank_correlation(torch.stack(self.areas).mean(0)), self.budget)
        classes = sorted({int(kind) for target in self.targets for kind in np.unique(target)})
        classes = [kind for kind in classes if kind != IGNORE_INDEX]
        if len(classes) < 2:
            return
        for layer in self.kept_layers:
            patches = [item.float() for item in self.kept["patches", layer]]
            self._segment("patch_miou", layer, cluster_patches(patches, len(classes)), classes)
            states = [item.float().mT[:, :, None] for item in self.kept["states", layer]]
            kinds = cluster_patches(states, len(classes))  # a cluster for each core
            segments = self.kept["segments", layer]
            labels = [kind[:, 0][part.long()] for kind, part in zip(kinds, segments, strict=True)]
            self._segment("core_miou", layer, labels, classes)

    def _see_layers(self, budget: int, maps: Sequence[LayerMaps]) -> None:
        """Extent, redundancy and paths."""
        for layer, found in zip(self.layers, maps, strict=True):
            core_maps, states = (
                found.core_maps[0].float().cpu(),
                found.features.cores[0].float().cpu(),
            )
            area = map_area(core_maps)
            self.means.add("area", area, budget, layer)
            self.means.add("roundness", map_roundness(core_maps), budget, layer)
            self.means.add("effective_rank", effective_rank(states), budget, layer)
            self.means.add("pair_cosine", pair_cosine(states), budget, layer)
            self.means.add("map_overlap", map_overlap(core_maps), budget, layer)
            if budget == self.budget and layer == self.views[0]:
                self.areas.append(area)
        steps = torch.stack([found.features.core_points[0].float().cpu() for found in maps])
        self.means.add("path", path_lengths(steps), budget)

    def _see_objects(self, budget: int, maps: Sequence[LayerMaps], picture: Picture) -> None:
        """Overlap of the patches that read one core most with the objects of the mask."""
        if picture.mask is None:
            return
        found = objects_of(picture.mask, IGNORE_INDEX, MIN_OBJECT)
        for layer, item in zip(self.layers, maps, strict=True):
            labels = core_segments(item.patch_maps[0].float().cpu())
            segments = picture.geometry.to_image(labels, fill=-1).numpy()
            counted = (segments >= 0) & (picture.mask != IGNORE_INDEX)
            self.means.add("object_iou", best_overlap(segments, found, counted), budget, layer)

    def _keep(self, maps: Sequence[LayerMaps], picture: Picture) -> None:
        """Keep what segmentation over the whole set needs."""
        self.targets.append(patch_classes(picture))
        for layer in self.kept_layers:
            found = maps[layer]
            self.kept["patches", layer].append(found.features.patch_map[0].half().cpu())
            self.kept["states", layer].append(found.features.cores[0].half().cpu())
            segments = core_segments(found.patch_maps[0].float().cpu())
            self.kept["segments", layer].append(segments.to(torch.uint8))

    def _segment(
        self, measure: str, layer: int, labels: Sequence[Tensor], classes: Sequence[int]
    ) -> None:
        """Match clusters with classes."""
        confusion = torch.zeros(len(classes), len(classes), dtype=torch.int64)
        for label, target in zip(labels, self.targets, strict=True):
            counted = torch.from_numpy(target != IGNORE_INDEX)
            kinds = torch.from_numpy(np.searchsorted(classes, target))[counted]
            pairs = label[counted] * len(classes) + kinds
            confusion += torch.bincount(pairs, minlength=len(classes) ** 2).view_as(confusion)
        self.means.add(measure, matched_miou(confusion), self.budget, layer)

    def _see_agreement(
        self, number: int, picture: Picture, seen: dict[int, list[LayerMaps]]
    ) -> None:
        """The same cores in a shifted image, and at the next budget."""
        for name, shift in SHIFTS.items():
            pixels = shift.pixels(picture.pixels, self.seed(number))
            changed = self.model.layer_maps(self.normalized(pixels), self.views, self.budget)
            for layer, found in zip(self.views, changed, strict=True):
                clean = _view(seen[self.config.budgets[-1]][layer])
                moved = View(shift.maps(clean.maps), shift.points(clean.points), clean.states)
                self._agree(moved, _view(found), self.budget, layer, name)
        for fewer, more in zip(self.config.budgets, self.config.budgets[1:], strict=False):
            for layer in self.views:
                pair = _view(seen[fewer][layer]), _view(seen[more][layer])
                self._agree(*pair, fewer, layer, f"{fewer} to {more}")

    def _agree(self, one: View, other: View, budget: int | None, layer: int, setting: str) -> None:
        """Count an agreement."""
        found = agreement(one, other)
        self.means.add("kept", found.kept, budget, layer, setting)
        self.means.add("displacement", found.displacement, budget, layer, setting)
        self.means.add("correlation", found.correlation, budget, layer, setting)
        self.means.add("state_cosine", found.cosine, budget, layer, setting)

    def _subset_models(self) -> dict[tuple[int, str], VECA]:
        """The model with other cores first: by size and by the name of the subset."""
        most, found = self.config.budgets[-1], {}
        order = torch.randperm(most - 1, generator=torch.Generator().manual_seed(self.config.seed))
        for size in self.config.budgets[:-1]:
            # The first core is in every subset, since it is the image feature.
            subsets = {"random cores": 1 + order[: size - 1], "last cores": torch.arange(most)}
            subsets["last cores"] = subsets["last cores"][most - size + 1 :]
            for name, rest in subsets.items():
                found[size, name] = reordered(self.model, [0, *rest.tolist()])
        return found

    def _see_subsets(self, clean: Features, picture: Picture) -> None:
        """Other cores of equal number, beside the first ones."""
        pixels = self.normalized(picture.pixels)
        models = {(size, "first cores"): self.model for size in self.config.budgets[:-1]}
        for (size, name), model in {**models, **self.subsets}.items():
            found = model(pixels, size)
            self.features[name, size].append(found.image[0].float().cpu())
            self.compare(clean, found, name, budget=size)


@torch.no_grad()
def reordered(model: VECA, first: Sequence[int]) -> VECA:
    """A copy of a model whose bank begins with these cores."""
    found = copy.deepcopy(model)
    rest = [core for core in range(model.config.cores) if core not in set(first)]
    order = torch.tensor([*first, *rest])
    for chunks in (found.core_bank.tokens, found.core_bank.points):
        rows = torch.cat(list(chunks))[order.to(chunks[0].device)]
        for chunk, part in zip(chunks, rows.split([len(chunk) for chunk in chunks]), strict=True):
            chunk.copy_(part)
    return found


def patch_classes(picture: Picture) -> NDArray[np.uint8]:
    """The most frequent class of the pixels of each patch, ignored ones apart."""
    geometry, mask = picture.geometry, picture.mask
    rows, columns = geometry.grid
    numbers = torch.arange(rows * columns).view(rows, columns)
    patches = geometry.to_image(numbers, fill=-1).numpy()
    counted = (patches >= 0) & (mask != IGNORE_INDEX)
    pairs = patches[counted] * 256 + np.asarray(mask)[counted]
    counts = np.bincount(pairs, minlength=rows * columns * 256).reshape(-1, 256)
    found = np.where(counts.any(axis=1), counts.argmax(axis=1), IGNORE_INDEX)
    return found.reshape(rows, columns).astype(np.uint8)


def read_picture(
    source: Source, config: StudyConfig, patch_size: int, mask: Path | None, label: str | None
) -> Picture:
    """Read an image and its mask; the label of an image with a mask is its most frequent class."""
    decoded, classes = decode(source), None

    def square(side: int) -> Tensor:
        pixels = resampled(decoded, fitted(decoded.sides, side, "crop", patch_size))
        return (255 * pixels).round().byte() if pixels.is_floating_point() else pixels

    if mask is not None:
        classes = read_mask(os.fspath(mask), plain_label_map(UNKNOWN))
        if classes.shape != decoded.sides:
            raise ImageError(
                f"{mask} has {classes.shape[1]} x {classes.shape[0]} pixels, but its image "
                f"{decoded.sides[1]} x {decoded.sides[0]}; give masks of these images."
            )
        counted = classes[(classes != 0) & (classes != IGNORE_INDEX)]
        label = str(np.bincount(counted).argmax()) if counted.size else "0"
    geometry = fitted(decoded.sides, config.size, "crop", patch_size)
    return Picture(square(config.size), geometry, classes, label, square)


def _view(found: LayerMaps) -> View:
    """The cores of the only image."""
    features = found.features
    maps, points, states = found.core_maps[0], features.core_points[0], features.cores[0]
    return View(maps.float().cpu(), points.float().cpu(), states.float().cpu())
