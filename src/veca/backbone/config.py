"""Configuration of a backbone: its fields, their checks, and the named sizes.

What a backbone is: the numbers that shape its weights and its computation.

The sizes that have names: the paper's four, and our tiny.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Literal, get_args

AttentionKind = Literal["core-periphery", "full"]
"""Who reads whom: cores in the middle (VECA), or everybody everybody (the baseline)."""

CoreMotion = Literal["paper", "normalized", "attention"]
"""What moves a core from layer to layer: 'paper' reads a step from the core's raw feature and
scales it by a learned factor; 'normalized' reads it from the normalized feature, with a fixed
factor that cannot shrink to nothing; 'attention' steps toward the center of mass of what the core
reads."""

PAPER_BUDGETS = (8, 16, 24, 32, 40, 48, 56, 64)


@dataclass(frozen=True, kw_only=True)
class BackboneConfig:
    """Sizes and constants of one backbone; the defaults are the paper's base model."""

    layers: int = 12
    """Blocks L."""

    width: int = 768
    """Channels D of a token."""

    heads: int = 12
    """Attention heads H; each sees width / heads channels."""

    ffn_ratio: float = 2.66667
    """Hidden units of a feed-forward part for each channel; the product is truncated."""

    patch_size: int = 16
    """Side of a square patch in pixels."""

    in_channels: int = 3
    """Channels of an image."""

    budgets: tuple[int, ...] = PAPER_BUDGETS
    """Core counts C to train with, rising; any 1..M can be used. The last is M, the bank."""

    ffn_shares: tuple[float, ...] = (1.0,)
    """Shares of the hidden units to train with, rising to 1.0; (1.0,) is the paper's model."""

    attention: AttentionKind = "core-periphery"
    """'full' builds the baseline: the same blocks, with every token reading every token."""

    prefix_tokens: int = 1
    """Learned tokens before the patches of a 'full' model; the first is the image feature."""

    rotary_base: float = 100.0
    """Ratio of the longest rotary period to the shortest one, as the authors' code has it."""

    rotary_still: float = 0.125
    """Share of the rotary periods, the longest ones, that do not turn at all."""

    coordinate_shift: float = 0.08
    """Largest shift of all patch coordinates along an axis in training; 0 switches it off."""

    coordinate_rescale: float = 2.0
    """Largest factor by which patch coordinates are scaled in training; 1 switches it off."""

    local_kernel: int = 0
    """Side of the depthwise convolution on the patch grid before each attention, such as 3 or 5;
    0 is the paper's model, whose patches exchange nothing locally."""

    core_motion: CoreMotion = "paper"
    """What moves the cores; of no effect in a 'full' model."""

    default_budget: int | None = None
    """Cores to use when a call names no budget; None uses all of them."""

    def __post_init__(self) -> None:
        """Refuse what cannot be built, in words that say what can."""
        for name in ("budgets", "ffn_shares"):
            if not isinstance(getattr(self, name), tuple):
                raise ValueError(f"{name} got {getattr(self, name)!r}, but a tuple is needed.")
        for name in ("ffn_ratio", "rotary_base", "rotary_still", "coordinate_shift",
                     "coordinate_rescale"):  # fmt: skip
            if not isinstance(getattr(self, name), int | float):
                raise ValueError(f"{name} got {getattr(self, name)!r}, but a number is needed.")
        for name in ("layers", "width", "heads", "patch_size", "in_channels", "prefix_tokens"):
            _check_count(name, getattr(self, name))
        if self.width % (4 * self.heads):
            raise ValueError(
                f"width={self.width} does not split into {self.heads} heads of a multiple of 4 "
                f"channels, which 2-D rotary needs; use a multiple of {4 * self.heads}."
            )
        if not 1 <= self.width * self.ffn_ratio < math.inf:
            raise ValueError(
                f"ffn_ratio={self.ffn_ratio} gives no number of hidden units at "
                f"width={self.width}; use a ratio such as 2.66667."
            )
        self._check_budgets()
        self._check_local_mixing()
        self._check_shares()
        self._check_constants()

    def _check_budgets(self) -> None:
        """Refuse budgets that do not nest, and fields that the kind of attention does not use."""
        for budget in self.budgets:
            _check_count("budgets", budget)
        if not self.budgets or list(self.budgets) != sorted(set(self.budgets)):
            raise ValueError(
                f"budgets={self.budgets} must be core counts that rise, such as (8, 16, 32)."
            )
        if self.attention not in ("core-periphery", "full"):
            raise ValueError(
                f"attention={self.attention!r} is not known; use 'core-periphery' or 'full'."
            )
        if self.attention == "full" and self.budgets != PAPER_BUDGETS:
            raise ValueError(
                f"budgets={self.budgets} mean nothing with attention='full', which has no cores; "
                "leave them out and set prefix_tokens instead."
            )
        if self.attention != "full" and self.prefix_tokens != 1:
            raise ValueError(
                f"prefix_tokens={self.prefix_tokens} is only used with attention='full'; "
                "set budgets to change the number of cores."
            )

    def _check_local_mixing(self) -> None:
        """Refuse kernels without a center, unknown motions, and a default that is no budget."""
        kernel, budget = self.local_kernel, self.default_budget
        if type(kernel) is not int or kernel < 0 or (kernel and kernel % 2 == 0) or kernel == 1:
            raise ValueError(
                f"local_kernel={kernel!r} has no neighbors around a center; use 0 for none, or an "
                "odd side such as 3 or 5."
            )
        if self.core_motion not in get_args(CoreMotion):
            raise ValueError(
                f"core_motion={self.core_motion!r} is not known; use "
                f"{', '.join(map(repr, get_args(CoreMotion)))}."
            )
        if budget is None:
            return
        _check_count("default_budget", budget)
        if self.attention == "full" or budget > self.cores:
            most = (
                "None, since a full-attention model has no cores"
                if self.attention == "full"
                else f"at most {self.cores}, the cores of this model"
            )
            raise ValueError(f"default_budget={budget} cannot be used; it must be {most}.")

    def _check_shares(self) -> None:
        """Refuse shares that do not nest or do not end with the whole."""
        shares = self.ffn_shares
        numbers = all(isinstance(share, int | float) for share in shares)
        rising = numbers and list(shares) == sorted(set(shares))
        if not shares or not rising or shares[0] <= 0 or shares[-1] != 1:
            raise ValueError(
                f"ffn_shares={self.ffn_shares} must rise within (0, 1] and end with 1.0, "
                "such as (0.25, 0.5, 1.0)."
            )

    def _check_constants(self) -> None:
        """Refuse constants outside their ranges."""
        allowed = {
            "rotary_base": (self.rotary_base > 0, "above 0"),
            "rotary_still": (0 <= self.rotary_still <= 1, "within [0, 1]"),
            "coordinate_shift": (self.coordinate_shift >= 0, "0 or more"),
            "coordinate_rescale": (self.coordinate_rescale >= 1, "1 or more"),
        }
        for name, (holds, words) in allowed.items():
            value = getattr(self, name)
            if not holds or not math.isfinite(value):
                raise ValueError(f"{name}={value} is not usable; it must be finite and {words}.")

    @property
    def cores(self) -> int:
        """Cores M in the bank, or prefix tokens of a 'full' model."""
        return self.prefix_tokens if self.attention == "full" else self.budgets[-1]

    @property
    def head_width(self) -> int:
        """Channels K of a head."""
        return self.width // self.heads

    @property
    def hidden(self) -> int:
        """Hidden units of a feed-forward part."""
        return int(self.width * self.ffn_ratio)

    def hidden_units(self, share: float) -> int:
        """Hidden units, counted from the first, that a share uses."""
        return max(1, round(share * self.hidden))


def _check_count(name: str, value: object) -> None:
    """Refuse a count that is not a positive whole number."""
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        raise ValueError(f"{name} got {value!r}, but a count must be a whole number of 1 or more.")


SIZES: Mapping[str, BackboneConfig] = MappingProxyType(
    {
        "tiny": BackboneConfig(layers=12, width=192, heads=3, local_kernel=3),
        "small": BackboneConfig(layers=12, width=384, heads=6),
        "small-plus": BackboneConfig(layers=12, width=384, heads=6, ffn_ratio=4.0),
        "base": BackboneConfig(layers=12, width=768, heads=12),
        "large": BackboneConfig(layers=24, width=1024, heads=16),
    }
)
"""Name to configuration; `veca.build` takes these names."""
