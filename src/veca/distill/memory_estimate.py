"""How much memory training takes, before anything is built.

Weights, gradients and optimizer state follow from the parameters. Activations are what autograd
keeps of the forward pass, counted here tensor by tensor as torch saves them; the tests hold the
formulas against what it really saves. Not counted: working memory of single operations, losses and
adaptors, the framework itself, and what an allocator does not give back (with glibc, checkpoints
save the system little unless MALLOC_MMAP_THRESHOLD_ is set, say to 65536).

Letters: N patches, C cores, T = C + N tokens, D width, H heads, K channels of a head.
"""

from dataclasses import dataclass
from typing import NamedTuple

from veca.backbone.config import BackboneConfig
from veca.backbone.cost import folds, parameters
from veca.runtime.device import ResolvedPrecision

SINGLE = 4
"""Bytes of a number in single precision, which weights and the residual stream always have."""


@dataclass(frozen=True, kw_only=True)
class MemoryEstimate:
    """Bytes of one process."""

    weights: int
    """In single precision; under autocast also their half-precision copies."""

    gradients: int
    """One for each weight."""

    optimizer_state: int
    """One or two numbers for each weight."""

    ema: int
    """The moving average of the weights."""

    activations: int
    """What the forward pass keeps for the backward pass."""

    teacher: int
    """The teachers' weights; they keep no activations."""

    @property
    def total(self) -> int:
        """All of it."""
        parts = (self.weights, self.gradients, self.optimizer_state, self.ema)
        return sum(parts) + self.activations + self.teacher

    def describe(self) -> list[str]:
        """A table, line by line; what takes nothing is left out."""
        rows = {
            "student weights": self.weights,
            "gradients": self.gradients,
            "optimizer state": self.optimizer_state,
            "moving average": self.ema,
            "saved activations": self.activations,
            "teacher weights": self.teacher,
        }
        named = [(name, f"{size / 1e6:,.0f} MB") for name, size in rows.items() if size]
        named.append(("together, at least", f"{self.total / 1e6:,.0f} MB"))
        letters = max(len(size) for _, size in named)
        return [f"{name:<20}{size:>{letters}}" for name, size in named]


def estimate(  # noqa: PLR0913 - each one changes the sum
    backbone: BackboneConfig,
    *,
    batch: int,
    resolution: int,
    optimizer: str,
    precision: ResolvedPrecision,
    checkpointing: bool,
    teacher_parameters: int,
    ema: bool,
) -> MemoryEstimate:
    """Memory of a training step of `batch` square images in one pass, at the costliest budget."""
    count = parameters(backbone)
    half_copies = 2 * _product_weights(backbone) if precision == "bf16" else 0
    full = backbone.attention == "full"
    budgets = (backbone.cores,) if full else backbone.budgets
    return MemoryEstimate(
        weights=SINGLE * count + half_copies,
        gradients=SINGLE * count,
        optimizer_state=_optimizer_state(backbone, optimizer),
        ema=SINGLE * count if ema else 0,
        activations=max(
            _activations(_Pass.of(backbone, resolution, cores, precision), batch, checkpointing)
            for cores in budgets
        ),
        teacher=SINGLE * teacher_parameters,
    )


def _product_weights(config: BackboneConfig) -> int:
    """Weights whose copies in half precision live until the backward pass.

    Those of matrix products, the first apart: pixels need no gradient.
    """
    width = config.width
    steps = 0 if config.attention == "full" else 2 * width * (config.layers - 1)
    return config.layers * (4 * width**2 + 3 * width * config.hidden) + steps


def _optimizer_state(config: BackboneConfig, optimizer: str) -> int:
    """AdamW keeps two numbers for a weight; NorMuon one for those of its matrices.

    Its matrices are those of the blocks without the last contraction. One number for each of
    their rows is too little to count.
    """
    if optimizer not in ("normuon", "adamw"):
        raise ValueError(f"optimizer={optimizer!r} is not known; use 'normuon' or 'adamw'.")
    width, hidden = config.width, config.hidden
    matrices = config.layers * (4 * width**2 + 3 * width * hidden) - width * hidden
    saved = matrices if optimizer == "normuon" else 0
    return SINGLE * (2 * parameters(config) - saved)


class _Pass(NamedTuple):
    """What decides how much one image leaves behind in one forward pass."""

    config: BackboneConfig
    patches: int
    cores: int
    number: int
    """Bytes of a number that a matrix product takes."""

    @classmethod
    def of(
        cls, config: BackboneConfig, resolution: int, cores: int, precision: ResolvedPrecision
    ) -> "_Pass":
        """A pass over square images."""
        patches = (resolution // config.patch_size) ** 2
        return cls(config, patches, cores, 2 if precision == "bf16" else SINGLE)

    @property
    def tokens(self) -> int:
        """T."""
        return self.patches + self.cores

    @property
    def folded(self) -> bool:
        """Whether attention runs in the folded form."""
        return folds(self.config, self.cores)

    @property
    def turns(self) -> int:
        """Tables of a turn: cosines and sines, under autocast copied for queries and for keys."""
        return 4 if self.half else 2

    @property
    def half(self) -> bool:
        """Whether matrix products take half precision."""
        return self.number < SINGLE


def _activations(run: _Pass, batch: int, checkpointing: bool) -> int:
    """Bytes that a whole forward pass keeps; with checkpoints, at the peak of the backward pass."""
    config, layers = run.config, run.config.layers
    residual = SINGLE * run.tokens * config.width
    pixels = run.number * run.patches * config.in_channels * config.patch_size**2
    ends = pixels + residual + 2 * SINGLE * run.tokens  # the final norm keeps its input
    always = ends + layers * _moving(run)
    if checkpointing:  # of every block its input and the cores' turn, and one block in full
        turn = 2 * SINGLE * run.cores * config.head_width
        return batch * (always + layers * (residual + turn) + _block(run)) + _tables(run)
    return batch * (always + layers * _block(run)) + layers * _tables(run)


def _moving(run: _Pass) -> int:
    """Bytes that one image leaves in the step of its cores before a block: inputs and angles."""
    if run.config.attention == "full":
        return 0
    return run.cores * (run.number * run.config.width + SINGLE * run.config.head_width // 2)


def _block(run: _Pass) -> int:
    """Bytes that one image leaves in one block."""
    config, tokens = run.config, run.tokens
    norms = 2 * SINGLE * tokens * (config.width + 2)  # two inputs, their means and deviations
    # Input of the expansion, gates and values, activated gates, their product.
    feedforward = run.number * tokens * (config.width + 4 * config.hidden)
    turns = run.number * run.turns * run.cores * config.head_width
    return norms + feedforward + turns + _attention(run)


def _attention(run: _Pass) -> int:
    """Bytes of one attention, its norm and turns apart."""
    config, tokens, cores = run.config, run.tokens, run.cores
    inputs = (3 if run.half else 1) * tokens  # autocast makes a copy for each projection
    logarithms = SINGLE * config.heads * tokens
    if config.attention == "full":  # turned queries and keys, values, result, input of the output
        return run.number * config.width * (inputs + 5 * tokens) + logarithms
    # Cores' turns have gradients, so queries and keys are also kept unturned: the cores', which
    # are views of all of them, and the cores' with their halves swapped.
    unturned = 2 * tokens + 2 * cores
    if not run.folded:  # as above; the cores' keys stand once more on their own
        vectors = inputs + unturned + 5 * tokens + cores
        return run.number * config.width * vectors + logarithms
    # Turned patches, seven small products of the cores, the sums and outputs of every head.
    vectors = inputs + unturned + 2 * run.patches + (7 + 2 * config.heads) * cores
    weight = SINGLE + run.number if run.half else SINGLE  # the GPU's softmax answers in single
    weights = config.heads * cores * (tokens + run.patches)
    return run.number * config.width * vectors + weight * weights


def _tables(run: _Pass) -> int:
    """Bytes that one block keeps whatever the number of images.

    The patches' turns, and in the folded form copies of two projections: autocast keeps those of
    whole weights only, and this form takes them apart by heads.
    """
    turns = run.number * run.turns * run.patches * run.config.head_width
    return turns + (run.number * 2 * run.config.width**2 if run.folded and run.half else 0)
