"""Linear classifiers trained by SGD.

Linear heads of one width that train together: one for each pair of a feature and a rate.

Linear probes by SGD: heads for all settings, features and rates train together.

They see the same pictures in the same order and start from the same weights, so that chance makes
no difference between them, and what becomes of one does not depend on the others. The loss of a
head is the mean cross-entropy over its batch. All is in single precision.
"""

from collections.abc import Callable, Hashable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeVar

import torch
from jaxtyping import Float, Int64
from torch import Tensor

from veca.probe.heads import LinearHead
from veca.probe.held_out import hold_out
from veca.probe.metrics import Labels, check_labels, correct, labeled_rows, target_shares
from veca.probe.protocols import LinearProtocol, ProtocolError
from veca.runtime.device import seed_for

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
        return [100 * count / len(labeled_rows(labels)) for count in right]

    def head(self, feature: int, rate: int) -> LinearHead:
        """A copy of one head as it stands."""
        rows = slice(rate * self.num_classes, (rate + 1) * self.num_classes)
        return LinearHead(
            weight=self.weight[feature, rows].clone(), bias=self.bias[feature, 0, rows].clone()
        )


Key = TypeVar("Key", bound=Hashable)


class Judges(NamedTuple):
    """Pictures that heads are chosen by."""

    features: Mapping[Any, Tensor]
    """(M, D) for each key."""

    labels: Tensor
    """Numbers (M), or booleans (M, classes)."""


@dataclass(frozen=True, kw_only=True)
class LinearFit:
    """The chosen head of one feature."""

    head: LinearHead

    rate: float
    """With which it was trained, as the protocol lists it."""

    step: int
    """After how many steps it was taken."""

    judged: dict[float, dict[int, float]]
    """Percent of the judges' pictures right, by rate and step; empty where nothing is chosen."""

    fitted_on: int
    """Pictures that it was trained on: those put aside, or without a class, are not among them."""


class _Kept(NamedTuple):
    """The best head so far, as `LinearFit` tells it."""

    head: LinearHead
    rate: float
    step: int


class _Batch(NamedTuple):
    """What one step sees."""

    pictures: Int64[Tensor, " B"]
    """Numbers of pictures, for their labels."""

    rows: Int64[Tensor, " B"]
    """Rows of features: a view of each."""


def fit_linear(  # noqa: PLR0913 - what follows the star is seldom given
    features: Mapping[Key, Float[Tensor, "R _"]],
    labels: Labels,
    protocol: LinearProtocol,
    seed: int,
    *,
    num_classes: int,
    judges: Judges | None = None,
    pictures: Int64[Tensor, " n"] | None = None,
    device: torch.device | None = None,
    advance: Callable[[int], object] | None = None,
) -> dict[Key, LinearFit]:
    """Train heads for every key and rate together; return the chosen head of each key.

    A key is whatever tells features apart, such as (setting, variant); widths may differ. With V
    views of N pictures, row v * N + i is view v of picture i. Features may be of any precision and
    stay where they are; batches are computed on `device`, or where the features lie.

    The selections 'test' and 'test-best-step' need the reported set as `judges`. 'held-out' puts
    training pictures aside and judges by all their views; to judge by views of the middle, or by a
    set's own part, say what to train on and give the judges:

        kept, aside = hold_out(len(labels), protocol.held_out_share, seed)
        judges = Judges({key: middle[key][aside] for key in middle}, labels[aside])
        fits = fit_linear(
            views, labels, protocol, seed, num_classes=37, judges=judges, pictures=kept
        )
        found = metrics(fits[key].head.scores(test[key]), test_labels)

    Pictures without any class are left out. `advance` hears of each step.
    """
    _check(features, labels, num_classes, protocol)
    trained = labeled_rows(labels).cpu()
    if pictures is not None:
        trained = pictures.cpu()[torch.isin(pictures.cpu(), trained)]
    if protocol.selection == "held-out" and judges is None:
        trained, judges = _put_aside(features, labels, trained, protocol, seed)
    _check_judges(features, judges, protocol)
    if not len(trained):
        raise ProtocolError("no picture to train on has a class; give some that have.")
    run = _Run(features, num_classes, protocol, seed, device)
    for step, batch in enumerate(_batches(trained, len(labels), protocol, seed)):
        run.step(step, batch.rows, labels[batch.pictures.to(labels.device)])
        if step + 1 in protocol.judged_steps and judges is not None:
            run.judge(step + 1, judges)
        if advance is not None:
            advance(1)
    return run.chosen(len(trained))


class _Run:
    """Heads in training, those of equally wide features in one stack."""

    def __init__(
        self,
        features: Mapping[Any, Tensor],
        num_classes: int,
        protocol: LinearProtocol,
        seed: int,
        device: torch.device | None,
    ) -> None:
        self.features, self.num_classes, self.protocol = features, num_classes, protocol
        self.kept: dict[Any, _Kept] = {}
        self.judged: dict[Any, dict[float, dict[int, float]]] = {
            key: {rate: {} for rate in protocol.rates} for key in features
        }
        self.groups: list[tuple[list[Any], HeadStack]] = []
        for width in sorted({feature.shape[1] for feature in features.values()}):
            keys = [key for key, feature in features.items() if feature.shape[1] == width]
            generator = torch.Generator().manual_seed(seed_for(seed, 0, "probe/linear/start"))
            start = torch.randn(num_classes, width, generator=generator) * protocol.init_std
            start = start.to(device or features[keys[0]].device)
            self.groups.append((keys, HeadStack(start, len(keys), len(protocol.rates))))

    def step(self, step: int, rows: Int64[Tensor, " B"], labels: Labels) -> None:
        """Train all heads on one batch."""
        for keys, stack in self.groups:
            parts = [self.features[key][rows.to(self.features[key].device)] for key in keys]
            batch = torch.stack([part.to(stack.weight) for part in parts])
            rates = [self.protocol.rate_at(rate, step) for rate in self.protocol.rates]
            stack.step(
                batch,
                target_shares(labels, self.num_classes).to(stack.weight),
                torch.tensor(rates).to(stack.weight),
                momentum=self.protocol.momentum,
                weight_decay=self.protocol.weight_decay,
            )

    def judge(self, step: int, judges: Judges) -> None:
        """Keep of each key the best head so far; of equals the first."""
        for keys, stack in self.groups:
            for number, key in enumerate(keys):
                found = stack.accuracies(number, judges.features[key], judges.labels)
                known = self.judged[key]
                highest = max(
                    (max(kept.values(), default=-1) for kept in known.values()), default=-1
                )
                for rate, accuracy in zip(self.protocol.rates, found, strict=True):
                    known[rate][step] = accuracy
                if max(found) > highest:
                    self._keep(key, stack, (number, found.index(max(found))), step)

    def chosen(self, fitted_on: int) -> dict[Any, LinearFit]:
        """The head of each key: the best one, or the last where nobody judges."""
        for keys, stack in self.groups if self.protocol.selection == "none" else ():
            for number, key in enumerate(keys):
                self._keep(key, stack, (number, 0), self.protocol.steps)
        for key, (head, rate, _) in self.kept.items():
            if not bool(head.weight.isfinite().all()):
                raise ProtocolError(
                    f"the head of {key} has left all bounds with the rate {rate:g}, as a rate "
                    "too high for such features does; use lower rates."
                )
        return {
            key: LinearFit(
                **self.kept[key]._asdict(),
                judged=self.judged[key] if self.protocol.selection != "none" else {},
                fitted_on=fitted_on,
            )
            for key in self.features
        }

    def _keep(self, key: Any, stack: HeadStack, place: tuple[int, int], step: int) -> None:  # noqa: ANN401 - a key of the caller's
        """Note a head as the chosen one."""
        self.kept[key] = _Kept(stack.head(*place), self.protocol.rates[place[1]], step)


def _batches(
    pictures: Int64[Tensor, " n"], count: int, protocol: LinearProtocol, seed: int
) -> Iterator[_Batch]:
    """A batch for each step, from one shuffle of all pictures after the other."""
    order, views = pictures[:0], pictures[:0]
    shuffles = 0
    for _ in range(protocol.steps):
        while len(order) < protocol.batch:
            number = seed_for(seed, shuffles, "probe/linear/order")
            generator = torch.Generator().manual_seed(number)
            shuffled = pictures[torch.randperm(len(pictures), generator=generator)]
            drawn = torch.randint(max(1, protocol.views), (len(pictures),), generator=generator)
            order, views = torch.cat((order, shuffled)), torch.cat((views, drawn))
            shuffles += 1
        now, order = order[: protocol.batch], order[protocol.batch :]
        view, views = views[: protocol.batch], views[protocol.batch :]
        yield _Batch(now, view * count + now)


def _put_aside(
    features: Mapping[Any, Tensor],
    labels: Tensor,
    pictures: Tensor,
    protocol: LinearProtocol,
    seed: int,
) -> tuple[Tensor, Judges]:
    """The pictures to train on, and the others, in all their views, to judge by."""
    parts = hold_out(len(pictures), protocol.held_out_share, seed)
    aside, views = pictures[parts.held_out], max(1, protocol.views)
    rows = (torch.arange(views)[:, None] * len(labels) + aside).flatten()
    judges = {key: feature[rows.to(feature.device)] for key, feature in features.items()}
    return pictures[parts.kept], Judges(
        judges, labels[aside.to(labels.device)].repeat(views, *[1] * (labels.ndim - 1))
    )


def _check(
    features: Mapping[Any, Tensor], labels: Tensor, num_classes: int, protocol: LinearProtocol
) -> None:
    """Refuse features that do not fit their labels."""
    check_labels(labels, num_classes)
    expected = len(labels) * max(1, protocol.views)
    wrong = [key for key, feature in features.items() if len(feature) != expected]
    if wrong:
        raise ProtocolError(
            f"the feature of {wrong[0]} has {len(features[wrong[0]])} rows, but {len(labels)} "
            f"labels and views={protocol.views} make {expected}; give a row for each view."
        )


def _check_judges(
    features: Mapping[Any, Tensor], judges: Judges | None, protocol: LinearProtocol
) -> None:
    """Refuse a choice without anything to choose by."""
    if judges is None and protocol.selection != "none":
        raise ProtocolError(
            f"the selection {protocol.selection!r} of {protocol.name!r} needs the pictures to "
            "choose by; give judges."
        )
    if judges is not None and (missing := [key for key in features if key not in judges.features]):
        raise ProtocolError(f"the judges have no feature of {missing[0]}; give one for each key.")
    if judges is not None and not len(labeled_rows(judges.labels)):
        raise ProtocolError("no picture to choose by has a class; give some that have.")
