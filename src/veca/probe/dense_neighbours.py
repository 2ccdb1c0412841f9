"""Dense kNN: each patch is labelled by the nearest labelled patches; nothing is fitted."""

from collections.abc import Sequence
from dataclasses import asdict

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from veca.data.labelled import LabelledSet, Split
from veca.probe.dense_config import DenseKnnProtocol
from veca.probe.dense_heads import Observed
from veca.probe.dense_reading import part_of
from veca.probe.dense_run import training_split
from veca.probe.features import Place
from veca.probe.models import ProbeModel
from veca.probe.patch_bank import PatchBank, Wanted, build_bank, unit_patches, votes
from veca.probe.segmentation import (
    JudgedClasses,
    SegmentationResult,
    check_size,
    class_target,
    num_classes,
)
from veca.probe.segmentation_metrics import MaskObjects, confusion, segmentation_metrics
from veca.probe.setting import Setting
from veca.probe.shown_features import Kind, Showing, ShownFeatures
from veca.probe.windows import strongest
from veca.runtime.randomness import step_seed


def run_dense_knn(  # noqa: PLR0913, PLR0917 - the door of a task
    model: ProbeModel,
    settings: Sequence[Setting],
    data: LabelledSet,
    protocol: DenseKnnProtocol,
    seeds: Sequence[int],
    place: Place,
) -> dict[tuple[Setting, int], SegmentationResult]:
    """Label the patches of test pictures by those of training pictures, for each setting and seed.

    The seed draws the bank, where there are more patches than it holds.
    """
    train = training_split(data, "masks")
    num_classes(data)
    showing = Showing(short=model.fitted_side(protocol.resolution), multiple=model.stride)
    kinds = [Kind(setting) for setting in dict.fromkeys(settings)]
    test = ShownFeatures(model, kinds, data.test, showing, place)
    found: dict[tuple[Setting, int], SegmentationResult] = {}
    for seed in dict.fromkeys(seeds):
        part = _drawn_pictures(train, protocol, seed)
        features = ShownFeatures(model, kinds, part, showing, place)
        for kind in kinds:
            wanted = Wanted(len(data.classes), protocol.bank, seed)
            bank = build_bank(part, features, kind, wanted, place)
            place.tell(
                f"{kind.setting.label}, seed {seed}: {len(bank.features):,} labelled patches vote."
            )
            judged = _judged(bank, protocol, data, (test, kind), place)
            result = _result(judged, bank, data, protocol, len(part))
            result.facts["showing"] = asdict(showing)
            found[kind.setting, seed] = result
    return found


def voted_maps(
    observed: Observed, bank: PatchBank, neighbours: tuple[int, ...], temperature: float
) -> dict[int, Float[Tensor, "1 K rows columns"]]:
    """Shares of the classes in each patch of a whole picture, for each count of neighbours."""
    grid = observed.patches.shape[2:]
    found = votes(unit_patches(observed), bank, neighbours, temperature)
    return {count: shares.T.unflatten(1, grid)[None] for count, shares in found.items()}


def _drawn_pictures(train: Split, protocol: DenseKnnProtocol, seed: int) -> Split:
    """The training pictures that patches are taken from."""
    if len(train) <= protocol.pictures:
        return train
    generator = torch.Generator().manual_seed(step_seed(seed, 0, "patch bank pictures"))
    rows = torch.randperm(len(train), generator=generator)[: protocol.pictures].sort().values
    return part_of(train, rows.numpy().astype(np.int64), f"{train.name}, drawn by seed {seed}")


def _judged(
    bank: PatchBank,
    protocol: DenseKnnProtocol,
    data: LabelledSet,
    features: tuple[ShownFeatures, Kind],
    place: Place,
) -> dict[int, JudgedClasses]:
    """Counts of pixels for each count of neighbours."""
    shown, kind = features
    classes, split = len(data.classes), data.test
    judged = {count: JudgedClasses(len(split), classes) for count in protocol.neighbours}
    for index in range(place.workers.rank, len(split), place.workers.count):
        labels = class_target(split, index, place)
        observed, layout = shown(index, kind)
        check_size(split, index, labels, layout.original)
        maps = voted_maps(observed, bank, protocol.neighbours, protocol.temperature)
        objects = MaskObjects(labels)
        for count, counts in judged.items():
            found = strongest(maps[count], layout)
            counts.add(index, confusion(labels, found, classes).cpu(), objects.told(found))
    return {count: counts.over(place) for count, counts in judged.items()}


def _result(
    judged: dict[int, JudgedClasses],
    bank: PatchBank,
    data: LabelledSet,
    protocol: DenseKnnProtocol,
    trained_on: int,
) -> SegmentationResult:
    """The outcome for one setting and seed: the first count of neighbours leads."""
    first, *others = protocol.neighbours
    metrics = judged[first].metrics(data)
    for count in others:
        more = segmentation_metrics(judged[count].confusion, data.classes, data.scored)
        metrics |= {f"{name}_k{count}": more[name] for name in ("miou", "macc", "aacc")}
    return SegmentationResult(
        metrics=metrics,
        tensors={"features": bank.features.half().cpu(), "shares": bank.shares.half().cpu()},
        facts={"neighbours": first, "temperature": protocol.temperature},
        counts={"train": trained_on, "test": len(data.test), "patches": len(bank.features)},
        chosen={},
        confusion=judged[first].confusion,
        intersections=judged[first].intersections,
        unions=judged[first].unions,
        objects=judged[first].objects,
    )
