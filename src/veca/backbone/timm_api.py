"""Method names of timm and DINO, so that a VECA fits where their models do."""

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from veca.backbone.config import BackboneConfig


class TimmMixin:
    """The interface of timm and DINO backbones."""

    config: BackboneConfig
    checkpoint_activations: bool
    final_norm: nn.LayerNorm
    chosen_budget: Callable[..., int]
    forward: Callable[..., Any]
    intermediates: Callable[..., list[Any]]
    layer_number: Callable[..., int]
    named_parameters: Callable[..., Iterator[tuple[str, nn.Parameter]]]

    @property
    def embed_dim(self) -> int:
        """Width of a token."""
        return self.config.width

    @property
    def num_features(self) -> int:
        """Width of the features."""
        return self.config.width

    @property
    def num_prefix_tokens(self) -> int:
        """Tokens before the patches in a call without an explicit budget.

        A call with `budget=8` has 8 whatever this says; set `model.budget = 8` instead before other
        code slices tokens by this number.
        """
        return self.chosen_budget()

    @property
    def feature_info(self) -> list[dict[str, Any]]:
        """Module, channels and stride of every layer's feature map."""
        facts = {"num_chs": self.config.width, "reduction": self.config.patch_size}
        return [{"module": f"blocks.{layer}", **facts} for layer in range(self.config.layers)]

    def forward_features(
        self, x: Tensor, *, budget: int | None = None, ffn: float | None = None
    ) -> Tensor:
        """All normalized tokens (B, C + N, D), cores first: `num_prefix_tokens`, or `budget`."""
        features = self.forward(x, budget, ffn)
        return torch.cat((features.cores, features.patches), dim=1)

    def forward_intermediates(  # noqa: PLR0913, PLR0917 - timm's signature
        self,
        x: Tensor,
        indices: int | Sequence[int] | None = None,
        return_prefix_tokens: bool = False,
        norm: bool = False,
        stop_early: bool = False,
        output_fmt: str = "NCHW",
        intermediates_only: bool = False,
        *,
        budget: int | None = None,
        ffn: float | None = None,
    ) -> Any:  # noqa: ANN401 - as timm, two kinds
        """Patch maps of the layers `indices` (the last n, or a list), as in timm.

        A list of maps if `intermediates_only`, else the final tokens and the list.
        """
        if output_fmt not in ("NCHW", "NLC"):
            raise ValueError(f"output_fmt={output_fmt!r} is unknown; use 'NCHW' or 'NLC'.")
        layers = self._layer_numbers(indices)
        last = max(layers) if stop_early or intermediates_only else self.config.layers - 1
        found = self.intermediates(x, [*layers, last], budget, ffn, norm=False)
        *chosen, final = found
        if norm:
            chosen = [self._normalized(features) for features in chosen]
        maps: list[Any] = [
            (features.patch_map if output_fmt == "NCHW" else features.patches).contiguous()
            for features in chosen
        ]
        if return_prefix_tokens:
            maps = [(item, features.cores) for item, features in zip(maps, chosen, strict=True)]
        if intermediates_only:
            return maps
        final = self._normalized(final)
        return torch.cat((final.cores, final.patches), dim=1), maps

    def get_intermediate_layers(  # noqa: PLR0913 - DINO's signature
        self,
        x: Tensor,
        n: int | Sequence[int] = 1,
        reshape: bool = False,
        return_class_token: bool = False,
        norm: bool = True,
        *,
        budget: int | None = None,
        ffn: float | None = None,
    ) -> tuple[Any, ...]:
        """Patches of the last `n` layers (or of the layers in `n`), as in DINO."""
        found = self.intermediates(x, self._layer_numbers(n), budget, ffn, norm)
        patches = [
            (features.patch_map if reshape else features.patches).contiguous() for features in found
        ]
        if not return_class_token:
            return tuple(patches)
        return tuple((item, features.image) for item, features in zip(patches, found, strict=True))

    def set_grad_checkpointing(self, enable: bool = True) -> None:
        """Recompute activations in the backward pass instead of storing them."""
        self.checkpoint_activations = enable

    def no_weight_decay(self) -> set[str]:
        """Parameters that weight decay would displace, besides biases and norms."""
        names = {name for name, _ in self.named_parameters()}
        return {name for name in names if name.startswith("core_bank.") or name.endswith(".scale")}

    def group_matcher(self, coarse: bool = False) -> dict[str, Any]:
        """Patterns that group parameters into a stem and the blocks, for layer-wise learning rates.

        A core step belongs to the block whose output it reads. As in timm's own vision
        transformers, `coarse` changes nothing.
        """
        return {
            "stem": r"^patch_embedding|^core_bank",
            "blocks": [(r"^(?:blocks|core_steps)\.(\d+)", None), (r"^final_norm", (99999,))],
        }

    def _normalized(self, features: Any) -> Any:  # noqa: ANN401 - Features, of the module above
        """Features after the final norm."""
        norm = self.final_norm
        return features._replace(cores=norm(features.cores), patches=norm(features.patches))

    def _layer_numbers(self, indices: int | Sequence[int] | None) -> list[int]:
        """Layers from 0 in the order of the network; negative ones count from the end."""
        layers = self.config.layers
        if indices is None:
            return list(range(layers))
        if isinstance(indices, int):
            if not 1 <= indices <= layers:
                raise ValueError(f"the last {indices} layers are not available; use 1 to {layers}.")
            return list(range(layers - indices, layers))
        if not indices:
            raise ValueError(f"no layers are given; give at least one of {-layers}..{layers - 1}.")
        return sorted({self.layer_number(index) for index in indices})
