"""Toy sets for logistic regression, and its objective written down once more, from features."""

import torch
from torch import Tensor

from veca.probe.heads import LinearHead
from veca.probe.metrics import target_shares


def blobs(rows: int, width: int, classes: int, spread: float = 1.0) -> tuple[Tensor, Tensor]:
    """Clouds that overlap, off the origin and stretched a thousandfold along some axes."""
    labels = torch.arange(rows) % classes
    centers = torch.randn(classes, width, dtype=torch.float64)
    features = centers[labels] + spread * torch.randn(rows, width, dtype=torch.float64)
    return features * torch.logspace(-2, 1, width, dtype=torch.float64) + 5, labels


def objective(head: LinearHead, x: Tensor, y: Tensor, strength: float) -> tuple[float, float]:
    """Summed cross-entropy + squared weights / (2 C), and the length of its gradient."""
    seen = head.bias.isfinite()
    weight = head.weight[seen].clone().requires_grad_()
    bias = head.bias[seen].clone().requires_grad_()
    targets = target_shares(y, len(head.bias), torch.float64)[:, seen]
    logits = x.double() @ weight.T + bias
    factor = 2 if len(weight) == 2 else 1  # two rows of half the weight stand for one
    value = -(targets * logits.log_softmax(dim=1)).sum()
    value = value + factor * weight.square().sum() / (2 * strength)
    found = torch.autograd.grad(value, (weight, bias))
    return float(value.detach()), float(torch.cat([each.flatten() for each in found]).norm())
