"""torch.hub: `torch.hub.load("veca/veca", "veca_tiny")`, or source="local" from a clone."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent / "src"))

import veca

dependencies = ["huggingface_hub", "jaxtyping", "numpy", "PIL", "safetensors", "torch"]


def veca_tiny(pretrained: bool = True, **fields: object) -> "veca.VECA":
    """The bundled model, or an untrained one with other fields of `veca.BackboneConfig`."""
    return veca.load("veca-tiny") if pretrained else veca.build("tiny", **fields)


def load(model: str, **kwargs: object) -> "veca.VECA":
    """What `veca.load` opens: a folder, a .safetensors file, or a name on the hub."""
    return veca.load(model, **kwargs)  # type: ignore[arg-type] - its keywords
