"""Linear classifiers trained by SGD on frozen features, one for each learning rate.

The classifiers see the same batches and start from the same weights, so that only the learning rate
makes a difference.
"""

import copy
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import NamedTuple

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int64
from torch import Tensor, nn

from veca.probe.metrics import Labels, correct, has_label, soft_targets
from veca.probe.protocols import LinearProtocol, train_val_split
from veca.probe.rows import ProbeError
from veca.runtime.device import seed_for

MAX_SCORES = 2**24
"""Scores that are computed at once in validation; 64 MiB."""


@dataclass(frozen=True, kw_only=True)
class LinearHead:
    """Scores of K classes from a feature of D numbers, in the precision of the weights."""

    weight: Float[Tensor, "K D"]
    bias: Float[Tensor, " K"]
    """Minus infinity for a class without training images, which is never predicted."""

    def scores(self, features: Float[Tensor, "N D"]) -> Float[Tensor, "N K"]:
        """Logits."""
        return torch.addmm(self.bias, features.to(self.weight), self.weight.T)

    def probabilities(self, features: Float[Tensor, "N D"]) -> Float[Tensor, "N K"]:
        """Softmax of the logits."""
        return self.scores(features).softmax(dim=1)


class Fit(NamedTuple):
    """A fitted classifier."""

    head: LinearHead
    chosen: dict[str, float]
    """Learning rate as the protocol lists it, and step; or C."""
    fitted_on: int
    """Images: without those held out, and those without a class."""


def train_linear_classifiers(  # noqa: PLR0913, PLR0917
    features: Float[Tensor, "R D"],
    labels: Labels,
    num_classes: int,
    protocol: LinearProtocol,
    seed: int,
    val: tuple[Tensor, Tensor] | None = None,
    *,
    device: torch.device | None = None,
    advance: Callable[[int], object] = lambda _: None,
) -> Fit:
    """Train a classifier for each learning rate, and choose one by the protocol's selection.

    Crop v of image i of N is row v * N + i of the features, which stay on their device. Images
    without a class are left out. `val` has features and labels to choose on; without it 'held-out'
    sets training images aside. `advance` is called with 1 after each step.
    """
    train = has_label(labels).cpu()
    if protocol.selection == "held-out" and val is None:
        fit_on, held_out = train_val_split(len(train), protocol.held_out_share, seed)
        num_crops, images = max(1, protocol.num_crops), train[held_out]
        rows = (torch.arange(num_crops)[:, None] * len(labels) + images).flatten()
        truth = labels[images.to(labels.device)].repeat(num_crops, *[1] * (labels.ndim - 1))
        val = features[rows.to(features.device)], truth  # all crops of these images
        train = train[fit_on]
    device, rates = device or features.device, protocol.learning_rates
    layers = initial_layers(features.shape[1], num_classes, protocol, seed).to(device)
    optimizer = torch.optim.SGD(
        [{"params": list(layer.parameters())} for layer in layers], momentum=protocol.momentum
    )
    best, best_accuracy = (layers[0], rates[0], protocol.steps), -1.0
    for step, (images, rows) in enumerate(_batches(train, len(labels), protocol, seed), start=1):
        for group, rate in zip(optimizer.param_groups, rates, strict=True):
            group["lr"] = cosine_lr(protocol, rate, step - 1)
        batch = features[rows.to(features.device)].to(device, torch.float32)
        targets = soft_targets(labels[images.to(labels.device)].to(device), num_classes)
        # A gradient step on the sum of the losses trains each classifier on its own.
        torch.stack([F.cross_entropy(layer(batch), targets) for layer in layers]).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
        if val is not None and step in protocol.validation_steps:
            for layer, rate in zip(layers, rates, strict=True):
                if (found := accuracy(head_of(layer), *val)) > best_accuracy:
                    best, best_accuracy = (copy.deepcopy(layer), rate, step), found
        advance(1)
    layer, rate, step = best
    head = head_of(layer)
    if not bool(head.weight.isfinite().all()):
        raise ProbeError(f"training diverged at the learning rate {rate:g}; use lower ones.")
    return Fit(head, {"rate": rate, "step": step}, len(train))


def initial_layers(
    width: int, num_classes: int, protocol: LinearProtocol, seed: int
) -> nn.ModuleList:
    """A layer for each learning rate, all with the same weights."""
    generator = torch.Generator().manual_seed(seed_for(seed, 0, "probe/linear/start"))
    weight = torch.randn(num_classes, width, generator=generator) * protocol.init_std
    layers = nn.ModuleList(nn.Linear(width, num_classes) for _ in protocol.learning_rates)
    for layer in layers:
        layer.load_state_dict({"weight": weight, "bias": torch.zeros(num_classes)})
    return layers


def head_of(layer: nn.Module) -> LinearHead:
    """The head with the current weights of a layer."""
    return LinearHead(**layer.state_dict())


def cosine_lr(protocol: LinearProtocol, learning_rate: float, step: int) -> float:
    """The learning rate of a step, counted from 0."""
    if protocol.scale_learning_rates:
        learning_rate *= protocol.batch / 256
    return learning_rate * (1 + math.cos(math.pi * step / protocol.steps)) / 2


def accuracy(head: LinearHead, features: Tensor, labels: Tensor) -> float:
    """Top-1 accuracy in percent, in bounded memory."""
    size = max(1, MAX_SCORES // len(head.bias))
    hits = 0
    for rows, truth in zip(features.split(size), labels.split(size), strict=True):
        hits += int(correct(head.scores(rows), truth.to(head.weight.device)).sum())
    return 100 * hits / len(has_label(labels))


def _batches(
    images: Int64[Tensor, " n"], count: int, protocol: LinearProtocol, seed: int
) -> Iterator[tuple[Int64[Tensor, " B"], Int64[Tensor, " B"]]]:
    """Images and their rows of features: a random crop of each image in every epoch."""
    order, crops = images[:0], images[:0]
    epoch = 0
    for _ in range(protocol.steps):
        while len(order) < protocol.batch:
            number = seed_for(seed, epoch, "probe/linear/order")
            generator = torch.Generator().manual_seed(number)
            shuffled = images[torch.randperm(len(images), generator=generator)]
            drawn = torch.randint(max(1, protocol.num_crops), (len(images),), generator=generator)
            order, crops = torch.cat((order, shuffled)), torch.cat((crops, drawn))
            epoch += 1
        batch, order = order[: protocol.batch], order[protocol.batch :]
        crop, crops = crops[: protocol.batch], crops[protocol.batch :]
        yield batch, crop * count + batch
