"""What a protocol of a dense probe says: views, head, fit, and how test pictures are shown."""

from dataclasses import dataclass, field
from typing import Literal

Schedule = Literal["poly", "warmup-poly", "warmup-cosine", "one-cycle"]
"""See `dense_schedules.py`."""

Selection = Literal["none", "held-out", "test-best-step"]
"""What is chosen, and on what. 'none': nothing, the head of the last step is reported. 'held-out':
the rate, on the makers' own part for that or on pictures put aside from training, which the head
then never sees. 'test-best-step': the step, on the very pictures that are reported, a mild optimism
that the paper's numbers have."""

Inference = Literal["whole", "slide"]
"""Whether a test picture is shown whole or through windows (`windows.py`)."""


@dataclass(frozen=True, kw_only=True)
class SegmentationAugment:
    """How training views of a picture and its mask are drawn."""

    scales: tuple[float, float] = (0.5, 2.0)
    """Short side of the picture, before the cut, in sides of the view."""

    category_share: float = 0.75
    """Greatest share of one class in a view, of the pixels that count; else it is drawn again."""

    tries: int = 10
    """Draws of a place for that; the last one is taken in any case."""

    flip: float = 0.5
    """Share of the views that are mirrored."""

    distorted: float = 0.5
    """Share of the views that each change of colours below is applied to."""

    brightness: float = 32.0
    """Most that is added or taken away, of 255."""

    contrast: tuple[float, float] = (0.5, 1.5)
    """Factors of all colours; before or after the next two by chance."""

    saturation: tuple[float, float] = (0.5, 1.5)
    """Factors of the saturation."""

    hue: float = 0.1
    """Most that hues turn either way, in turns. MMSegmentation's 18 of 180 steps, of which OpenCV
    has two degrees each, are 0.1."""


@dataclass(frozen=True, kw_only=True)
class DepthAugment:
    """How training views of a picture and its depth are drawn."""

    crop: tuple[float, float] = (1.0, 1.0)
    """Height and width of a view in short sides of the picture, brought to the nearest patches."""

    rotation: float = 2.5
    """Most degrees either way, around the middle."""

    rotated: float = 0.5
    """Share of the views that are rotated."""

    flip: float = 0.5
    """Share of the views that are mirrored."""

    coloured: float = 0.5
    """Share of the views whose colours are changed, in all of the ways below."""

    gamma: tuple[float, float] = (0.9, 1.1)
    """Exponents of colours within 0..1."""

    brightness: tuple[float, float] = (0.75, 1.25)
    """Factors of all colours."""

    channels: tuple[float, float] = (0.9, 1.1)
    """Factors of red, of green and of blue, each its own."""


@dataclass(frozen=True, kw_only=True)
class DenseProtocol:
    """A linear head on the patch features, and how it is fitted and judged."""

    name: str

    resolution: int = 512
    """Short side of test pictures, in pixels; brought down to whole patches of the model."""

    steps: int

    batch: int

    rates: tuple[float, ...]
    """Learning rates; more than one needs a selection."""

    betas: tuple[float, float] = (0.9, 0.999)

    decay: float
    """Of all parameters of the head, by AdamW."""

    schedule: Schedule

    warmup: int = 0
    """Steps of the two schedules that begin with one."""

    power: float = 1.0
    """Exponent of the two polynomial schedules."""

    floor: float = 0.0
    """Rate at which the polynomial schedules end."""

    clip: float | None = None
    """Greatest norm of the gradient of a head; None lets it be."""

    append_image: bool
    """Whether each patch feature is followed by the image feature."""

    norm: Literal["batch", "none"] = "batch"
    """Whether channels are normalised over the batch before the linear layer."""

    dropout: float = 0.0
    """Share of the channels of a picture that is dropped before that."""

    inference: Inference = "whole"

    overlap: float = 1 - 341 / 512
    """Of sliding windows, in sides of a window."""

    views: int | None = None
    """Training views of each picture that are drawn once and whose features are kept, so that all
    seeds learn from the same ones; None draws new ones at every step."""

    loss_stride: int = 1
    """The loss is taken on every so many-th row and column of pixels, beginning at a place drawn
    anew in each step: without bias, and that much cheaper."""

    selection: Selection = "none"

    held_out: float = 0.1
    """Share of the training pictures that is put aside to choose on."""

    checks: int = 1
    """How many times, at equal distances and at the end, a head is kept to choose among."""

    def __post_init__(self) -> None:
        """Refuse what no head can be fitted with."""
        least = min(self.resolution, self.steps, self.batch, self.loss_stride, self.checks)
        if least < 1 or self.checks > self.steps or (self.views is not None and self.views < 1):
            raise ValueError(
                f"{self.name}: resolution, steps, batch, loss_stride, checks and views must be at "
                "least 1, and checks at most steps."
            )
        if not self.rates or (len(self.rates) > 1 and self.selection == "none"):
            raise ValueError(
                f"{self.name}: {len(self.rates)} rates with selection='none'; give one rate, or "
                "choose with 'held-out'."
            )
        if not (0 <= self.overlap < 1 and 0 <= self.dropout < 1 and 0 < self.held_out < 1):
            raise ValueError(
                f"{self.name}: overlap={self.overlap}, dropout={self.dropout} and "
                f"held_out={self.held_out} must be shares below 1."
            )

    def window_stride(self, window: int) -> int:
        """Pixels from one window to the next; 341 for windows of 512, as is usual."""
        return max(1, round(window * (1 - self.overlap)))

    def checked_steps(self) -> tuple[int, ...]:
        """Numbers of steps after which a head is kept; the last one is all of them."""
        return tuple(-(-self.steps * (part + 1) // self.checks) for part in range(self.checks))


@dataclass(frozen=True, kw_only=True)
class SegmentationProtocol(DenseProtocol):
    """A head that tells the class of each pixel, by cross-entropy of bilinearly scaled logits."""

    augment: SegmentationAugment = field(default_factory=SegmentationAugment)

    denominator: Literal["valid", "all"]
    """What the sum over pixels is divided by: those that count, or all, as in MMSegmentation, where
    pixels that do not count so lower the rate."""


@dataclass(frozen=True, kw_only=True)
class DepthProtocol(DenseProtocol):
    """A head that tells metres as the mean of fixed depths, weighted by its outputs."""

    augment: DepthAugment = field(default_factory=DepthAugment)

    bins: int = 256
    """Depths, from the least to the most that counts in the set."""

    spacing: Literal["linear", "log"] = "linear"
    """Whether depths lie at equal distances or at equal ratios."""

    upsample: int = 4
    """Outputs are scaled bilinearly by this before they become metres."""

    variance_weight: float = 0.15
    """Of the squared mean of the errors of the logarithm, beside their variance."""

    settling: int = 100
    """First steps, in which the mean alone is corrected."""

    flip_average: bool = True
    """Whether what is told of a test picture is averaged with what is told of its mirror image."""


@dataclass(frozen=True, kw_only=True)
class DenseKnnProtocol:
    """Patches labelled by the nearest labelled patches of training pictures; nothing is fitted."""

    name: str

    resolution: int = 512
    """Short side of pictures, training ones included, in pixels."""

    neighbours: tuple[int, ...] = (30,)
    """How many vote; the first one gives the metrics without a number in their name."""

    temperature: float = 0.07
    """A neighbour's vote is exp(cosine / temperature)."""

    bank: int = 32_768
    """Most labelled patches; of more, so many are drawn by the seed."""

    pictures: int = 2_000
    """Most training pictures that they are taken from; of more, so many are drawn by the seed."""

    def __post_init__(self) -> None:
        """Refuse what cannot vote."""
        if not self.neighbours or min(*self.neighbours, self.bank, self.pictures) < 1:
            raise ValueError(
                f"{self.name}: neighbours={self.neighbours}, bank={self.bank} and "
                f"pictures={self.pictures} must be at least 1."
            )
        if self.temperature <= 0:
            raise ValueError(f"{self.name}: temperature={self.temperature} must be above 0.")
