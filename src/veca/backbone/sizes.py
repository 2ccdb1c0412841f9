"""The sizes that have names: the paper's four, and our tiny."""

from collections.abc import Mapping
from types import MappingProxyType

from veca.backbone.config import BackboneConfig

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
