"""A model, the last pictures, and what was computed of them.

`Explorer` answers: it opens pictures and makes views, features, timings and neighbors of them. Only
the thread of `Worker` may use it, so nothing is locked. One forward pass at one setting keeps the
states of all layers, so another layer, view or patch needs no further pass. Pictures and passes
are forgotten oldest first, by counted bytes.

`Worker` runs jobs one by one. Its queue is bounded, and a newer job of the same client replaces one
that waits.

Shapes: C cores of the budget, D width, L layers, M cores of the bank.
"""

import functools
import hashlib
import io
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Generic, Literal, NamedTuple, Protocol, TypeVar, runtime_checkable

import numpy as np
import torch
from jaxtyping import Float, Int64, UInt8
from torch import Tensor

from veca.analysis.demo import sample_photos
from veca.analysis.visualize import (
    Basis,
    common_basis,
    core_colors,
    core_segments,
    cosine_map,
    heat,
    pca_colors,
    regions,
    segment_colors,
    similarity_colors,
    strongest_cores,
)
from veca.backbone.config import PAPER_BUDGETS
from veca.backbone.cost import Cost
from veca.backbone.model import VECA, Features, Step, check_ffn
from veca.data.images import DecodedImage, ImageError, decode
from veca.data.transforms import Geometry, fitted, padded, resampled
from veca.runtime import VecaError
from veca.runtime.device import Precision, autocast
from veca.weights.checkpoint import NamedModel

ViewKind = Literal["colors", "cores", "core", "paths", "objects", "similarity"]
"""'core' is each core alone; the others show all patches or cores at once."""

MAX_PICTURE = 40_000_000
"""Pixels of a picture; more would take too long, and too much memory, for a page."""

MAX_INPUT = 2**21
"""Pixels that go through the model: 1024 x 2048."""

SIZES = (32, 1024)
"""Short side of what goes through the model, in pixels."""

PICTURE_BYTES = 2**28
PASS_BYTES = 2**28
"""Memory for pictures and for the states of forward passes; the newest one stays in any case."""

SHOWN_SIDE = 1280
"""Long side of the picture that the page shows."""

THUMBNAIL_SIDE = 160

REFERENCE_SIZE = 256
"""Colors of all settings share the basis of all cores at this size."""

CROP = 3
"""The crop around a patch is this part of the picture's short side."""

MAX_WAITING = 16
"""Jobs in the queue."""


class MissingError(VecaError):
    """Something that is not, or no longer, there."""


class BusyError(VecaError):
    """The queue is full."""


class SupersededError(VecaError):
    """The same client has asked for something newer."""


Key = TypeVar("Key", bound=Hashable)
Value = TypeVar("Value")
Result = TypeVar("Result")


class Recent(Generic[Key, Value]):
    """The last used values, up to some bytes; the newest one in any case."""

    def __init__(self, most_bytes: int) -> None:
        self.most_bytes = most_bytes
        self.num_bytes = 0
        self._values: OrderedDict[Key, tuple[Value, int]] = OrderedDict()

    def __len__(self) -> int:
        return len(self._values)

    def get(self, key: Key) -> Value | None:
        """A value, which is now the newest."""
        if key not in self._values:
            return None
        self._values.move_to_end(key)
        return self._values[key][0]

    def put(self, key: Key, value: Value, num_bytes: int) -> None:
        """Add a value and drop the oldest ones."""
        self.num_bytes += num_bytes - self._values.pop(key, (value, 0))[1]
        self._values[key] = (value, num_bytes)
        while self.num_bytes > self.most_bytes and len(self._values) > 1:
            self.num_bytes -= self._values.popitem(last=False)[1][1]


class Worker:
    """One thread that runs jobs in their order, from a bounded queue."""

    def __init__(self, most_waiting: int = MAX_WAITING) -> None:
        self.most_waiting = most_waiting
        self._waiting: OrderedDict[Hashable, tuple[Future[Any], Callable[[], Any]]] = OrderedDict()
        self._changed = threading.Condition()
        threading.Thread(target=self._work, name="veca-explore", daemon=True).start()

    def submit(self, job: Callable[[], Result], client: str | None = None) -> Future[Result]:
        """Queue a job; it takes the place of a job of the same client that has not started."""
        future: Future[Result] = Future()
        key: Hashable = object() if client is None else client
        with self._changed:
            older = self._waiting.get(key)
            if older is None and len(self._waiting) >= self.most_waiting:
                raise BusyError("Too many requests are waiting; try again in a moment.")
            self._waiting[key] = (future, job)
            self._changed.notify()
        if older is not None and older[0].set_running_or_notify_cancel():
            older[0].set_exception(SupersededError("A newer request has replaced this one."))
        return future

    def _work(self) -> None:
        """Run jobs until the process ends."""
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._waiting)
                _, (future, job) = self._waiting.popitem(last=False)
            if not future.set_running_or_notify_cancel():
                continue
            try:
                future.set_result(job())
            except BaseException as error:  # whoever waits gets it
                future.set_exception(error)


@dataclass(frozen=True)
class Picture:
    """An opened picture."""

    name: str
    """From its bytes, so the same file has the same name."""
    decoded: DecodedImage
    shown: bytes
    """JPEG for the page."""

    @property
    def num_bytes(self) -> int:
        """Memory it takes."""
        height, width = self.decoded.sides
        size = 3 if self.decoded.bands[0].mode == "RGB" else 4 * len(self.decoded.bands)
        return height * width * size + len(self.shown)


class Setting(NamedTuple):
    """How a picture goes through the model; checked by `Explorer.setting`."""

    size: int
    budget: int | None
    """None for a full-attention model."""
    ffn: float


class Pass(NamedTuple):
    """A forward pass of one picture."""

    steps: dict[int, Step]
    """The states before and after every layer."""
    geometry: Geometry


class Asked(NamedTuple):
    """What a view shows."""

    kind: ViewKind
    picture: str
    setting: Setting
    layer: int
    point: tuple[int, int] | None = None
    """The marked patch, as x and y in pixels of the original picture `of`."""
    of: str | None = None
    beside: str | None = None
    """Another picture that is shown at the same time, in the same colors."""


@dataclass(frozen=True)
class View:
    """One picture at one setting; arrays have a pixel for each patch."""

    grid: tuple[int, int]
    pixels: UInt8[np.ndarray, "height columns channels"]
    """RGB or RGBA; of the view 'core' the maps of all cores, one below the other."""
    labels: Int64[np.ndarray, "rows columns"] | None = None
    """The core that a patch belongs to."""
    cosine: Float[np.ndarray, "rows columns"] | None = None
    points: Float[np.ndarray, "C layers 2"] | None = None
    """Positions of the cores up to the layer, x then y, from 0 to 1."""
    colors: UInt8[np.ndarray, "C 3"] | None = None
    """Of the cores."""


class Neighbor(NamedTuple):
    """A picture of a collection."""

    path: str
    similarity: float
    thumbnail: bytes
    """JPEG; empty if the file cannot be read."""


@runtime_checkable
class NeighborSource(Protocol):
    """A collection; `explore/neighbors.py` has the one that `veca embed` writes."""

    def nearest(self, decoded: DecodedImage) -> list[Neighbor]:
        """The most similar pictures."""

    def read(self, path: str) -> bytes:
        """The file of a picture of the collection; no other file is read."""


@dataclass
class Explorer:
    """A model and the memory of a page."""

    named: NamedModel
    collection: NeighborSource | None = None
    pictures: Recent[str, Picture] = field(default_factory=lambda: Recent(PICTURE_BYTES))
    passes: Recent[tuple[str, Setting], Pass] = field(default_factory=lambda: Recent(PASS_BYTES))
    num_passes: int = 0
    """Forward passes so far, those for timings apart."""
    _bases: Recent[tuple[Hashable, ...], Basis] = field(default_factory=lambda: Recent(2**24))
    _full: VECA | None = None

    @property
    def model(self) -> VECA:
        """The model that is shown."""
        return self.named.model

    def setting(self, size: int, budget: int | None, ffn: float | None) -> Setting:
        """Defaults filled in; what the model cannot do is refused."""
        low, high = SIZES
        if not low <= size <= high:
            raise ValueError(f"size={size} is outside {low}..{high} pixels.")
        check_ffn(self.model.config, ffn)
        full = self.model.config.attention == "full"
        cores = self.model.chosen_budget(budget)
        return Setting(size, None if full else cores, 1.0 if ffn is None else ffn)

    def open(self, data: bytes) -> Picture:
        """Decode an uploaded picture."""
        name = hashlib.sha256(data).hexdigest()[:20]
        found = self.pictures.get(name)
        if found is not None:
            return found
        try:
            decoded = decode(data, MAX_PICTURE)
        except ImageError as error:
            sentence = str(error).replace("the file in memory", "This picture")
            advice = ", or pass a higher max_pixels if you trust it"  # of a caller, not of a person
            raise ImageError(sentence.replace(advice, "")) from error
        picture = Picture(name, decoded, jpeg(decoded, SHOWN_SIDE))
        self.pictures.put(name, picture, picture.num_bytes)
        return picture

    def open_sample(self, name: str) -> Picture:
        """Open a sample photograph by its name."""
        if name not in samples():
            raise MissingError(f"There is no sample {name!r}; GET /api/samples lists them.")
        return self.open(samples()[name].read_bytes())

    def open_neighbor(self, path: str) -> Picture:
        """Open a picture of the collection."""
        return self.open(self._collection().read(path))

    def picture(self, name: str) -> Picture:
        """A picture by its name."""
        found = self.pictures.get(name)
        if found is None:
            raise MissingError("This picture is no longer in memory; open it again.")
        return found

    def run(self, name: str, setting: Setting) -> Pass:
        """The forward pass of a picture, from memory if it is there."""
        found = self.passes.get((name, setting))
        if found is not None:
            return found
        geometry = self._geometry(name, setting.size)
        pixels = self._input(name, geometry)
        units = check_ffn(self.model.config, setting.ffn)
        cores = self.model.chosen_budget(setting.budget)
        layers = range(self.model.config.layers)
        with self._computing():
            steps = self.model.trace(pixels, layers, cores, units)
        self.num_passes += 1
        found = Pass(steps, geometry)
        states = [step.after.tokens for step in steps.values()] + [steps[0].before.tokens]
        num_bytes = sum(tokens.numel() * tokens.element_size() for tokens in states)
        self.passes.put((name, setting), found, num_bytes)
        return found

    def features(self, name: str, setting: Setting, layer: int) -> Features:
        """Features after a layer, normalized."""
        with self._computing():
            return self.model.read_out(self.run(name, setting).steps[layer].after)

    def view(self, asked: Asked) -> View:
        """What the page draws."""
        if asked.kind == "colors":
            return self._colors(asked)
        if asked.kind == "similarity":
            return self._similarity(asked)
        if asked.setting.budget is None:
            raise ValueError(
                f"a full-attention model has no cores, so there is no view {asked.kind!r}; use "
                "'colors' or 'similarity'."
            )
        return self._cores(asked)

    def _colors(self, asked: Asked) -> View:
        """Principal components of the patch features."""
        names = [asked.picture] if asked.beside is None else [asked.picture, asked.beside]
        key = (*sorted(names), asked.layer)
        basis = self._bases.get(key)
        if basis is None:
            whole = self.setting(REFERENCE_SIZE, None, None)
            if whole.budget is not None:
                whole = whole._replace(budget=self.model.config.cores)
            maps = [self.features(name, whole, asked.layer).patch_map[0] for name in sorted(names)]
            basis = common_basis(maps)
            self._bases.put(key, basis, 5 * 8 * len(basis.mean))
        features = self.features(asked.picture, asked.setting, asked.layer)
        return View(features.grid, pca_colors(features.patch_map[0], basis).cpu().numpy())

    def _similarity(self, asked: Asked) -> View:
        """Cosine of every patch with the marked patch or, without one, the image feature."""
        source = asked.of or asked.picture
        of = self.features(source, asked.setting, asked.layer)
        feature = of.image[0]
        if asked.point is not None:
            place = self.run(source, asked.setting).geometry.patch_of(*asked.point)
            row, column = place or (0, 0)  # 'resize' crops nothing
            feature = of.patch_map[0, :, row, column]
        features = self.features(asked.picture, asked.setting, asked.layer)
        cosine = cosine_map(features.patch_map[0], feature)
        pixels = similarity_colors(cosine.cpu()).numpy()
        return View(features.grid, pixels, cosine=cosine.cpu().numpy())

    def _cores(self, asked: Asked) -> View:
        """Views of the cores of a layer."""
        config, layer = self.model.config, asked.layer
        steps = self.run(asked.picture, asked.setting).steps
        grid, count = steps[0].before.grid, steps[0].before.budget
        starts = self.model.core_bank(1, config.cores)[1][0].tanh()
        colors = core_colors(starts.float().cpu())[:count]
        with self._computing():
            shares = self.model.patch_shares if asked.kind == "objects" else self.model.core_shares
            maps = shares(steps[layer])[0].float().cpu()
        labels = core_segments(maps) if asked.kind == "objects" else strongest_cores(maps)[1]
        if asked.kind == "objects":
            pixels = segment_colors(labels, colors)
        elif asked.kind == "cores":
            pixels = regions(maps, colors)
        elif asked.kind == "core":
            pixels = torch.cat([heat(core_map) for core_map in maps])
        else:
            pixels = torch.zeros(*grid, 4, dtype=torch.uint8)
        paths = torch.stack([steps[at].before.core_points[0] for at in range(layer + 1)])
        points = (paths.float().cpu().transpose(0, 1) + 1) / 2
        return View(
            grid, pixels.numpy(), labels.numpy(), points=points.numpy(), colors=colors.numpy()
        )

    def cost(self, name: str, setting: Setting) -> tuple[Cost, Cost | None]:
        """Cost by formula of this setting, and of full attention, if the model is not that."""
        geometry = self._geometry(name, setting.size)
        height, width = geometry.height.length, geometry.width.length
        own = self.model.cost(height, width, setting.budget, setting.ffn)
        return own, self.full.cost(height, width) if setting.budget is not None else None

    @property
    def full(self) -> VECA:
        """The same blocks with full attention, untrained: for its cost."""
        if self._full is None:
            config = replace(
                self.model.config, attention="full", budgets=PAPER_BUDGETS, ffn_shares=(1.0,),
                default_budget=None,
            )  # fmt: skip
            with torch.random.fork_rng(devices=[]):
                self._full = VECA(config).eval()
            self._full.to(self.model.final_norm.weight.device)
            self._full.precision = self.model.precision
        return self._full

    def milliseconds(self, name: str, setting: Setting, full: bool) -> float:
        """Time of one forward pass of the model, or of full attention."""
        pixels = self._input(name, self._geometry(name, setting.size))
        model, arguments = self.model, (setting.budget, setting.ffn)
        if full:
            model, arguments = self.full, (None, 1.0)
        with torch.inference_mode():
            started = time.perf_counter()
            model(pixels, *arguments).image.sum().item()  # waits for a GPU
            return 1000 * (time.perf_counter() - started)

    def neighbors(self, name: str, point: tuple[int, int] | None) -> list[Neighbor]:
        """The nearest pictures of the collection, to a picture or to the crop around a point."""
        decoded = self.picture(name).decoded
        if point is not None:
            box = crop_box(decoded.sides, point)
            decoded = DecodedImage(tuple(band.crop(box) for band in decoded.bands))
        return self._collection().nearest(decoded)

    def _collection(self) -> NeighborSource:
        """The collection, if the page has one."""
        if self.collection is None:
            raise MissingError("There is no collection; start with veca explore --in EMBEDDED.")
        return self.collection

    def _geometry(self, name: str, size: int) -> Geometry:
        """How a picture becomes patches."""
        sides = self.picture(name).decoded.sides
        geometry = fitted(sides, size, "resize", self.model.config.patch_size)
        height, width = geometry.height.length, geometry.width.length
        if height * width > MAX_INPUT:
            raise ImageError(
                f"This picture would become {width} x {height} pixels, but at most {MAX_INPUT:,} "
                "are computed here; choose a lower resolution, or crop the picture."
            )
        return geometry

    def _input(self, name: str, geometry: Geometry) -> Float[Tensor, "1 3 height width"]:
        """What goes through the model."""
        pixels = padded(resampled(self.picture(name).decoded, geometry), geometry)
        return pixels[None].to(self.model.final_norm.weight.device)

    @contextmanager
    def _computing(self) -> Iterator[None]:
        """Compute without gradients, in the precision of the model."""
        device = self.model.final_norm.weight.device
        precision: Precision = "bf16" if self.model.precision == "bf16" else "fp32"
        with torch.inference_mode(), autocast(device, precision):
            yield


@functools.cache
def samples() -> dict[str, Path]:
    """The sample photographs by their names; none where scikit-image is not installed."""
    try:
        return {photo.stem.removesuffix("_left"): photo for photo in sample_photos()}
    except ValueError:
        return {}


@functools.cache
def sample_thumbnail(name: str) -> bytes:
    """A small JPEG of a sample."""
    return jpeg(decode(samples()[name], min_side=THUMBNAIL_SIDE), THUMBNAIL_SIDE)


def jpeg(decoded: DecodedImage, side: int) -> bytes:
    """A picture as JPEG, its long side reduced to `side`."""
    buffer = io.BytesIO()
    decoded.thumbnail(min(side, max(decoded.sides))).save(buffer, "JPEG", quality=88)
    return buffer.getvalue()


def crop_box(sides: tuple[int, int], point: tuple[int, int]) -> tuple[int, int, int, int]:
    """The square around a point that neighbors of a patch are looked up with: left to bottom."""
    height, width = sides
    side = max(1, min(sides) // CROP)
    left = min(max(0, point[0] - side // 2), width - side)
    top = min(max(0, point[1] - side // 2), height - side)
    return left, top, left + side, top + side
