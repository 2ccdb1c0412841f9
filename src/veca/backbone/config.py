"""Configuration of a backbone: its fields, their checks, and the named sizes."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, fields
from types import MappingProxyType
from typing import Any, Literal, get_args

AttentionKind = Literal["core-periphery", "full"]
"""Who reads whom: patches only cores (VECA), or every token every token (the baseline)."""

CoreMotion = Literal["paper", "normalized", "attention"]
"""How a core moves from layer to layer: 'paper' reads a step from its raw feature, times a learned
factor; 'normalized' reads it from the normalized feature, times a fixed factor; 'attention' steps
toward the center of mass of what the core reads."""

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
    """Hidden units of a feed-forward layer per channel; the product is truncated."""

    patch_size: int = 16
    """Side of a square patch in pixels."""

    in_channels: int = 3
    """Channels of an image."""

    budgets: tuple[int, ...] = PAPER_BUDGETS
    """Core counts C to train with, increasing; the last is M, the bank. Any of 1..M can be used."""

    ffn_shares: tuple[float, ...] = (1.0,)
    """Shares of the hidden units to train with, increasing to 1.0; (1.0,) is the paper's model."""

    attention: AttentionKind = "core-periphery"
    """'full' builds the baseline: the same blocks with full attention."""

    prefix_tokens: int = 1
    """Learned tokens before the patches of a 'full' model; the first is the image feature."""

    rotary_base: float = 100.0
    """Ratio of the longest rotary period to the shortest one, as in the authors' code."""

    rotary_still: float = 0.125
    """Share of the rotary periods, the longest ones, that do not rotate."""

    coordinate_shift: float = 0.08
    """Maximum shift of patch coordinates along an axis in training; 0 disables it."""

    coordinate_rescale: float = 2.0
    """Maximum factor that scales patch coordinates in training; 1 disables it."""

    local_kernel: int = 0
    """Side of the depthwise convolution on the patch grid before each attention, such as 3 or 5;
    0 is the paper's model, which has none."""

    core_motion: CoreMotion = "paper"
    """How cores move; without effect in a 'full' model."""

    default_budget: int | None = None
    """Cores to use when a call gives no budget; None uses all of them."""

    def __post_init__(self) -> None:
        """Check all fields."""
        use_plain_numbers(self)
        for name in ("budgets", "ffn_shares"):
            if not isinstance(getattr(self, name), tuple):
                raise ValueError(f"{name}={getattr(self, name)!r} must be a tuple.")
        for name in ("ffn_ratio", "rotary_base", "rotary_still", "coordinate_shift",
                     "coordinate_rescale"):  # fmt: skip
            if not isinstance(getattr(self, name), int | float):
                raise ValueError(f"{name}={getattr(self, name)!r} must be a number.")
        for name in ("layers", "width", "heads", "patch_size", "in_channels", "prefix_tokens"):
            _check_count(name, getattr(self, name))
        if self.width % (4 * self.heads):
            raise ValueError(
                f"width={self.width} with {self.heads} heads gives heads whose channels are not a "
                f"multiple of 4, which 2-D RoPE needs; use a multiple of {4 * self.heads}."
            )
        if not 1 <= self.width * self.ffn_ratio < math.inf:
            raise ValueError(
                f"ffn_ratio={self.ffn_ratio} gives no valid number of hidden units at "
                f"width={self.width}; use a ratio such as 2.66667."
            )
        self._check_choices_and_ranges()
        self._check_cores()
        self._check_shares_and_kernel()

    def _check_cores(self) -> None:
        """Budgets must nest, and the fields of cores must fit the kind of attention."""
        for budget in self.budgets:
            _check_count("budgets", budget)
        if not self.budgets or list(self.budgets) != sorted(set(self.budgets)):
            raise ValueError(
                f"budgets={self.budgets} must be increasing core counts, such as (8, 16, 32)."
            )
        if self.attention == "full" and self.budgets != PAPER_BUDGETS:
            raise ValueError(
                f"budgets={self.budgets} cannot be used with attention='full', which has no cores; "
                "set prefix_tokens instead."
            )
        if self.attention != "full" and self.prefix_tokens != 1:
            raise ValueError(
                f"prefix_tokens={self.prefix_tokens} is only for attention='full'; set budgets to "
                "change the number of cores."
            )
        if self.default_budget is not None:
            _check_count("default_budget", self.default_budget)
            if self.attention == "full" or self.default_budget > self.cores:
                raise ValueError(
                    f"default_budget={self.default_budget} cannot be used; it must be at most "
                    f"{self.cores}, the cores of this model, and None with attention='full'."
                )

    def _check_shares_and_kernel(self) -> None:
        """Shares must nest and end with 1; a kernel needs a center."""
        shares = self.ffn_shares
        numbers = all(isinstance(share, int | float) for share in shares)
        increasing = numbers and list(shares) == sorted(set(shares))
        if not shares or not increasing or shares[0] <= 0 or shares[-1] != 1:
            raise ValueError(
                f"ffn_shares={shares} must increase within (0, 1] and end with 1.0, such as "
                "(0.25, 0.5, 1.0)."
            )
        kernel = self.local_kernel
        if type(kernel) is not int or kernel == 1 or kernel < 0 or (kernel and kernel % 2 == 0):
            raise ValueError(
                f"local_kernel={kernel!r} is invalid; use 0 for none or an odd side such as 3 or 5."
            )

    def _check_choices_and_ranges(self) -> None:
        """Fields with names, and constants."""
        for name, known in (("attention", AttentionKind), ("core_motion", CoreMotion)):
            if getattr(self, name) not in get_args(known):
                raise ValueError(
                    f"{name}={getattr(self, name)!r} is unknown; use "
                    f"{', '.join(map(repr, get_args(known)))}."
                )
        allowed = {
            "rotary_base": (self.rotary_base > 0, "above 0"),
            "rotary_still": (0 <= self.rotary_still <= 1, "within [0, 1]"),
            "coordinate_shift": (self.coordinate_shift >= 0, "0 or more"),
            "coordinate_rescale": (self.coordinate_rescale >= 1, "1 or more"),
        }
        for name, (holds, range_text) in allowed.items():
            value = getattr(self, name)
            if not holds or not math.isfinite(value):
                raise ValueError(f"{name}={value} is invalid; it must be finite and {range_text}.")

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
        """Hidden units of a feed-forward layer."""
        return int(self.width * self.ffn_ratio)

    def architecture(self) -> dict[str, Any]:
        """What two models must have in common to exchange the weights of their blocks.

        Heads and rotary constants change no shape, but what the weights mean. Cores, attention and
        local mixing may differ.
        """
        names = ("layers", "width", "heads", "hidden", "patch_size", "in_channels", "rotary_base",
                 "rotary_still")  # fmt: skip
        return {name: getattr(self, name) for name in names}

    def hidden_units(self, share: float) -> int:
        """How many hidden units, counted from the first, a share uses."""
        return max(1, round(share * self.hidden))


def plain(value: Any) -> Any:  # noqa: ANN401 - numbers of any library
    """A number of numpy or torch as one of Python's; whatever else as it is."""
    return value.item() if getattr(value, "ndim", None) == 0 else value


def use_plain_numbers(config: Any) -> None:  # noqa: ANN401 - any dataclass
    """Make the numbers in the fields of a frozen dataclass plain, for comparisons and JSON."""
    for item in fields(config):
        value = getattr(config, item.name)
        changed = tuple(map(plain, value)) if isinstance(value, tuple) else plain(value)
        object.__setattr__(config, item.name, changed)


def _check_count(name: str, value: object) -> None:
    """Require a positive integer."""
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        raise ValueError(f"{name}={value!r} must be an integer of 1 or more.")


SIZES: Mapping[str, BackboneConfig] = MappingProxyType(
    {
        "tiny": BackboneConfig(layers=12, width=192, heads=3, local_kernel=3),
        "small": BackboneConfig(layers=12, width=384, heads=6),
        "small-plus": BackboneConfig(layers=12, width=384, heads=6, ffn_ratio=4.0),
        "base": BackboneConfig(layers=12, width=768, heads=12),
        "large": BackboneConfig(layers=24, width=1024, heads=16),
    }
)
"""Configurations by the names that `veca.build` takes: the paper's four, and our tiny."""
