"""Features of whole pictures as a dense task sees them at test time, kept on the disk.

They depend on no head and no target, so all seeds, protocols and tasks with the same way of showing
share them. Each picture goes through the model alone, with all of its windows, since pictures have
different sizes.
"""

from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import asdict, dataclass
from functools import partial
from typing import NamedTuple

import torch
from jaxtyping import UInt8
from torch import Tensor

from veca.data.images import DecodedImage
from veca.data.sets.dataset import DepthRange, Split
from veca.probe.dense_reading import load_picture, naming, read_all
from veca.probe.feature_cache import (
    ArrayStore,
    Content,
    Missing,
    StoreError,
    fill_stores,
    model_facts,
    picture_facts,
)
from veca.probe.features import Place, settings_at_once
from veca.probe.kept_views import halved
from veca.probe.models import Frozen, FrozenModel
from veca.probe.protocols import Inference
from veca.probe.rows import Setting
from veca.probe.sliding_window import Sides, WindowGrid, cut_windows, slide, whole_image
from veca.probe.transforms import crop_image, kitti_benchmark_crop

FORMAT = 1
"""Rises when the same facts would give other features."""

PATCH_BLOCK = 64
"""Pictures of a block of patch maps, unless these are large."""

PATCH_BLOCK_BYTES = 2**24
"""Bytes that a block of patch maps has at most, unless one map has more."""

WINDOWS_AT_ONCE = 8
"""Windows of a picture that go through the model together."""


@dataclass(frozen=True, kw_only=True)
class Showing:
    """How pictures are shown to a model."""

    short: int
    """Pixels of the short side, a multiple of the model's stride."""

    inference: Inference = "whole"

    stride: int = 0
    """Pixels from one window to the next; of no effect for whole pictures."""

    multiple: int
    """The model's stride."""

    kb_crop: bool = False
    """Whether pictures are first cut as KITTI's are."""

    def layout(self, sides: Sides) -> WindowGrid:
        """Where the windows of a picture lie, given its sides after the cut."""
        if self.inference == "slide":
            return slide(sides, self.short, self.short, self.stride)
        return whole_image(sides, self.short, self.multiple)

    def picture(self, picture: DecodedImage) -> DecodedImage:
        """The picture, cut."""
        if not self.kb_crop:
            return picture
        return crop_image(picture, kitti_benchmark_crop(picture.sides, DepthRange(kb_crop=True)))


class Kind(NamedTuple):
    """One of the features of a picture."""

    setting: Setting

    flipped: bool = False
    """Whether they are those of its mirror image."""


def observe_shown(
    model: FrozenModel, picture: DecodedImage, showing: Showing, kind: Kind
) -> tuple[Frozen, WindowGrid]:
    """The features of one picture, where nothing is kept."""
    picture = showing.picture(picture)
    layout = showing.layout(picture.sides)
    return _observed(model, cut_windows(picture, layout, kind.flipped), kind.setting), layout


class ShownFeatures:
    """The features of the pictures of a split."""

    def __init__(
        self,
        model: FrozenModel,
        kinds: Sequence[Kind],
        split: Split,
        showing: Showing,
        place: Place,
    ) -> None:
        """Compute what is not there yet."""
        self._model, self._split, self._showing, self._place = model, split, showing, place
        self._kinds = list(dict.fromkeys(kinds))
        facts = {
            "format": FORMAT,
            "kept": "dense features of whole pictures",
            "model": model_facts(model),
            "pictures": picture_facts(split),
            "showing": asdict(showing),
        }
        map_bytes = 2 * model.patch_width * (showing.short // model.stride) ** 2
        block = max(1, min(PATCH_BLOCK, PATCH_BLOCK_BYTES // map_bytes))
        self._stores = {
            kind: ArrayStore(
                place.folder,
                {**facts, "setting": kind.setting._asdict(), "flipped": kind.flipped},
                len(split),
                block,
                notes={"model": model.name, "split": split.name},
            )
            for kind in self._kinds
        }
        stores = list(self._stores.values())
        fill_stores(stores, self._parts, place.workers, place.tell, shown=place.shown)

    def __call__(self, index: int, kind: Kind) -> tuple[Frozen, WindowGrid]:
        """The features of a picture, on the workers' device, and where its windows lie."""
        item = self._stores[kind].item(index)
        height, width = item["sides"].tolist()
        device = self._place.workers.device
        observed = Frozen(item["image"].to(device), item["patches"].to(device).float())
        return observed, self._showing.layout((height, width))

    def _parts(self, missing: Sequence[Missing]) -> Iterator[tuple[range, dict[int, Content]]]:
        """The features of missing blocks, picture by picture."""
        turns = [(wanted, item) for wanted in missing for item in wanted.items]
        flips = tuple({kind.flipped: None for kind in self._kinds})
        make = partial(_windows, self._split, self._showing, flips)
        pictures = read_all(make, [item for _, item in turns], self._place.loaders)
        settings = list(dict.fromkeys(kind.setting for kind in self._kinds))
        at_once = settings_at_once(self._model, len(settings), self._place.loaders)
        with at_once as several, closing(pictures):
            for (wanted, item), picture in zip(turns, pictures, strict=True):
                work = partial(self._contents, wanted.stores, item, picture)
                contents = several.each(settings, work)
                yield range(item, item + 1), {k: v for found in contents for k, v in found.items()}

    def _contents(
        self, rows: Sequence[int], item: int, picture: "_Windows", setting: Setting
    ) -> dict[int, Content]:
        """What the stores of one setting keep of a picture."""
        mine = [row for row in rows if self._kinds[row].setting == setting]
        return {row: self._content(item, self._kinds[row], picture) for row in mine}

    def _content(self, item: int, kind: Kind, picture: "_Windows") -> Content:
        """What one store keeps of a picture."""
        images = picture.images[kind.flipped].to(self._place.workers.device)
        found = _observed(self._model, images, kind.setting)
        if not (found.image.isfinite().all() and found.patches.isfinite().all()):
            raise StoreError(
                f"{self._model.name} gives numbers that are not finite for "
                f"{self._split.image(item).name}; take this picture out of the set, or use "
                "another model."
            )
        return {
            "patches": halved(found.patches)[None],
            "image": found.image.cpu()[None],
            "sides": torch.tensor([picture.sides]),
        }


class _Windows(NamedTuple):
    """A picture as it is shown."""

    sides: Sides
    """Of the picture after its cut."""

    images: dict[bool, UInt8[Tensor, "G 3 h w"]]
    """Its windows as they are, and mirrored, where that is wanted."""


def _windows(split: Split, showing: Showing, flips: Sequence[bool], index: int) -> _Windows:
    """The windows of a picture of a split."""
    whole_picture = load_picture(split, index)
    with naming(split.image(index).name):
        picture = showing.picture(whole_picture)
    layout = showing.layout(picture.sides)
    return _Windows(
        picture.sides, {flipped: cut_windows(picture, layout, flipped) for flipped in flips}
    )


def _observed(model: FrozenModel, images: UInt8[Tensor, "G 3 h w"], setting: Setting) -> Frozen:
    """What a model says of the windows of a picture."""
    lots = [model.observe(lot, setting) for lot in images.split(WINDOWS_AT_ONCE)]
    return Frozen(torch.cat([lot.image for lot in lots]), torch.cat([lot.patches for lot in lots]))
