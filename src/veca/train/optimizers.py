"""NorMuon for the matrices inside a network, AdamW for the other parameters; gradient clipping.

The learning rate is an argument of every step and never stored, so a resumed run cannot disagree
with its schedule.
"""

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Literal

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.distributed.tensor import DTensor
from torch.optim import AdamW, Optimizer

from veca.backbone.cores import AnyCoreStep, AttentionCoreStep
from veca.backbone.model import VECA, LocalMixing, PatchEmbedding
from veca.runtime.device import ResolvedPrecision
from veca.train.muon import NorMuon
from veca.train.parallel import full_tensor, shard_like


def gradient_norm(parameters: Iterable[nn.Parameter]) -> Float[Tensor, ""]:
    """Norm of all gradients together; not finite if any value in them is not.

    A collective where parameters are sharded; every rank gets the same number.
    """
    return full_tensor(torch.nn.utils.get_total_norm(_gradients(parameters)))


def clip_gradients(parameters: Iterable[nn.Parameter], norm: float | Tensor, limit: float) -> None:
    """Scale gradients whose norm exceeds `limit` down to it.

    NorMuon and AdamW divide by the size of the gradient, so clipping only changes the weight of a
    step relative to those before it. A non-finite norm cannot be clipped: skip the step.
    """
    if norm > limit:
        for gradient in _gradients(parameters):
            gradient.mul_(limit / norm)


def _gradients(parameters: Iterable[nn.Parameter]) -> list[Tensor]:
    """Gradients, where there are any."""
    return [parameter.grad for parameter in parameters if parameter.grad is not None]


@dataclass(frozen=True, kw_only=True)
class OptimizerConfig:
    """Hyperparameters of both optimizers; the defaults are the paper's first stage."""

    weight_decay: float = 0.015
    """Decoupled weight decay, times the learning rate."""

    decays: Literal["all", "matrices"] = "all"
    """'matrices' excludes biases, norms, cores and their points; the paper decays everything."""

    momentum: float = 0.95
    """Momentum of NorMuon."""

    beta2: float = 0.95
    """Decay of NorMuon's row moments."""

    betas: tuple[float, float] = (0.9, 0.999)
    """Decay of AdamW's first and second moments."""

    eps: float = 1e-8
    """Added to AdamW's denominator."""

    other_rate: float = 1.0
    """Factor on the learning rate of all parameters but the matrices inside the network."""

    core_step_rate: float = 1.0
    """Further factor, times `other_rate`, for the layers that move the cores: the size of an AdamW
    step does not depend on the size of the weight."""

    def __post_init__(self) -> None:
        """Check ranges."""
        for name in ("weight_decay", "eps", "other_rate", "core_step_rate"):
            if not 0 <= getattr(self, name) < math.inf:
                raise ValueError(
                    f"{name}={getattr(self, name)} is invalid: it must be finite and >= 0."
                )
        shares = {"momentum": self.momentum, "beta2": self.beta2}
        shares |= {f"betas[{index}]": share for index, share in enumerate(self.betas)}
        for name, share in shares.items():
            if not 0 <= share < 1:
                raise ValueError(f"{name}={share} is invalid: it must be in [0, 1).")


Parameters = dict[str, nn.Parameter]
"""By name."""


def split_parameters(student: nn.Module) -> tuple[Parameters, Parameters]:
    """Matrices inside the network, and the other parameters.

    By the paper's rule, matrices are the weights of linear layers, adaptors included, except output
    layers: the heads that move cores, and the last block's contraction.
    """
    weights, outward = set(), set()
    for module in student.modules():
        if isinstance(module, nn.Linear):
            weights.add(module.weight)
        elif isinstance(module, AnyCoreStep) and not isinstance(module, AttentionCoreStep):
            outward.add(module.head.weight)
        elif isinstance(module, VECA):
            last = module.block_of(module.config.layers - 1)
            outward.add(last.feedforward.contract.weight)
    matrices: Parameters = {}
    others: Parameters = {}
    for name, parameter in student.named_parameters():
        inner = parameter in weights and parameter not in outward
        (matrices if inner else others)[name] = parameter
    return matrices, others


class Optimizers:
    """Both optimizers of a student behind one interface."""

    def __init__(
        self, student: nn.Module, config: OptimizerConfig, precision: ResolvedPrecision = "fp32"
    ) -> None:
        """Create optimizers for a student, which must have been sharded before.

        `precision` is that of NorMuon's matrix products; optimizer state stays fp32.
        """
        matrices, others = split_parameters(student)
        self._named = matrices | others
        self._optimizers: list[tuple[Optimizer, float]] = []
        if matrices:
            normuon = NorMuon(
                matrices.values(),
                weight_decay=config.weight_decay,
                momentum=config.momentum,
                beta2=config.beta2,
                dtype=torch.bfloat16 if precision == "bf16" else torch.float32,
            )
            self._optimizers.append((normuon, 1.0))
        if others:
            self._optimizers.append((_adamw(student, others, config), config.other_rate))
        self._owner = {
            parameter: optimizer
            for optimizer, _ in self._optimizers
            for group in optimizer.param_groups
            for parameter in group["params"]
        }

    def step(self, learning_rate: float) -> None:
        """Update every parameter that has a gradient."""
        for optimizer, factor in self._optimizers:
            for group in optimizer.param_groups:
                group["lr"] = learning_rate * factor * group.get("factor", 1.0)
            optimizer.step()

    def zero_grad(self) -> None:
        """Set gradients to None, not zero, so that unused cores get no update."""
        for parameter in self._named.values():
            parameter.grad = None

    def state_dict(self) -> dict[str, Tensor]:
        """The state by '<parameter>/<kind>', whole; every rank must call this.

        Tensors that are not sharded are the live ones: the next step changes them. A parameter
        that never had a gradient has no state.
        """
        return {
            f"{name}/{kind}": full_tensor(tensor)
            for name, parameter in self._named.items()
            for kind, tensor in self._owner[parameter].state.get(parameter, {}).items()
        }

    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        """Continue from a stored state, which is copied and sharded as its parameter is."""
        for optimizer, _ in self._optimizers:
            optimizer.state.clear()
        for key, stored in state.items():
            name, _, kind = key.rpartition("/")
            parameter = self._named[name]
            tensor = stored.detach().to(parameter.device, torch.float32, copy=True)
            if tensor.shape == parameter.shape:  # a count, or a moment per row, is not sharded
                tensor = shard_like(tensor, parameter)
            self._owner[parameter].state[parameter][kind] = tensor


def _adamw(
    student: nn.Module, parameters: Mapping[str, nn.Parameter], config: OptimizerConfig
) -> AdamW:
    """AdamW with parameter groups by decay and rate."""
    kinds = (nn.Linear, PatchEmbedding, LocalMixing)
    decaying: set[Tensor] = set(student.parameters())
    if config.decays == "matrices":
        decaying = {module.weight for module in student.modules() if isinstance(module, kinds)}
    steps = [module for module in student.modules() if isinstance(module, AnyCoreStep)]
    moving = {parameter for step in steps for parameter in step.parameters()}
    groups: dict[tuple[float, float, bool], list[nn.Parameter]] = {}
    for parameter in parameters.values():
        decay = config.weight_decay if parameter in decaying else 0.0
        factor = config.core_step_rate if parameter in moving else 1.0
        # One fused call cannot mix sharded and plain tensors.
        groups.setdefault((decay, factor, isinstance(parameter, DTensor)), []).append(parameter)
    return AdamW(
        [
            {"params": members, "weight_decay": decay, "factor": factor}
            for (decay, factor, _), members in groups.items()
        ],
        lr=0.0,
        betas=config.betas,
        eps=config.eps,
        fused=True,
    )
