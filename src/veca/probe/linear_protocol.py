"""What a linear probe is: named, frozen numbers."""

import math
from dataclasses import dataclass
from typing import Literal

Feature = Literal["image", "image+patch-mean", "patch-mean"]
"""What a head sees: the image feature, the mean of the patches, or both side by side."""

Selection = Literal["test-best-step", "test", "held-out", "none"]
"""How one head is chosen among rates and steps.

'test-best-step': the best rate and step on the reported set, as the paper: a mild optimism. 'test':
the best rate on the reported set, at the last step, as DINOv2 and DINOv3: the same, milder.
'held-out': the best rate on training pictures put aside, at the last step, as CAPI: none.
'none': one rate, the last step.
"""


class ProtocolError(ValueError):
    """A protocol that cannot be followed: what was got, what is allowed, what to do."""


@dataclass(frozen=True, kw_only=True)
class LinearProtocol:
    """A linear layer trained by SGD with momentum, its rate falling along half a cosine to 0."""

    name: str

    rates: tuple[float, ...]
    """Learning rates; a head is trained with each."""

    scale_rates: bool = False
    """Whether the rates are for a batch of 256, and multiplied by batch / 256."""

    batch: int = 128
    """Pictures a step."""

    steps: int = 12_500

    momentum: float = 0.9

    weight_decay: float = 0.0
    """Of the weights; biases do not decay."""

    schedule: Literal["cosine"] = "cosine"

    feature: Feature = "image"

    views: int = 0
    """Random views of each training picture to draw from; 0 means the view of the middle alone."""

    validate_every: int = 1250
    """Steps between two judgements where the best step is kept; the last step is judged always."""

    selection: Selection = "none"

    held_out_share: float = 0.1
    """Share of the training pictures that are put aside for the selection 'held-out'."""

    init_std: float = 0.01
    """Spread of the weights at the start, about 0; biases start at 0."""

    resolution: int | None = None
    """Pixels of the side of a view; None leaves it to the model."""

    margin: float = 1.125
    """Short side of a test picture before the middle is cut out, in sides of the view."""

    def __post_init__(self) -> None:
        """Refuse what cannot be followed."""
        if not self.rates or not all(0 < rate < math.inf for rate in self.rates):
            raise ProtocolError(f"rates={self.rates} are no learning rates; use some above 0.")
        if len(set(self.rates)) != len(self.rates):
            raise ProtocolError(f"rates={self.rates} hold one twice; leave it out.")
        if self.selection == "none" and len(self.rates) > 1:
            raise ProtocolError(
                f"with the selection 'none' {len(self.rates)} rates leave open which head is "
                "meant; use one rate, or choose by 'held-out'."
            )
        if min(self.batch, self.steps, self.validate_every) < 1 or self.views < 0:
            raise ProtocolError(
                f"batch={self.batch}, steps={self.steps}, validate_every={self.validate_every} and "
                f"views={self.views} cannot be; use 1 or more, and 0 or more views."
            )
        if not 0 <= self.momentum < 1 or self.weight_decay < 0 or not 0 < self.held_out_share < 1:
            raise ProtocolError(
                f"momentum={self.momentum}, weight_decay={self.weight_decay} and "
                f"held_out_share={self.held_out_share} cannot be; use 0 <= momentum < 1, a decay "
                "from 0 on, and 0 < share < 1."
            )

    @property
    def judged_steps(self) -> tuple[int, ...]:
        """Steps after which heads are judged, the last one among them; none where none chooses."""
        if self.selection == "none":
            return ()
        if self.selection != "test-best-step":
            return (self.steps,)
        return (*range(self.validate_every, self.steps, self.validate_every), self.steps)

    def rate_at(self, rate: float, step: int) -> float:
        """The rate of a step, counted from 0, for one of the `rates`."""
        base = rate * self.batch / 256 if self.scale_rates else rate
        return base * (1 + math.cos(math.pi * step / self.steps)) / 2
