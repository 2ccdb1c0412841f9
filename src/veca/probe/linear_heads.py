"""Linear heads of one width that train together: one for each pair of a feature and a rate."""

import torch
from jaxtyping import Float
from torch import Tensor

from veca.probe.class_metrics import correct
from veca.probe.heads import LinearHead
from veca.probe.labels import Labels, labelled_rows

SCORES = 2**24
"""Scores that are computed at once to judge heads; 64 MiB."""


class HeadStack:
    """G features times R heads of K classes, all starting from the same weights (K, D).

    Trained by SGD with momentum as torch.optim.SGD does it, by the gradient written out: the heads
    of a feature are one matrix (R K, D), and the features one batch of matrices.
    """

    def __init__(self, start: Float[Tensor, "K D"], num_features: int, num_rates: int) -> None:
        self.num_classes, self.width = start.shape
        self.num_features, self.num_rates = num_features, num_rates
        self.weight: Float[Tensor, "G RK D"] = start.repeat(num_features, num_rates, 1)
        self.bias: Float[Tensor, "G 1 RK"] = self.weight[:, None, :, 0].clone().zero_()
        self._weight_velocity = torch.zeros_like(self.weight)
        self._bias_velocity = torch.zeros_like(self.bias)

    def step(
        self,
        features: Float[Tensor, "G B D"],
        targets: Float[Tensor, "B K"],
        rates: Float[Tensor, " R"],
        *,
        momentum: float,
        weight_decay: float,
    ) -> None:
        """Go one step down the mean cross-entropy of a batch, each head at its own rate."""
        shape = self.num_features, len(targets), self.num_rates, self.num_classes
        logits = torch.baddbmm(self.bias, features, self.weight.transpose(1, 2))
        error = logits.view(shape).softmax(dim=-1).sub_(targets[:, None]).div_(len(targets))
        error = error.view_as(logits)
        change = torch.bmm(error.transpose(1, 2), features)
        if weight_decay:
            change = change.add_(self.weight, alpha=weight_decay)
        self._weight_velocity.mul_(momentum).add_(change)
        self._bias_velocity.mul_(momentum).add_(error.sum(dim=1, keepdim=True))
        by_row = -rates.repeat_interleave(self.num_classes)
        self.weight.addcmul_(self._weight_velocity, by_row[:, None])
        self.bias.addcmul_(self._bias_velocity, by_row)

    def accuracies(self, feature: int, rows: Float[Tensor, "M D"], labels: Labels) -> list[float]:
        """Percent of the pictures that each head of a feature tells right, by rate."""
        weight, bias = self.weight[feature], self.bias[feature]
        right = [0] * self.num_rates
        size = max(1, SCORES // len(weight))
        for start in range(0, len(rows), size):
            truth = labels[start : start + size].to(weight.device)
            scores = torch.addmm(bias, rows[start : start + size].to(weight), weight.T)
            for rate, part in enumerate(scores.view(len(truth), self.num_rates, -1).unbind(1)):
                right[rate] += int(correct(part, truth).sum())
        return [100 * count / len(labelled_rows(labels)) for count in right]

    def head(self, feature: int, rate: int) -> LinearHead:
        """A copy of one head as it stands."""
        rows = slice(rate * self.num_classes, (rate + 1) * self.num_classes)
        return LinearHead(
            weight=self.weight[feature, rows].clone(), bias=self.bias[feature, 0, rows].clone()
        )
