"""The best answer that does not look at the image: what a student must beat to have learnt.

With U the mean unit target, m the mean target and E the mean squared channel of a target, the
expected loss of a constant c of D channels is

    image    1 - (c/|c|).U
    patches  1 - (c/|c|).U  +  error * ((|c|^2 - 2c.m)/D + E)

so moments are all one needs, for the minimum as well as for the loss on other images.
"""

import math
from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from veca.distill.losses import SHORTEST, LossConfig, Losses
from veca.distill.moments import Moments

SHORTEST_ANSWER = 2 * SHORTEST
"""As good as zero for the squared error, yet with a direction, which the cosine sees."""

ANGLES = 2001
"""Directions that each round of the search compares; a round narrows it a thousandfold."""

ROUNDS = 4


class Constants(NamedTuple):
    """One answer for every image."""

    image: Float[Tensor, " DI"]
    patches: Float[Tensor, " DP"]


def best_constants(image: Moments, patches: Moments, config: LossConfig) -> Constants:
    """The constants with the lowest loss on targets of these moments."""
    return Constants(image.unit_mean, _best_patch(patches, config.error))


def losses_of_constants(constants: Constants, image: Moments, patches: Moments) -> Losses:
    """Parts of the loss of constants on targets of these moments."""
    answer = constants.patches
    error = (answer.square() - 2 * answer * patches.mean).mean() + patches.mean_square
    return Losses(
        1 - _direction(constants.image) @ image.unit_mean,
        1 - _direction(answer) @ patches.unit_mean,
        error,
    )


def loss_of_constants(
    constants: Constants, image: Moments, patches: Moments, config: LossConfig
) -> float:
    """Loss of constants on targets of these moments."""
    return float(losses_of_constants(constants, image, patches).total(config))


def _best_patch(moments: Moments, error: float) -> Float[Tensor, " D"]:
    """The constant with the lowest patch loss.

    In direction d the best length is max(0, d.m), which leaves d.U + error * max(0, d.m)^2 / D to
    be made large. Only the components of d along U and m count, so d lies in their plane.
    """
    mean, unit_mean = moments.mean, moments.unit_mean
    basis = _plane(unit_mean, mean)
    along_units, along_mean = basis @ unit_mean, basis @ mean
    middle, width = 0.0, math.pi
    for _ in range(ROUNDS):
        angles = torch.linspace(middle - width, middle + width, ANGLES, dtype=torch.float64)
        directions = torch.stack((angles.cos(), angles.sin()), dim=1)
        lengths = (directions @ along_mean).clamp(min=0)
        gain = directions @ along_units + error * lengths.square() / len(mean)
        best = int(gain.argmax())
        middle, width = float(angles[best]), 2 * width / (ANGLES - 1)
    return max(float(lengths[best]), SHORTEST_ANSWER) * (directions[best] @ basis)


def _plane(first: Float[Tensor, " D"], second: Float[Tensor, " D"]) -> Float[Tensor, "2 D"]:
    """Two directions at right angles that span both vectors; zeros where they span less."""
    one = _direction(first)
    rest = second - (second @ one) * one
    rest = rest - (rest @ one) * one  # once more: what the first left over is rounding
    return torch.stack((one, _direction(rest)))


def _direction(vector: Float[Tensor, " D"]) -> Float[Tensor, " D"]:
    """A vector scaled to length one, as the loss does it."""
    return vector / vector.norm().clamp(min=SHORTEST)
