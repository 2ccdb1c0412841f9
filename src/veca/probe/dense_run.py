"""A dense task from a labeled set to judged heads: fit, choose, judge.

What is the same for all tasks stands here; `segmentation.py` and `depth.py` say what views, loss
and metrics are theirs.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Generic, NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

from veca.data.images import DataError
from veca.data.sets.dataset import Kind as SetKind
from veca.data.sets.dataset import LabeledDataset, Split
from veca.probe.dense import Candidate, DenseHead, Fit, Loss, fit_heads
from veca.probe.feature_cache import RunContext
from veca.probe.features import (
    CachedCrops,
    CropSource,
    CropTransform,
    DenseBatch,
    InferenceConfig,
    PatchFeatures,
    Variant,
    extract_patch_features,
    fresh_crops,
)
from veca.probe.held_out import hold_out
from veca.probe.models import FrozenModel
from veca.probe.protocols import DenseProtocol
from veca.probe.rows import Setting

HELD_OUT_SEED = 0
"""The same pictures are put aside for all seeds, as a part of the makers' own would be."""

Judged = TypeVar("Judged")


class Head(NamedTuple):
    """A head and the setting of the model that it is for."""

    setting: Setting

    head: DenseHead


class DenseTask(ABC, Generic[Judged]):
    """What a task adds."""

    outputs: int
    """Numbers that a head tells of a patch."""

    flips: tuple[bool, ...] = (False,)
    """Whether test pictures are shown as they are, mirrored, or both."""

    kb_crop: bool = False
    """Whether pictures are first cut as KITTI's are."""

    @abstractmethod
    def recipe(self, side: int, multiple: int) -> CropTransform:
        """How training views are drawn, given the short side of test pictures."""

    @abstractmethod
    def loss(self, seed: int, ctx: RunContext) -> Loss:
        """The loss of a fit."""

    @abstractmethod
    def judge(
        self, heads: Sequence[Head], split: Split, features: PatchFeatures, ctx: RunContext
    ) -> list[Judged]:
        """What each head is worth on a split."""

    @abstractmethod
    def goodness(self, judged: Judged) -> float:
        """By which heads are chosen; more is better."""


@dataclass(frozen=True, kw_only=True)
class Chosen(Generic[Judged]):
    """The head that is reported, and what it is worth."""

    candidate: Candidate

    head: DenseHead

    judged: Judged

    trained_on: int
    """Pictures that it was fitted on."""


def showing_of(
    model: FrozenModel, protocol: DenseProtocol, kb_crop: bool = False
) -> InferenceConfig:
    """How a protocol shows pictures to a model."""
    side = model.round_down_to_patch(protocol.resolution)
    return InferenceConfig(
        short_side=side,
        mode=protocol.inference,
        window_stride=protocol.window_stride(side) if protocol.inference == "slide" else 0,
        stride=model.stride,
        kb_crop=kb_crop,
    )


def training_split(data: LabeledDataset, kind: SetKind) -> Split:
    """The training pictures of a set of that kind, or an error."""
    if data.kind != kind or data.train is None:
        raise DataError(
            f"{data.name} has {data.kind} and {'no' if data.train is None else 'a'} training part, "
            f"but {kind} of training pictures are needed; use another set or another task."
        )
    return data.train


class DenseRun(Generic[Judged]):
    """One task on one set, for all settings and seeds."""

    def __init__(
        self,
        task: DenseTask[Judged],
        model: FrozenModel,
        data: LabeledDataset,
        protocol: DenseProtocol,
        ctx: RunContext,
    ) -> None:
        self._task, self._model, self._data = task, model, data
        self._protocol, self._ctx = protocol, ctx
        self._train = training_split(data, data.kind)
        self._showing = showing_of(model, protocol, task.kb_crop)

    def results(
        self, settings: Sequence[Setting], seeds: Sequence[int]
    ) -> dict[tuple[Setting, int], Chosen[Judged]]:
        """Fit, choose and judge the heads of every setting and seed."""
        fitted_on, chosen_on = self._parts()
        source = CropSource(
            self._model,
            list(dict.fromkeys(settings)),
            self._train,
            self._task.recipe(self._showing.short_side, self._model.stride),
            self._ctx,
        )
        views = self._protocol.views
        kept = None if views is None else CachedCrops(source, views)
        found: dict[tuple[Setting, int], Chosen[Judged]] = {}
        for seed in dict.fromkeys(seeds):
            size, steps = self._protocol.batch, self._protocol.steps
            batches = (
                fresh_crops(source, fitted_on, size, seed, steps)
                if kept is None
                else kept.batches(fitted_on, size, seed)
            )
            heads = self._fitted(source, batches, seed)
            for candidate, judged in self._chosen(heads, chosen_on).items():
                found[candidate.setting, seed] = Chosen(
                    candidate=candidate,
                    head=heads[candidate],
                    judged=judged,
                    trained_on=len(fitted_on),
                )
        return found

    def _parts(self) -> tuple[NDArray[np.int64], Split | None]:
        """Training pictures to fit on, and what to choose on; None where nothing is chosen."""
        every = np.arange(len(self._train))
        if self._protocol.selection == "none":
            return every, None
        if self._protocol.selection == "test-best-step":
            return every, self._data.test
        if self._data.val is not None:
            return every, self._data.val
        parts = hold_out(len(self._train), self._protocol.held_out, HELD_OUT_SEED)
        aside = self._train.subset(parts.held_out.numpy(), f"held out of {self._train.name}")
        return parts.kept.numpy(), aside

    def _fitted(
        self, source: CropSource, batches: Iterator[DenseBatch], seed: int
    ) -> Mapping[Candidate, DenseHead]:
        """The heads of a seed."""
        fit = Fit(
            self._protocol,
            source.settings,
            self._task.outputs,
            (self._model.patch_width, self._model.image_width),
            seed,
        )
        self._ctx.log(
            f"seed {seed}: heads to fit: {len(source.settings) * len(self._protocol.rates)} "
            f"({self._protocol.name}, {self._protocol.steps:,} steps)."
        )
        loss = self._task.loss(seed, self._ctx)
        return fit_heads(fit, batches, loss, self._ctx.ranks, self._ctx.show_progress)

    def _chosen(
        self, heads: Mapping[Candidate, DenseHead], chosen_on: Split | None
    ) -> dict[Candidate, Judged]:
        """The head of each setting that is reported, judged on the test part."""
        if chosen_on is None:
            last = {one: head for one, head in heads.items() if one.step == self._protocol.steps}
            return self._judged(last, self._data.test)
        judged = self._judged(heads, chosen_on)
        best = {
            setting: max(
                (one for one in heads if one.setting == setting),
                key=lambda one: self._task.goodness(judged[one]),
            )
            for setting in dict.fromkeys(one.setting for one in heads)
        }
        if chosen_on is self._data.test:
            return {one: judged[one] for one in best.values()}
        return self._judged({one: heads[one] for one in best.values()}, self._data.test)

    def _judged(
        self, heads: Mapping[Candidate, DenseHead], split: Split
    ) -> dict[Candidate, Judged]:
        """What heads are worth on a split."""
        kinds = [
            Variant(setting, flipped)
            for setting in dict.fromkeys(one.setting for one in heads)
            for flipped in self._task.flips
        ]
        features = extract_patch_features(self._model, kinds, split, self._showing, self._ctx)
        judged = self._task.judge(
            [Head(one.setting, head) for one, head in heads.items()], split, features, self._ctx
        )
        return dict(zip(heads, judged, strict=True))
