"""A model as one graph whose cost is an input, for `torch.export` and (in `onnx_file.py`) ONNX.

    pixels (B, 3, H, W)   normalized, any batch, sides in multiples of the patch size
    budget ()             int64, 1 to M; absent in files of one budget and of full attention
    -> image (B, D), cores (B, C, D), patches (B, N, D), points (B, C, 2)

With `resize_to` the graph takes bytes (B, H, W, 3) of any size instead, and resizes and normalizes
them itself. The share of hidden units is a constant: runtimes cannot prepack weights that change.

Every graph is compared with the model before it is written. Shapes: see `backbone/model.py`.
"""

import copy
import io
import itertools
import json
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, NamedTuple, cast, get_args

import torch
from jaxtyping import Float, Int, Shaped, UInt8
from torch import Tensor, nn
from torch.export import Dim, ExportedProgram
from torch.nn import functional as F

from veca.backbone.model import VECA, Features, check_budget, check_ffn, patch_grid
from veca.data.transforms import IMAGENET, prepare
from veca.export.session import FORMAT, METADATA_NAME
from veca.runtime import VERSION, VecaError
from veca.runtime.files import write_atomic
from veca.weights.card import Provenance, is_trained
from veca.weights.format import stored_fields, weights_hash

Output = Literal["image", "cores", "patches", "points"]
Precision = Literal["fp32", "fp16", "int8"]


class ExportError(VecaError, ValueError):
    """A model cannot be exported as asked, or an exported file cannot be used."""


@dataclass(frozen=True, kw_only=True)
class ExportConfig:
    """What a graph takes and gives."""

    outputs: tuple[str, ...] = get_args(Output)

    precision: Precision = "fp32"
    """Of weights and matrix products; inputs and outputs are float32 in all of them."""

    budget: int | None = None
    """A fixed number of cores; None makes it an input."""

    ffn: float | None = None
    """The share of hidden units that the graph has; None is all."""

    fixed_size: tuple[int, int] | None = None
    """Height and width that pixels always have; None takes any."""

    resize_to: int | None = None
    """Take bytes of any size, and resize their short side to this many pixels."""

    def check(self, model: VECA) -> None:
        """Refuse what the model cannot do."""
        unknown = [name for name in self.outputs if name not in get_args(Output)]
        if unknown or not self.outputs or len(set(self.outputs)) < len(self.outputs):
            raise ExportError(
                f"outputs={','.join(self.outputs)!r} is invalid; give one or more of "
                f"{', '.join(get_args(Output))}, each once."
            )
        if self.precision not in get_args(Precision):
            raise ExportError(
                f"precision={self.precision!r} is unknown; use {', '.join(get_args(Precision))}."
            )
        if self.budget is not None:
            check_budget(model.config, self.budget)
        check_ffn(model.config, self.ffn)
        if self.fixed_size is not None:
            patch_grid(model.config, *self.fixed_size)
        if self.resize_to is None:
            return
        if self.fixed_size is not None:
            raise ExportError(
                "a graph that resizes pictures takes any size; omit either the fixed size or "
                "preprocessing."
            )
        if self.resize_to < model.config.patch_size or model.config.in_channels != 3:
            raise ExportError(
                f"pictures cannot be resized to {self.resize_to} pixels for a model with patches of"
                f" {model.config.patch_size} and {model.config.in_channels} channels; it needs one "
                "patch or more, and 3 channels."
            )


class Graph(nn.Module):
    """What is exported: a copy of the model between the inputs and outputs of a config."""

    def __init__(self, model: VECA, config: ExportConfig) -> None:
        super().__init__()
        config.check(model)
        self.config = config
        self.model = copy.deepcopy(model).eval().requires_grad_(requires_grad=False).float()
        self.model.precision = "fp32"
        if config.precision == "fp16":
            self.model.half()
        full = model.config.attention == "full"
        self.budget = config.budget or (model.config.cores if full else None)
        if self.budget is None:  # the folded form pays for some budgets only
            self.model.set_attention_form("plain")
        self.units = check_ffn(model.config, config.ffn)

    def forward(
        self, pixels: Shaped[Tensor, "B a b c"], budget: Int[Tensor, ""] | None = None
    ) -> tuple[Tensor, ...]:
        """The outputs that the config names, in float32."""
        cores = self.budget or self._input_budget(budget)
        if self.config.resize_to is not None:
            pixels = self._preprocessed(pixels, self.config.resize_to)
        features = named(self.model.encode(pixels, cores, self.units))
        return tuple(features[name].float() for name in self.config.outputs)

    def _input_budget(self, budget: Tensor | None) -> int:
        """The budget as a number that a tracer may keep as a symbol."""
        if budget is None:
            raise ExportError("the budget is an input of this graph; give one.")
        cores = cast(int, budget.item())  # a symbol for a tracer
        torch._check(cores >= 1)
        torch._check(cores <= self.model.config.cores)
        return cores

    def _preprocessed(
        self, pixels: UInt8[Tensor, "B height width 3"], size: int
    ) -> Float[Tensor, "B 3 new_height new_width"]:
        """As `veca.preprocess`; torch's filter is Pillow's, not rounded between passes."""
        patch = self.model.config.patch_size
        height, width = pixels.shape[1], pixels.shape[2]
        short = torch.sym_min(height, width) * patch
        sides = [
            torch.sym_max(1, (2 * side * size + short) // (2 * short)) * patch
            for side in (height, width)
        ]
        planes = pixels.permute(0, 3, 1, 2).float()
        resized = F.interpolate(planes, size=sides, mode="bicubic", antialias=True)
        return IMAGENET.normalize(resized.clamp(0, 255) / 255)

    @property
    def has_budget_input(self) -> bool:
        """Whether calls choose the budget."""
        return self.budget is None


def named(features: Features) -> dict[str, Tensor]:
    """Features by the names of outputs."""
    return {
        "image": features.image,
        "cores": features.cores,
        "patches": features.patches,
        "points": features.core_points,
    }


def describe(graph: Graph, model: VECA) -> dict[str, Any]:
    """What a file says of itself: enough to prepare its input, and to know where it is from."""
    config, backbone = graph.config, model.config
    known = model.provenance.known() if isinstance(model.provenance, Provenance) else {}
    return {
        "format": FORMAT,
        "veca_version": VERSION,
        "weights_sha256": weights_hash(backbone, model.state_dict()),
        "untrained": not is_trained(model.state_dict()),
        "backbone": stored_fields(backbone),
        "attention": backbone.attention,
        "width": backbone.width,
        "patch_size": backbone.patch_size,
        "cores": backbone.cores,
        "budgets": None if backbone.attention == "full" else list(backbone.budgets),
        "budget": config.budget,
        "default_budget": None if config.budget else model.config.default_budget,
        "ffn": 1.0 if config.ffn is None else config.ffn,
        "precision": config.precision,
        "outputs": list(config.outputs),
        "fixed_size": config.fixed_size,
        "resize_to": config.resize_to,
        "mean": list(IMAGENET.mean),
        "std": list(IMAGENET.std),
        "licence": known.get("licence"),
        "teacher": known.get("teacher"),
    }


def to_program(graph: Graph) -> ExportedProgram:
    """Trace the graph with every free dimension and the budget as symbols."""
    example = next(examples(graph))
    arguments = (example.pixels,) if example.budget is None else (example.pixels, example.budget)
    free = {0: Dim.DYNAMIC}
    if graph.config.resize_to is not None:
        free |= {1: Dim.DYNAMIC, 2: Dim.DYNAMIC}
    elif graph.config.fixed_size is None:
        free |= {2: Dim.DYNAMIC, 3: Dim.DYNAMIC}
    shapes: dict[str, Any] = {"pixels": free, "budget": None}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch's own, about its own parts
        return torch.export.export(
            graph, arguments, dynamic_shapes={k: shapes[k] for k in list(shapes)[: len(arguments)]}
        )


class Example(NamedTuple):
    """Inputs of a graph."""

    pixels: Tensor
    budget: Tensor | None


def examples(graph: Graph) -> Iterator[Example]:
    """Inputs of several batches, sizes and budgets; the first is for tracing: all differ in it."""
    model = graph.model.config
    # A tracer takes sizes of one, and sizes that agree, for constants.
    grids = [(5, 7), (4, 4), (9, 2), (1, 1)]
    if graph.config.fixed_size is not None:
        grids = [patch_grid(model, *graph.config.fixed_size)] * 2
    budgets: Sequence[int | None] = [None]
    if graph.has_budget_input:
        budgets = sorted({1, min(3, model.cores), model.cores // 2 + 1, model.cores}, reverse=True)
    batches = itertools.cycle((2, 1, 3))
    generator = torch.Generator().manual_seed(0)
    for number, batch in zip(range(max(len(grids), len(budgets))), batches, strict=False):
        rows, columns = grids[number % len(grids)]
        budget = budgets[number % len(budgets)]
        coarse = torch.randn(batch, model.in_channels, rows + 2, columns + 2, generator=generator)
        sides = [rows * model.patch_size, columns * model.patch_size]
        pixels = F.interpolate(coarse, size=sides, mode="bicubic")  # smooth, as pictures are
        if graph.config.resize_to is not None:  # odd sizes, and bytes
            pixels = pixels[..., 3:].add(2.5).mul(51).clamp(0, 255).byte().permute(0, 2, 3, 1)
        yield Example(pixels, None if budget is None else torch.tensor(budget))


class Difference(NamedTuple):
    """How far outputs are from those of the model."""

    largest: float
    """Absolute difference of any number."""

    cosine: float
    """Smallest cosine of an output over a batch: features of all tokens as one vector."""


LIMITS = {
    "fp32": Difference(1e-4, 0.99999),
    "fp16": Difference(float("inf"), 0.999),
    "int8": Difference(float("inf"), 0.98),
}
RESIZE_COSINE = 0.999
"""With resizing in the graph, whose bytes are not rounded between its two passes."""

Run = Callable[[Example], Sequence[Tensor]]


def verify(graph: Graph, model: VECA, run: Run, inputs: Iterable[Example]) -> Difference:
    """Compare a file with the model on these inputs; refuse what differs too much."""
    largest, cosine = 0.0, 1.0
    for example in inputs:
        expected = named(_reference(graph, model, example))
        for name, output in zip(graph.config.outputs, run(example), strict=True):
            wanted = expected[name]
            if output.shape != wanted.shape:
                raise ExportError(
                    f"the exported {name} has the shape {tuple(output.shape)}, not "
                    f"{tuple(wanted.shape)}; nothing was written: please report this."
                )
            if not bool(output.isfinite().all()):  # no comparison below would notice
                raise ExportError(
                    f"the exported {name} has NaN or infinite values; nothing was written: use "
                    "precision fp32."
                )
            largest = max(largest, float((output - wanted).abs().max()))
            if name != "points":  # near zero for cores in the middle
                pairs = zip(output.double().flatten(1), wanted.double().flatten(1), strict=True)
                cosine = min(cosine, *(float(F.cosine_similarity(*pair, dim=0)) for pair in pairs))
    found, limit = Difference(largest, cosine), LIMITS[graph.config.precision]
    if graph.config.resize_to is not None:
        limit = Difference(float("inf"), min(limit.cosine, RESIZE_COSINE))
    if not (found.largest <= limit.largest and found.cosine >= limit.cosine):
        raise ExportError(
            f"the exported file differs from the model by up to {found.largest:.2g} (cosine "
            f"{found.cosine:.6f}), allowed are {limit.largest:g} and {limit.cosine}; nothing was "
            "written: try --precision fp32."
        )
    return found


@torch.inference_mode()
def _reference(graph: Graph, model: VECA, example: Example) -> Features:
    """What the model itself computes, in fp32."""
    budget = graph.config.budget if example.budget is None else int(example.budget)
    pixels = example.pixels
    if (size := graph.config.resize_to) is not None:
        patch = model.config.patch_size
        pixels = torch.stack([prepare(p.numpy(), size, patch_size=patch).pixels for p in pixels])
    return model(pixels, budget, graph.config.ffn)


def export_program(model: VECA, file: Path, config: ExportConfig) -> Difference:
    """Write an `ExportedProgram` for `torch.export.load`, once it has been compared."""
    if config.precision == "int8":
        raise ExportError("torch programs are exported in fp32 or fp16; use precision fp32.")
    graph = Graph(model, config)
    program = to_program(graph)
    module = program.module()
    inputs = list(examples(graph))
    if config.resize_to is None and config.fixed_size is None:
        # torch asks for two patches a side: one is a constant to its tracer.
        inputs = [one for one in inputs if min(one.pixels.shape[2:]) > model.config.patch_size]
    found = verify(graph, model, lambda example: module(*example), inputs)
    buffer = io.BytesIO()
    metadata = json.dumps(describe(graph, model))
    torch.export.save(program, buffer, extra_files={f"{METADATA_NAME}.json": metadata})
    write_atomic(file, [buffer.getbuffer()])
    return found
