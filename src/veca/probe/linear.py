"""Linear classifiers trained by SGD on frozen features, one for each learning rate.

The classifiers see the same batches and start from the same weights, so that only the learning rate
makes a difference.
"""

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int64
from torch import Tensor, nn

from veca.probe.metrics import Labels, correct, has_label, soft_targets
from veca.probe.protocols import LinearProtocol, ProtocolError, train_val_split
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


@dataclass(frozen=True, kw_only=True)
class LinearFit:
    """The chosen classifier."""

    head: LinearHead
    learning_rate: float
    """As the protocol lists it."""
    step: int
    accuracy: float | None
    """On the validation images, in percent; None if nothing is chosen."""
    fitted_on: int
    """Images: without those held out, and those without a class."""


class LinearClassifiers(nn.Module):
    """One linear layer for each learning rate, all with the same initial weights."""

    def __init__(self, width: int, num_classes: int, protocol: LinearProtocol, seed: int) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(seed_for(seed, 0, "probe/linear/start"))
        weight = torch.randn(num_classes, width, generator=generator) * protocol.init_std
        self.layers = nn.ModuleList(nn.Linear(width, num_classes) for _ in protocol.learning_rates)
        for layer in self.layers:
            layer.load_state_dict({"weight": weight, "bias": torch.zeros(num_classes)})

    def loss(self, features: Float[Tensor, "B D"], labels: Labels) -> Float[Tensor, ""]:
        """The sum of the losses; a gradient step on it trains each classifier on its own."""
        losses = []
        for layer in self.layers:
            logits = layer(features)
            targets = soft_targets(labels, logits.shape[1])
            losses.append(F.cross_entropy(logits, targets))
        return torch.stack(losses).sum()

    @torch.no_grad()
    def accuracies(self, features: Float[Tensor, "M D"], labels: Labels) -> list[float]:
        """Top-1 accuracy of each classifier in percent."""
        return [_accuracy(self.head(index), features, labels) for index in range(len(self.layers))]

    def head(self, index: int) -> LinearHead:
        """A copy of one classifier."""
        state = self.layers[index].state_dict()
        return LinearHead(weight=state["weight"].clone(), bias=state["bias"].clone())


def train_linear_classifiers(  # noqa: PLR0913
    features: Float[Tensor, "R D"],
    labels: Labels,
    protocol: LinearProtocol,
    seed: int,
    *,
    num_classes: int,
    val: tuple[Tensor, Tensor] | None = None,
    device: torch.device | None = None,
    advance: Callable[[int], object] = lambda _: None,
) -> LinearFit:
    """Train a classifier for each learning rate, and choose one by the protocol's selection.

    Args:
        features: crop v of image i of N is row v * N + i; they stay on their device.
        labels: of the N images; those without a class are left out.
        protocol: learning rates, schedule, and selection.
        seed: of initial weights, batches and held-out images.
        num_classes: K.
        val: features and labels to choose on; without it 'held-out' sets training images aside.
        device: to train on.
        advance: is called with 1 after each step.
    """
    train = has_label(labels).cpu()
    if protocol.selection == "held-out" and val is None:
        split = train_val_split(len(train), protocol.held_out_share, seed)
        val = _all_crops(features, labels, train[split.val], protocol.num_crops)
        train = train[split.train]
    device = device or features.device
    classifiers = LinearClassifiers(features.shape[1], num_classes, protocol, seed).to(device)
    optimizer = torch.optim.SGD(
        [{"params": list(layer.parameters())} for layer in classifiers.layers],
        momentum=protocol.momentum,
    )
    best: LinearFit | None = None
    for step, (images, rows) in enumerate(_batches(train, len(labels), protocol, seed)):
        for group, rate in zip(optimizer.param_groups, protocol.learning_rates, strict=True):
            group["lr"] = cosine_lr(protocol, rate, step)
        batch = features[rows.to(features.device)].to(device, torch.float32)
        classifiers.loss(batch, labels[images.to(labels.device)].to(device)).backward()
        optimizer.step()
        optimizer.zero_grad()
        if val is not None and step + 1 in protocol.validation_steps:
            accuracies = classifiers.accuracies(*val)
            if best is None or best.accuracy is None or max(accuracies) > best.accuracy:
                best = _fit(classifiers, accuracies, protocol, step + 1, len(train))
        advance(1)
    best = best or _fit(classifiers, None, protocol, protocol.steps, len(train))
    if not bool(best.head.weight.isfinite().all()):
        raise ProtocolError(
            f"training diverged at the learning rate {best.learning_rate:g}; use lower ones."
        )
    return best


def cosine_lr(protocol: LinearProtocol, learning_rate: float, step: int) -> float:
    """The learning rate of a step, counted from 0."""
    if protocol.scale_learning_rates:
        learning_rate *= protocol.batch / 256
    return learning_rate * (1 + math.cos(math.pi * step / protocol.steps)) / 2


def _fit(
    classifiers: LinearClassifiers,
    accuracies: list[float] | None,
    protocol: LinearProtocol,
    step: int,
    fitted_on: int,
) -> LinearFit:
    """The best classifier after a step, of equals the one with the first learning rate."""
    index = 0 if accuracies is None else accuracies.index(max(accuracies))
    return LinearFit(
        head=classifiers.head(index),
        learning_rate=protocol.learning_rates[index],
        step=step,
        accuracy=None if accuracies is None else accuracies[index],
        fitted_on=fitted_on,
    )


def _accuracy(head: LinearHead, features: Tensor, labels: Tensor) -> float:
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


def _all_crops(
    features: Tensor, labels: Tensor, images: Tensor, num_crops: int
) -> tuple[Tensor, Tensor]:
    """Features and labels of all crops of some images."""
    num_crops = max(1, num_crops)
    rows = (torch.arange(num_crops)[:, None] * len(labels) + images).flatten()
    truth = labels[images.to(labels.device)].repeat(num_crops, *[1] * (labels.ndim - 1))
    return features[rows.to(features.device)], truth
