"""A moving average of the student's weights: smoother than the weights, and what is published."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import torch
from torch import Tensor

from veca.distill.parallel import copy_whole
from veca.distill.sharding import whole
from veca.distill.student import Student


class MovingAverage:
    """Exponential average over steps; a young one forgets faster, so the start does not linger."""

    def __init__(self, student: Student, decay: float) -> None:
        self.decay = decay
        self.updates = 0
        self._student = student
        self._values = {
            name: parameter.detach().clone() for name, parameter in student.named_parameters()
        }

    @torch.no_grad()
    def update(self) -> None:
        """Take in the weights after a step."""
        self.updates += 1
        decay = min(self.decay, (1 + self.updates) / (10 + self.updates))
        for name, parameter in self._student.named_parameters():
            self._values[name].lerp_(parameter, 1 - decay)

    @contextmanager
    def in_place(self) -> Iterator[None]:
        """The student with the averaged weights; its own come back."""
        kept = {name: value.detach().clone() for name, value in self._student.named_parameters()}
        try:
            self._put(self._values)
            yield
        finally:
            self._put(kept)

    def tensors(self) -> dict[str, Tensor]:
        """The average, whole; every process must ask."""
        return {name: whole(value).cpu() for name, value in self._values.items()}

    def load(self, tensors: Mapping[str, Tensor], updates: int) -> None:
        """Continue a stored average."""
        self.updates = updates
        for name, value in self._values.items():
            copy_whole(value, tensors[name])

    @torch.no_grad()
    def _put(self, values: Mapping[str, Tensor]) -> None:
        """Give the student these weights."""
        for name, parameter in self._student.named_parameters():
            parameter.copy_(values[name])
