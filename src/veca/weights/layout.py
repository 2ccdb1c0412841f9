"""The files of a model, and what a model can be called."""

import re

WEIGHTS_NAME = "model.safetensors"
"""The weights; alone enough to load."""

CONFIG_NAME = "config.json"
"""What the hub and people read."""

CARD_NAME = "README.md"
"""The model card."""

HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]*/[\w.-]+", re.ASCII)
FILE_SUFFIXES = (".safetensors", ".pt", ".pth", ".bin", ".ckpt")


def is_hub_id(name: str) -> bool:
    """Whether a name has the form of a model on the hub, owner/name, and not of a file."""
    return HUB_ID.fullmatch(name) is not None and not name.endswith(FILE_SUFFIXES)
