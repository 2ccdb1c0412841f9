"""VECA in timm: `import veca.timm` registers `veca_tiny` and the paper's sizes, nothing else does.

Only `veca_tiny` has weights (`pretrained=True`: those of the package, without a head).
`features_only`, pooling, heads and classifier resets work as for timm's own vision transformers;
every model also takes `budget`, the number of cores of calls that give none.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import torch
from timm.models import build_model_with_cfg, generate_default_cfgs, register_model
from torch import Tensor, nn

from veca.backbone.config import SIZES
from veca.backbone.model import VECA
from veca.data.transforms import MEAN, STD
from veca.weights.checkpoint import load

PRETRAINED = {"veca_tiny": "veca-tiny"}
"""Models whose weights come with the package."""


class TimmVECA(VECA):
    """A VECA with pooling and a classifier; called, it gives logits."""

    def __init__(
        self,
        size: str = "tiny",
        num_classes: int = 1000,
        in_chans: int = 3,
        global_pool: str = "token",
        drop_rate: float = 0.0,
        budget: int | None = None,
        img_size: object = None,
        **fields: Any,
    ) -> None:
        del img_size  # any size works
        super().__init__(replace(SIZES[size], in_channels=in_chans, **fields))
        self.budget = budget
        self.head_hidden_size = self.config.width
        self.head_drop = nn.Dropout(drop_rate)
        self.global_pool = global_pool
        self.reset_classifier(num_classes, global_pool)

    def reset_classifier(self, num_classes: int, global_pool: str | None = None) -> None:
        """A new head; none for zero classes."""
        pool = self.global_pool if global_pool is None else global_pool
        if pool not in {"token", "avg", ""}:
            raise ValueError(f"global_pool={pool!r} is unknown; use 'token', 'avg' or ''.")
        self.num_classes, self.global_pool = num_classes, pool
        self.head = nn.Linear(self.config.width, num_classes) if num_classes else nn.Identity()

    def get_classifier(self) -> nn.Module:
        """The head."""
        return self.head

    def forward_features(
        self, x: Tensor, *, budget: int | None = None, ffn: float | None = None
    ) -> Tensor:
        """All normalized tokens (B, C + N, D), cores first."""
        features = super().forward(x, budget, ffn)
        return torch.cat((features.cores, features.patches), dim=1)

    def forward_head(self, x: Tensor, pre_logits: bool = False) -> Tensor:
        """Pool tokens of a call without a budget, and classify."""
        if self.global_pool == "token":
            x = x[:, 0]
        elif self.global_pool == "avg":
            x = x[:, self.num_prefix_tokens :].mean(dim=1)
        x = self.head_drop(x)
        return x if pre_logits else self.head(x)

    def forward(self, x: Tensor) -> Tensor:  # type: ignore[override]  # as every model of timm
        """Logits, or pooled features without a head."""
        return self.forward_head(self.forward_features(x))

    def prune_intermediate_layers(
        self,
        indices: int | Sequence[int] | None = 1,
        prune_norm: bool = False,
        prune_head: bool = True,
    ) -> list[int]:
        """Drop the layers after the last of `indices`, as `features_only` asks for."""
        layers = self._layer_numbers(indices)
        count = max(layers) + 1
        self.blocks, self.core_steps = self.blocks[:count], self.core_steps[: count - 1]
        self.config = replace(self.config, layers=count)
        if prune_norm:
            self.final_norm = nn.Identity()  # type: ignore[assignment]
        if prune_head:
            self.reset_classifier(0, "")
        return layers


def _pretrained_cfg(**fields: Any) -> dict[str, Any]:
    """What timm knows of a model."""
    return {
        "num_classes": 0,
        "input_size": (3, 256, 256),
        "pool_size": None,
        "fixed_input_size": False,
        "interpolation": "bicubic",
        "crop_pct": 1.0,
        "mean": MEAN,
        "std": STD,
        "first_conv": "patch_embedding",
        "classifier": "head",
        "license": "apache-2.0",
        "paper_ids": "arXiv:2605.12491",
        **fields,
    }


default_cfgs = generate_default_cfgs(
    {f"veca_{size.replace('-', '_')}": _pretrained_cfg() for size in SIZES}
)


def _entrypoint(size: str) -> Callable[..., nn.Module]:
    """The function that timm calls for a size."""
    name = f"veca_{size.replace('-', '_')}"

    def create(pretrained: bool = False, **kwargs: Any) -> nn.Module:
        overlay = kwargs.pop("pretrained_cfg_overlay", None) or {}
        if pretrained and name in PRETRAINED:
            stored = load(PRETRAINED[name])
            overlay = {**overlay, "state_dict": stored.state_dict()}
            fields = vars(stored.config)  # of the weights, which may differ from today's tiny
            kwargs = {key: fields[key] for key in _ARCHITECTURE} | kwargs
        return build_model_with_cfg(
            TimmVECA, name, pretrained, pretrained_cfg_overlay=overlay, size=size,
            feature_cfg={"out_indices": 3, "feature_cls": "getter"}, **kwargs,
        )  # fmt: skip

    create.__name__ = create.__qualname__ = name
    create.__module__ = __name__
    create.__doc__ = f"VECA of the size {size}."
    return create


_ARCHITECTURE = ("local_kernel", "core_motion", "ffn_shares", "budgets", "default_budget")
"""Fields in which stored weights may differ from the named size."""

for _size in SIZES:
    _create = _entrypoint(_size)
    globals()[_create.__name__] = _create
    register_model(_create)
