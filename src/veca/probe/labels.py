"""Labels as probes use them: numbers, or booleans where a picture may have several classes."""

import torch
from jaxtyping import Bool, Float, Int, Int64
from torch import Tensor

Labels = Int[Tensor, " N"] | Bool[Tensor, "N K"]
"""The class of each picture, or whether it has each class."""


class LabelError(ValueError):
    """Labels that no head can be fitted to or judged by."""


def check_labels(labels: Labels, num_classes: int) -> None:
    """Refuse labels of other classes than 0 to `num_classes` - 1."""
    if labels.dtype == torch.bool:
        if labels.shape[1] != num_classes:
            raise LabelError(
                f"the labels tell of {labels.shape[1]} classes, but there are {num_classes}; give "
                "one column for each class."
            )
    elif len(labels) and not 0 <= (least := int(labels.min())) <= int(labels.max()) < num_classes:
        raise LabelError(
            f"the labels reach from {least} to {int(labels.max())}, but the {num_classes} classes "
            f"are 0 to {num_classes - 1}; leave pictures of other classes out."
        )


def labelled_rows(labels: Labels) -> Int64[Tensor, " n"]:
    """The pictures that have at least one class; the others neither teach nor judge."""
    if labels.dtype == torch.bool:
        return labels.any(dim=1).nonzero().flatten()
    return torch.arange(len(labels), device=labels.device)


def target_shares(
    labels: Labels, num_classes: int, dtype: torch.dtype = torch.float32
) -> Float[Tensor, "N {num_classes}"]:
    """What a head should tell: 1 shared evenly among the classes that a picture has."""
    if labels.dtype == torch.bool:
        return labels.to(dtype) / labels.sum(dim=1, keepdim=True).clamp(min=1)
    one_hot = torch.zeros(len(labels), num_classes, dtype=dtype, device=labels.device)
    return one_hot.scatter_(1, labels.long()[:, None], 1.0)
