"""Which parameter learns how.

Norm and clipping of all gradients together, also where they are spread over processes.

Which parameter learns how: NorMuon for the matrices inside a network, AdamW for all else.

The learning rate is an argument of every step and never stored, so a resumed run cannot disagree
with its schedule. All that is stored are tensors by the names of their parameters and counts.
"""

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.distributed.tensor import DTensor
from torch.optim import AdamW, Optimizer

from veca.backbone.cores import AnyCoreStep, AttentionCoreStep
from veca.backbone.model import VECA, LocalMixing, PatchEmbedding
from veca.runtime.device import ResolvedPrecision
from veca.train.muon import NorMuon, NorMuonConfig, PolarConfig
from veca.train.parallel import sharded_like, whole


def gradient_norm(parameters: Iterable[nn.Parameter]) -> Float[Tensor, ""]:
    """Length of all gradients as one vector; not finite if any number in them is not.

    A collective where parameters are sharded; every process gets the same number.
    """
    return whole(torch.nn.utils.get_total_norm(_gradients(parameters)))


def clip_gradients(parameters: Iterable[nn.Parameter], norm: float | Tensor, limit: float) -> None:
    """Scale gradients of this norm down to `limit`; those within it stay as they are.

    NorMuon and AdamW divide by the size of the gradient, so clipping only changes how much a step
    weighs beside those before it. A norm that is not finite has no remedy here: skip the step.
    """
    if norm > limit:
        for gradient in _gradients(parameters):
            gradient.mul_(limit / norm)


def _gradients(parameters: Iterable[nn.Parameter]) -> list[Tensor]:
    """The gradients of those parameters that have one."""
    return [parameter.grad for parameter in parameters if parameter.grad is not None]


MatrixOptimizer = Literal["normuon", "adamw"]
"""What steps the matrices; 'adamw' steps them as it steps everything else, at their own rate."""


@dataclass(frozen=True, kw_only=True)
class OptimizerConfig:
    """Constants of both optimizers; the defaults are the paper's first stage."""

    matrices: MatrixOptimizer = "normuon"
    """What steps the matrices inside the network."""

    weight_decay: float = 0.015
    """Share of a weight that one step at rate one takes away."""

    decays: Literal["all", "matrices"] = "all"
    """'matrices' spares biases, norms, cores and their points; the paper decays all parameters."""

    momentum: float = 0.95
    """Share of NorMuon's momentum that is kept at each step."""

    beta2: float = 0.95
    """Share of NorMuon's row moments that is kept at each step."""

    betas: tuple[float, float] = (0.9, 0.999)
    """Shares of AdamW's first and second moments that are kept at each step."""

    eps: float = 1e-8
    """Keeps AdamW from dividing by zero."""

    matrix_rate: float = 1.0
    """Factor on the schedule's rate for the matrices inside the network, whatever steps them."""

    other_rate: float = 1.0
    """Factor on the schedule's rate for all else."""

    core_step_rate: float = 1.0
    """Further factor, times `other_rate`, for what moves the cores: the steps of AdamW have one
    size, that of a weight or not."""

    def __post_init__(self) -> None:
        """Refuse constants with which nothing is learned."""
        for name in ("weight_decay", "eps", "matrix_rate", "other_rate", "core_step_rate"):
            if not 0 <= getattr(self, name) < math.inf:
                raise ValueError(
                    f"{name}={getattr(self, name)} is not usable; it must be finite and 0 or more."
                )
        shares = {"momentum": self.momentum, "beta2": self.beta2}
        shares |= {f"betas[{index}]": share for index, share in enumerate(self.betas)}
        for name, share in shares.items():
            if not 0 <= share < 1:
                raise ValueError(f"{name}={share} is not usable; use 0 or more and less than 1.")


class ParameterSplit(NamedTuple):
    """Parameters by name."""

    matrices: dict[str, nn.Parameter]
    """For NorMuon, unless AdamW is asked to step them too."""

    others: dict[str, nn.Parameter]
    """For AdamW."""


def split_parameters(student: nn.Module) -> ParameterSplit:
    """Split what is trained by the paper's rule.

    Matrices are the weights of linear layers, adaptors included, except those that lead out of the
    network: the heads that move cores, and the last block's contraction.
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
    split = ParameterSplit({}, {})
    for name, parameter in student.named_parameters():
        if parameter.requires_grad:
            inner = parameter in weights and parameter not in outward
            (split.matrices if inner else split.others)[name] = parameter
    return split


class Optimizers:
    """Both optimizers of a student as one."""

    def __init__(
        self, student: nn.Module, config: OptimizerConfig, precision: ResolvedPrecision = "fp32"
    ) -> None:
        """Make them for parameters as they are now: shard a student before, not after.

        `precision` is that of NorMuon's matrix products; all that is remembered stays fp32.
        """
        self.config = config
        matrices, others = split_parameters(student)
        self._named = matrices | others
        self._optimizers: list[tuple[Optimizer, float]] = []
        if matrices and config.matrices == "normuon":
            self._optimizers.append((_normuon(matrices, config, precision), config.matrix_rate))
        elif matrices:
            self._optimizers.append((_adamw(student, matrices, config), config.matrix_rate))
        if others:
            self._optimizers.append((_adamw(student, others, config), config.other_rate))
        self._owner = {
            parameter: optimizer
            for optimizer, _ in self._optimizers
            for group in optimizer.param_groups
            for parameter in group["params"]
        }

    def step(self, learning_rate: float) -> None:
        """Move every parameter that has a gradient."""
        for optimizer, factor in self._optimizers:
            for group in optimizer.param_groups:
                group["lr"] = learning_rate * factor * group.get("factor", 1.0)
            optimizer.step()

    def zero_grad(self) -> None:
        """Forget all gradients: None, not zero, so that unused cores stay as they are."""
        for parameter in self._named.values():
            parameter.grad = None

    def tensors(self) -> dict[str, Tensor]:
        """What the optimizers remember, whole, as '<parameter>/<what>'; every process must ask.

        Tensors that are not sharded are the live ones: the next step changes them.
        """
        return {
            f"{name}/{kind}": whole(tensor)
            for name, parameter in self._named.items()
            for kind, tensor in self._state(parameter).items()
            if kind != "step"
        }

    def facts(self) -> dict[str, int]:
        """Steps that AdamW has taken with each parameter, as '<parameter>/step'."""
        return {
            f"{name}/step": int(self._state(parameter)["step"])
            for name, parameter in self._named.items()
            if "step" in self._state(parameter)
        }

    def load(self, tensors: Mapping[str, Tensor], facts: Mapping[str, int]) -> None:
        """Go on as the optimizers would have that `tensors` and `facts` were taken from.

        A parameter of which nothing was remembered has never had a gradient.
        """
        stored: dict[str, dict[str, Any]] = {}
        for key, value in (*tensors.items(), *facts.items()):
            name, _, kind = key.rpartition("/")
            stored.setdefault(name, {})[kind] = value
        self._check(stored)
        for optimizer, _ in self._optimizers:
            optimizer.state.clear()
        for name, state in stored.items():
            parameter = self._named[name]
            self._owner[parameter].state[parameter] = {
                kind: _restored(kind, value, parameter) for kind, value in state.items()
            }

    def _state(self, parameter: nn.Parameter) -> dict[str, Tensor]:
        """What is remembered of a parameter; looking does not make an entry."""
        return self._owner[parameter].state.get(parameter, {})

    def _check(self, stored: Mapping[str, Mapping[str, Any]]) -> None:
        """Refuse what other optimizers or another student remembered."""
        for name, state in stored.items():
            parameter = self._named.get(name)
            if parameter is None:
                raise ValueError(
                    f"the stored state of {name!r} belongs to no parameter of this student; "
                    "resume with the configuration that it was stored with."
                )
            shapes = self._shapes(parameter)
            found = {kind: tuple(torch.as_tensor(value).shape) for kind, value in state.items()}
            if found != shapes:
                raise ValueError(
                    f"the stored state of {name!r} has the shapes {found}, but this student's "
                    f"optimizer has {shapes}; resume with the configuration it was stored with."
                )

    def _shapes(self, parameter: nn.Parameter) -> dict[str, tuple[int, ...]]:
        """What is remembered of a parameter that has had a gradient."""
        shape = tuple(parameter.shape)
        if isinstance(self._owner[parameter], NorMuon):
            return {"momentum": shape, "row_moment": shape[:1]}
        return {"exp_avg": shape, "exp_avg_sq": shape, "step": ()}


def _normuon(
    matrices: Mapping[str, nn.Parameter], config: OptimizerConfig, precision: ResolvedPrecision
) -> NorMuon:
    """The optimizer of the matrices, all of which decay."""
    constants = NorMuonConfig(
        weight_decay=config.weight_decay,
        momentum=config.momentum,
        beta2=config.beta2,
        polar=PolarConfig(dtype=torch.bfloat16 if precision == "bf16" else torch.float32),
    )
    return NorMuon(matrices.values(), config=constants)


def _adamw(
    student: nn.Module, parameters: Mapping[str, nn.Parameter], config: OptimizerConfig
) -> AdamW:
    """The optimizer of all else, and of matrices if that is asked for."""
    decaying, moving = _decaying(student, config), _moving(student)
    groups: dict[tuple[float, float, bool], list[nn.Parameter]] = {}
    for parameter in parameters.values():
        decay = config.weight_decay if decaying is None or parameter in decaying else 0.0
        factor = config.core_step_rate if parameter in moving else 1.0
        # Sharded and plain tensors cannot be stepped in one call.
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


def _moving(student: nn.Module) -> set[nn.Parameter]:
    """What says how far the cores move."""
    steps = [module for module in student.modules() if isinstance(module, AnyCoreStep)]
    return {parameter for step in steps for parameter in step.parameters()}


def _decaying(student: nn.Module, config: OptimizerConfig) -> set[nn.Parameter] | None:
    """The weights of linear layers and convolutions; None means all parameters."""
    if config.decays == "all":
        return None
    modules = student.modules()
    weights = {
        id(found.weight)
        for found in modules
        if isinstance(found, nn.Linear | PatchEmbedding | LocalMixing)
    }
    return {parameter for parameter in student.parameters() if id(parameter) in weights}


def _restored(kind: str, value: Tensor | int, parameter: nn.Parameter) -> Tensor:
    """A stored value as the optimizer keeps it: copied, on its device, spread over processes."""
    if not isinstance(value, Tensor):  # the fused AdamW counts on the device
        return torch.tensor(float(value), device=parameter.device)
    copied = value.detach().to(parameter.device, parameter.dtype, copy=True)
    return copied if kind == "row_moment" else sharded_like(copied, parameter)
