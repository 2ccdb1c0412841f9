"""Save and load models.

`save` writes a folder, `load` reads it:

    model.safetensors   the weights, with their configuration and hash; sufficient to load
    config.json         for the hub and people: configuration, hash, provenance
    preprocessor_config.json    for transformers: how pictures are prepared
    README.md           the model card

Each file is written atomically, the weights first: they are the model, so an interrupted save
leaves the old model or the new one. It may leave new weights beside an old config.json; the hash in
it then differs, and it is ignored with a warning. Only a weights file that veca did not write, and
so has no header entry, is read with the config.json beside it.
"""

import dataclasses
import json
import logging
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

from veca.backbone.config import SIZES, BackboneConfig
from veca.backbone.model import VECA, build
from veca.runtime import VERSION
from veca.runtime.device import Precision, resolve_precision
from veca.runtime.files import make_folder, write_atomic
from veca.weights.card import (
    ModelInfo,
    Provenance,
    is_trained,
    model_card,
    provenance_from_json,
    size_name,
)
from veca.weights.format import (
    CARD_NAME,
    CODES,
    CONFIG_NAME,
    FORMAT,
    PREPROCESSOR_NAME,
    WEIGHTS_NAME,
    WeightsError,
    check_finite,
    check_format,
    check_shapes,
    config_from_json,
    dtype_names,
    file_pieces,
    model_with,
    preprocessor_json,
    read_json,
    read_weights,
    stored_fields,
    weights_hash,
)
from veca.weights.hub import ModelFiles, Source, resolve_model

logger = logging.getLogger("veca")


def save(  # noqa: PLR0913 - what a card may contain
    model: VECA,
    folder: Source,
    *,
    dtype: torch.dtype | None = None,
    provenance: Provenance | None = None,
    results: str | None = None,
    name: str | None = None,
) -> None:
    """Save a model into a folder, replacing the model there; other files are left alone.

    Args:
        model: the model itself, not a compiled or distributed wrapper.
        folder: created if it does not exist.
        dtype: type of the stored weights, such as torch.float16; that of the model by default.
        provenance: where the weights come from; that of the model by default.
        results: evaluation results (Markdown) for the model card.
        name: what others will load the model by, for the model card.
    """
    if not isinstance(model, VECA):
        raise WeightsError(
            f"a {type(model).__name__} cannot be saved; pass the VECA model itself (of a compiled "
            "or distributed model, the module inside)."
        )
    target = Path(folder).expanduser()
    if target.exists() and not target.is_dir():
        raise WeightsError(f"{target} is a file; give a folder.")
    tensors = _storable(model, dtype)
    digest = weights_hash(model.config, tensors)
    make_folder(target)
    write_atomic(target / WEIGHTS_NAME, file_pieces(model.config, tensors, digest))
    if provenance is None and isinstance(model.provenance, Provenance):
        provenance = model.provenance
    info = ModelInfo(
        config=model.config,
        path=target / WEIGHTS_NAME,
        dtype=dtype_names(tensor.dtype for tensor in tensors.values()),
        file_bytes=(target / WEIGHTS_NAME).stat().st_size,
        digest=digest,
        untrained=not is_trained(tensors),
        provenance=provenance or Provenance(),
    )
    content = {
        "format": FORMAT,
        "model_type": "veca",
        "veca_version": VERSION,
        "backbone": stored_fields(info.config),
        "weights_sha256": digest,
        "dtype": info.dtype,
        "provenance": (provenance or Provenance()).known(),
    }
    write_atomic(target / CONFIG_NAME, [f"{json.dumps(content, indent=2)}\n".encode()])
    write_atomic(target / PREPROCESSOR_NAME, [preprocessor_json(model.config)])
    write_atomic(target / CARD_NAME, [model_card(info, results, name).encode()])


def _storable(model: VECA, dtype: torch.dtype | None) -> dict[str, Tensor]:
    """The weights as they will be in the file."""
    _check_dtype(dtype)
    tensors = {name: tensor.detach() for name, tensor in model.state_dict().items()}
    for name, tensor in tensors.items():
        if type(tensor) is not Tensor:
            raise WeightsError(
                f"{name} is a {type(tensor).__name__}, as in sharded models, which cannot be saved;"
                " gather the weights with get_model_state_dict(full_state_dict=True) of "
                "torch.distributed.checkpoint.state_dict and save a VECA with them."
            )
    check_shapes(model.config, tensors, "the model")
    for name, tensor in tensors.items():
        if tensor.is_meta or tensor.dtype not in CODES:
            problem = "is on the meta device" if tensor.is_meta else f"has type {tensor.dtype}"
            raise WeightsError(
                f"{name} {problem}, which cannot be saved; weights must be {dtype_names(CODES)}."
            )
    check_finite(tensors, "the model")
    if dtype is None:
        return tensors
    stored = {name: tensor.to(dtype) for name, tensor in tensors.items()}
    for name, tensor in stored.items():
        if not bool(tensor.isfinite().all()):
            raise WeightsError(
                f"{name} has values too large for dtype={dtype}; use torch.bfloat16, or omit dtype."
            )
    return stored


def load(  # noqa: PLR0913 - what a loaded model may differ in
    source: Source,
    *,
    dtype: torch.dtype | None = None,
    device: torch.device | str | None = None,
    budgets: Sequence[int] | None = None,
    local_kernel: int | None = None,
    revision: str | None = None,
    precision: Precision = "fp32",
) -> VECA:
    """Load a model in evaluation mode; its parameters are trainable.

    Args:
        source: a folder or .safetensors file, a bundled name, or a name on the hub.
        dtype: type of the weights; by default that of the file, but at least fp32 on a CPU.
        device: where the weights go.
        budgets: other budgets to train with; a smaller last one keeps the first cores only.
        local_kernel: side of the local convolution, for a model that has none or a smaller one;
            new weights are zero, so the model computes what it did before.
        revision: branch, tag or commit of a model on the hub.
        precision: of matrix products: 'fp32' follows the type of the weights, 'bf16' is autocast,
            'auto' is bf16 where the device supports it natively, else fp32.
    """
    model, _ = load_with_hash(source, dtype=dtype, device=device, revision=revision)
    provenance = model.provenance
    if budgets is not None:
        model = _with_budgets(model, tuple(budgets))
    if local_kernel is not None:
        model = _with_local_kernel(model, local_kernel)
    model.provenance = provenance
    model.precision = resolve_precision(precision, model.final_norm.weight.device)
    return model


def load_with_hash(
    source: Source,
    *,
    dtype: torch.dtype | None = None,
    device: torch.device | str | None = None,
    revision: str | None = None,
) -> tuple[VECA, str]:
    """The model that `load` loads, and its hash: that of the file, in the file's own precision."""
    _check_dtype(dtype)
    target = _usable_device(device)
    info, tensors = _read(source, revision)
    for name, tensor in tensors.items():
        on_cpu = target.type == "cpu"  # computes in fp32 at least
        usual = torch.promote_types(tensor.dtype, torch.float32) if on_cpu else tensor.dtype
        tensors[name] = tensor.to(target, dtype or usual)
    model = model_with(info.config, tensors)
    model.provenance = info.provenance
    if info.ignored:
        logger.warning("%s", info.ignored)
    return model, info.digest


def model_info(source: Source, revision: str | None = None) -> ModelInfo:
    """Facts about a model that `veca.load` would load, hash verified, without building it."""
    return _read(source, revision)[0]


def _read(source: Source, revision: str | None) -> tuple[ModelInfo, dict[str, Tensor]]:
    """Read a model and verify its hash."""
    files = resolve_model(source, revision)
    views, config, expected = read_weights(files.weights)
    provenance, note, ignored = None, "", ""
    if config is None:
        config, expected, provenance = _from_config_json(files)
        note = "The weights file has no configuration in its header; config.json was used."
    elif files.config is None:
        note = "There is no config.json, so the origin of the weights is unknown."
    else:
        try:
            content = read_json(files.config)
            check_format(content.get("format"), str(files.config))
            if content.get("weights_sha256") == expected:
                provenance = _provenance(content)
            else:
                ignored = f"{files.config} was ignored, and with it license and origin: it "
                ignored += "describes other weights."
        except WeightsError as error:
            ignored = f"{files.config} was ignored, and with it license and origin: {error}"
    check_shapes(config, views, str(files.weights))
    tensors = {name: view.clone() for name, view in views.items()}  # the file may change
    check_finite(tensors, str(files.weights))
    digest = weights_hash(config, tensors)
    if expected not in {None, digest}:
        raise WeightsError(
            f"{files.weights} has weights with the SHA-256 {digest[:16]}..., but was saved with "
            f"{ascii(expected)[1:17]}...; it was changed or damaged: get it again."
        )
    info = ModelInfo(
        config=config,
        path=files.weights,
        dtype=dtype_names(tensor.dtype for tensor in tensors.values()),
        file_bytes=files.weights.stat().st_size,
        digest=digest,
        untrained=not is_trained(tensors),
        provenance=provenance,
        notes=tuple(filter(None, (note, ignored))),
        ignored=ignored,
    )
    return info, tensors


class NamedModel(NamedTuple):
    """A model in evaluation mode, and what to say about it."""

    model: VECA
    name: str
    trained: bool
    digest: str
    """SHA-256 of configuration and weights as `veca info` shows it: of a stored model that of its
    file, in whatever precision it is loaded."""

    @property
    def title(self) -> str:
        """Name, size and state of training in a line."""
        size = size_name(self.model.config)
        described = f"{self.name} (size {size})" if size not in {None, self.name} else self.name
        state = "trained" if self.trained else "untrained"
        millions = self.model.cost(256, 256).parameters / 1e6
        return f"{described}, {millions:.1f} M parameters, {state}"


def load_or_build(
    name: str, *, device: torch.device | str = "cpu", precision: Precision = "fp32"
) -> NamedModel:
    """The model that `veca.load` finds, or an untrained one if the name is that of a size.

    A folder with the name of a size is loaded. The weights of untrained models do not change.
    """
    if name in SIZES and not Path(name).exists():
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            model = build(name).eval()
        digest = weights_hash(model.config, model.state_dict())
        model = model.to(device)
    else:
        model, digest = load_with_hash(name, device=device)
    model.precision = resolve_precision(precision, device)
    return NamedModel(model, name, is_trained(model.state_dict()), digest)


def _from_config_json(files: ModelFiles) -> tuple[BackboneConfig, str | None, Provenance | None]:
    """Configuration, hash and provenance of a file without an entry in its header."""
    if files.config is None:
        raise WeightsError(
            f"{files.weights} has no configuration in its header and no config.json beside it; put "
            "the config.json beside it, or check the file."
        )
    content, where = read_json(files.config), str(files.config)
    if content.get("model_type") != "veca":
        raise WeightsError(
            f"{where} describes a model of type {content.get('model_type')!r}, not 'veca'."
        )
    check_format(content.get("format"), where)
    digest = content.get("weights_sha256")
    config = config_from_json(content.get("backbone"), where)
    return config, digest if isinstance(digest, str) else None, _provenance(content)


def _provenance(content: dict[str, Any]) -> Provenance | None:
    """The provenance in a config.json, if any."""
    return provenance_from_json(content["provenance"]) if "provenance" in content else None


def _check_dtype(dtype: torch.dtype | None) -> None:
    if dtype is not None and dtype not in CODES:
        raise WeightsError(f"dtype={dtype} is not a type of weights; use {dtype_names(CODES)}.")


def _usable_device(device: torch.device | str | None) -> torch.device:
    """The device that weights go to; torch's default device if None."""
    name = "torch's default device" if device is None else f"the device {str(device)!r}"
    try:
        target = torch.device(device) if device is not None else torch.get_default_device()
        torch.empty(0, device=target)
    except (RuntimeError, AssertionError) as error:  # as builds of torch differ
        raise WeightsError(f"{name} is not available; use 'cpu', or 'cuda' on a GPU.") from error
    return target


def _with_budgets(model: VECA, budgets: tuple[int, ...]) -> VECA:
    """The model with other budgets, its bank cut to the last of them."""
    config, tensors = model.config, model.state_dict()
    if config.attention == "full":
        raise WeightsError(
            f"budgets={budgets} cannot be used: a full-attention model has no cores; omit them."
        )
    default = None if config.default_budget is None else min(config.default_budget, max(budgets))
    changed = dataclasses.replace(config, budgets=budgets, default_budget=default)
    if changed.cores > config.cores:
        raise WeightsError(
            f"budgets={budgets} need {changed.cores} cores, but the model has {config.cores}; end "
            f"with {config.cores} or fewer."
        )
    resized = {name: item for name, item in tensors.items() if not name.startswith("core_bank.")}
    for part in ("tokens", "points"):
        chunks = [tensors[f"core_bank.{part}.{n}"] for n in range(len(config.budgets))]
        # One chunk; `CoreBank` divides it by the budgets when it is loaded.
        resized[f"core_bank.{part}.0"] = torch.cat(chunks)[: changed.cores].clone()
    return model_with(changed, resized)


def _with_local_kernel(model: VECA, kernel: int) -> VECA:
    """The same model with a larger local convolution, zero where it is new."""
    config, tensors = model.config, model.state_dict()
    changed = dataclasses.replace(config, local_kernel=kernel)
    if kernel < config.local_kernel:
        raise WeightsError(
            f"local_kernel={kernel} would cut the model's convolution of side "
            f"{config.local_kernel}; use {config.local_kernel} or a larger odd number."
        )
    for layer in range(config.layers if kernel else 0):
        name = f"blocks.{layer}.local_mixing.weight"
        zeros = model.final_norm.weight.new_zeros(config.width, 1, 1, 1)
        stored = tensors.get(name, zeros)
        tensors[name] = F.pad(stored, ((kernel - stored.shape[-1]) // 2,) * 4)
    return model_with(changed, tensors)
