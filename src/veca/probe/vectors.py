"""The vectors that heads of classes see, by setting: on the disk, and few of them in memory."""

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from veca.probe.features import ImageFeatures, KeptFeatures
from veca.probe.linear_protocol import Feature
from veca.probe.setting import Setting

PARTS: Mapping[Feature, tuple[str, ...]] = {
    "image": ("image",),
    "patch-mean": ("patch_mean",),
    "image+patch-mean": ("image", "patch_mean"),
}
"""Names of `ImageFeatures` that a head sees side by side."""


def side_by_side(features: ImageFeatures, feature: Feature) -> Tensor:
    """The vectors that a head sees, of features in memory."""
    return torch.cat([getattr(features, name) for name in PARTS[feature]], dim=1)


class Vectors:
    """The vectors of a part of a set; those that were asked for last stay in memory, no others.

    Who asks for the next ones should have let go of the last.
    """

    def __init__(self, kept: KeptFeatures, feature: Feature) -> None:
        self._kept, self._names = kept, PARTS[feature]
        self._held: dict[Setting, Tensor] = {}

    def __getitem__(self, setting: Setting) -> Tensor:
        """Those of one setting."""
        return self.together([setting])[setting]

    def together(self, settings: Sequence[Setting]) -> dict[Setting, Tensor]:
        """Those of several settings."""
        if not self._held.keys() >= set(settings):
            self._held = {}  # before others are read
            self._held = {
                setting: self._kept.side_by_side(setting, self._names) for setting in settings
            }
        return {setting: self._held[setting] for setting in settings}

    def groups(self, most: int) -> list[list[Setting]]:
        """The settings in their order, in groups of at most so many bytes, or of one setting."""
        found: list[list[Setting]] = []
        left = 0
        for setting in self._kept.settings:
            size = self._kept.num_bytes(setting, self._names)
            if size > left or not found:
                found.append([])
                left = most
            found[-1].append(setting)
            left -= size
        return found
