"""Save and load models.

A model on disk: `save` writes a folder, `load` reads it from wherever it lies.

    model.safetensors   the weights, with their configuration and hash; alone enough to load
    config.json         what the hub and people read: configuration, hash, provenance
    README.md           the model card

Each file is replaced in one step, the weights first: they are the model, so a save that is
interrupted leaves the whole old model or the whole new one.

Which model an open weights file holds, from its header and the config.json beside it.

The header decides. A save that was interrupted between the two files leaves new weights beside an
old config.json; its hash then differs, and what it tells of the weights is dropped. Only a file
that veca did not write, and so has no description, is read by the config.json beside it.

What a stored model is, without building it.

What a user calls a model on the command line: stored weights, or a size to try things with.
"""

import dataclasses
import json
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
    Facts,
    Provenance,
    card,
    is_trained,
    provenance_from_json,
    size_name,
)
from veca.weights.format import (
    CARD_NAME,
    CODES,
    CONFIG_NAME,
    FORMAT,
    WEIGHTS_NAME,
    WeightsError,
    WeightsFile,
    WeightsHash,
    assemble,
    check_fit,
    check_format,
    config_from_json,
    file_pieces,
    names_of_types,
    open_weights,
    read_json,
    stored_fields,
    weights_hash,
)
from veca.weights.hub import Source, locate


class Identity(NamedTuple):
    """What a file says it holds."""

    config: BackboneConfig
    digest: str | None
    """The hash that the weights must have; None where nothing tells it."""
    provenance: Provenance | None
    notes: tuple[str, ...]


def identify(file: WeightsFile, config: Path | None) -> Identity:
    """The model in a file, whose tensors have the names and shapes that it needs."""
    if file.config is not None:
        provenance, notes = _told(config, file.digest)
        found = Identity(file.config, file.digest, provenance, notes)
    else:
        found = _from_config(file, config)
    check_fit(found.config, file.shapes, str(file.path))
    return found


def check_hash(found: str, identity: Identity, path: Path) -> None:
    """Refuse weights that are not the ones that were saved."""
    if identity.digest is not None and found != identity.digest:
        raise WeightsError(
            f"{path} has weights with the SHA-256 {found[:16]}..., but was saved with "
            f"{ascii(identity.digest)[1:17]}...; it was changed or damaged: get it again."
        )


def _told(config: Path | None, digest: str | None) -> tuple[Provenance | None, tuple[str, ...]]:
    """Provenance from config.json if it speaks of these weights, and a note if it does not."""
    if config is None:
        return None, ("There is no config.json to tell where the weights come from.",)
    try:
        content = read_json(config)
        check_format(content.get("format"), str(config))
        if content.get("weights_sha256") != digest:
            return None, (
                "config.json tells of other weights (an interrupted save?), so it was ignored.",
            )
        return _provenance(content), ()
    except WeightsError as error:
        return None, (f"config.json was ignored: {error}",)


def _from_config(file: WeightsFile, config: Path | None) -> Identity:
    """The model of a file without a description, by the config.json beside it."""
    if config is None:
        raise WeightsError(
            f"{file.path} does not say what model it holds and no config.json lies beside it; it "
            "was not saved by veca: put its config.json beside it, or check the file."
        )
    content = read_json(config)
    _check_kind(content, config)
    check_format(content.get("format"), str(config))
    digest = content.get("weights_sha256")
    return Identity(
        config_from_json(content.get("backbone"), str(config)),
        digest if isinstance(digest, str) else None,
        _provenance(content),
        ("The weights file has no description of its own; config.json was used.",),
    )


def _check_kind(content: dict[str, Any], config: Path) -> None:
    """Refuse the configuration of another library's model."""
    if content.get("model_type") != "veca":
        raise WeightsError(
            f"{config} describes a model of type {content.get('model_type')!r}, not 'veca'; only "
            "models that veca.save wrote can be loaded."
        )


def _provenance(content: dict[str, Any]) -> Provenance | None:
    """What a config.json tells of where weights come from, if anything."""
    return provenance_from_json(content["provenance"]) if "provenance" in content else None


def save(  # noqa: PLR0913 - what a card may tell
    model: VECA,
    folder: Source,
    *,
    dtype: torch.dtype | None = None,
    provenance: Provenance | None = None,
    results: str | None = None,
    name: str | None = None,
) -> None:
    """Write a model into a folder, over the model there; other files are left alone.

    `dtype` stores the weights in another precision, such as torch.float16. Without `provenance`
    that of the model is written on, such as `load` found it. `results` is Markdown for the card:
    what the model was measured to be worth. `name` is what others will load it by.
    """
    if not isinstance(model, VECA):
        raise WeightsError(
            f"a {type(model).__name__} cannot be saved; pass the VECA model itself (of a compiled "
            "or distributed one, the module inside)."
        )
    target = Path(folder).expanduser()
    if target.exists() and not target.is_dir():
        raise WeightsError(f"{target} is a file; give a folder to save into.")
    tensors = _storable(model, dtype)
    digest = weights_hash(model.config, tensors)
    make_folder(target)
    write_atomic(target / WEIGHTS_NAME, file_pieces(model.config, tensors, digest))
    facts = Facts(
        config=model.config,
        path=target / WEIGHTS_NAME,
        dtype=names_of_types(tensor.dtype for tensor in tensors.values()),
        file_bytes=(target / WEIGHTS_NAME).stat().st_size,
        digest=digest,
        untrained=not any(is_trained(name, tensor) for name, tensor in tensors.items()),
        provenance=provenance or _provenance_of(model),
    )
    write_atomic(target / CONFIG_NAME, [_config_json(facts).encode()])
    write_atomic(target / CARD_NAME, [card(facts, results, name).encode()])


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
    """Load a model in evaluation mode; its parameters can be trained on.

    Args:
        source: a folder or .safetensors file, a bundled name, or a name on the hub.
        dtype: type of the weights; by default that of the file, but at least fp32 on a CPU.
        device: where the weights go.
        budgets: other budgets to train with; a smaller last one keeps the first cores only.
        local_kernel: side of the local convolution, for a model that has none or a smaller one;
            what is new in it is zero, so that the model computes what it did before.
        revision: branch, tag or commit of a model on the hub.
        precision: of the matrix products: 'fp32' is what the weights' type gives, 'bf16' is
            autocast over them (features come out as before), 'auto' is bf16 where the device
            computes it natively, else fp32.
    """
    model = load_with_digest(
        source,
        dtype=dtype,
        device=device,
        budgets=budgets,
        local_kernel=local_kernel,
        revision=revision,
    ).model
    model.precision = resolve_precision(precision, model.final_norm.weight.device)
    return model


class Loaded(NamedTuple):
    """A model, and what its file is known by."""

    model: VECA
    digest: str
    """SHA-256 of configuration and weights as the file has them, in its own precision."""


def load_with_digest(  # noqa: PLR0913 - as load
    source: Source,
    *,
    dtype: torch.dtype | None = None,
    device: torch.device | str | None = None,
    budgets: Sequence[int] | None = None,
    local_kernel: int | None = None,
    revision: str | None = None,
) -> Loaded:
    """What `load` loads, and the verified hash of the file."""
    _check_dtype(dtype)
    target = _usable_device(device)
    place = locate(source, revision)
    tensors: dict[str, Tensor] = {}
    with open_weights(place.weights) as file:
        identity = identify(file, place.config)
        found = WeightsHash(identity.config)
        for name, tensor in file.tensors():
            owned = tensor.clone()  # the file may change while the model lives
            found.add(name, owned)
            tensors[name] = owned.to(target, dtype or _working_type(owned.dtype, target))
    check_hash(found.text(), identity, place.weights)
    config = identity.config
    if budgets is not None:
        config, tensors = _with_budgets(config, tensors, tuple(budgets))
    if local_kernel is not None:
        config, tensors = _with_local_kernel(config, tensors, local_kernel)
    model = assemble(config, tensors)
    model.provenance = identity.provenance
    return Loaded(model, found.text())


def _provenance_of(model: VECA) -> Provenance:
    """What is known of a model's weights; nothing is of those that were built here.

    A licence given to untrained weights would stay on them when they are loaded and trained.
    """
    return model.provenance if isinstance(model.provenance, Provenance) else Provenance()


def _storable(model: VECA, dtype: torch.dtype | None) -> dict[str, Tensor]:
    """The weights as they will stand in the file."""
    _check_dtype(dtype)
    tensors = {name: tensor.detach() for name, tensor in model.state_dict().items()}
    for name, tensor in tensors.items():
        if type(tensor) is not Tensor:
            raise WeightsError(
                f"{name} is a {type(tensor).__name__}, such as sharded models have, which cannot "
                "be saved; gather the whole weights first (get_model_state_dict of "
                "torch.distributed.checkpoint.state_dict with full_state_dict=True) and save a "
                "VECA that holds them."
            )
    shapes = {name: tuple(tensor.shape) for name, tensor in tensors.items()}
    check_fit(model.config, shapes, "the model")
    for name, tensor in tensors.items():
        if tensor.is_meta or tensor.dtype not in CODES:
            kind = "no memory" if tensor.is_meta else f"the type {tensor.dtype}"
            raise WeightsError(
                f"{name} has {kind}, which cannot be saved; give it numbers in "
                f"{names_of_types(CODES)} first."
            )
    if dtype is None:
        return tensors
    stored = {name: tensor.to(dtype) for name, tensor in tensors.items()}
    for name, tensor in tensors.items():
        if not bool((stored[name].isfinite() | ~tensor.isfinite()).all()):
            raise WeightsError(
                f"{name} has numbers too large for dtype={dtype}; use torch.bfloat16 or leave "
                "dtype out."
            )
    return stored


def _config_json(facts: Facts) -> str:
    """The content of config.json."""
    content = {
        "format": FORMAT,
        "model_type": "veca",
        "veca_version": VERSION,
        "backbone": stored_fields(facts.config),
        "weights_sha256": facts.digest,
        "dtype": facts.dtype,
        "provenance": facts.provenance.known() if facts.provenance else {},
    }
    return json.dumps(content, indent=2) + "\n"


def _check_dtype(dtype: torch.dtype | None) -> None:
    """Refuse types that no model has."""
    if dtype is not None and dtype not in CODES:
        raise WeightsError(f"dtype={dtype} is no type of weights; use {names_of_types(CODES)}.")


def _usable_device(device: torch.device | str | None) -> torch.device:
    """The device that weights go to; torch's default where none is named."""
    named = "torch's default device" if device is None else f"the device {str(device)!r}"
    try:
        target = torch.device(device) if device is not None else torch.get_default_device()
        torch.empty(0, device=target)
    except (RuntimeError, AssertionError) as error:  # as builds of torch differ
        raise WeightsError(
            f"{named} cannot be used here; use 'cpu', or 'cuda' where there is a graphics "
            "processor."
        ) from error
    return target


def _working_type(stored: torch.dtype, device: torch.device) -> torch.dtype:
    """The type to work in: a CPU computes in single precision at least."""
    return torch.promote_types(stored, torch.float32) if device.type == "cpu" else stored


def _with_budgets(
    config: BackboneConfig, tensors: dict[str, Tensor], budgets: tuple[int, ...]
) -> tuple[BackboneConfig, dict[str, Tensor]]:
    """The model that trains with other budgets, its bank cut to the last of them.

    The bank comes as one chunk; `CoreBank` cuts it as the budgets ask when it is loaded.
    """
    if config.attention == "full":
        raise WeightsError(
            f"budgets={budgets} mean nothing to this full-attention model, which has no cores; "
            "leave them out."
        )
    kept = None if config.default_budget is None else min(config.default_budget, max(budgets))
    changed = dataclasses.replace(config, budgets=budgets, default_budget=kept)
    if changed.cores > config.cores:
        raise WeightsError(
            f"budgets={budgets} need {changed.cores} cores, but the model has {config.cores}; end "
            f"with {config.cores} or fewer."
        )
    cut = {name: item for name, item in tensors.items() if not name.startswith("core_bank.")}
    for part in ("tokens", "points"):
        chunks = [tensors[f"core_bank.{part}.{n}"] for n in range(len(config.budgets))]
        cut[f"core_bank.{part}.0"] = torch.cat(chunks)[: changed.cores].clone()
    return changed, cut


def _with_local_kernel(
    config: BackboneConfig, tensors: dict[str, Tensor], kernel: int
) -> tuple[BackboneConfig, dict[str, Tensor]]:
    """The same model with a larger convolution on its patches, zero wherever it is new."""
    changed = dataclasses.replace(config, local_kernel=kernel)
    if kernel < config.local_kernel:
        raise WeightsError(
            f"local_kernel={kernel} would cut the model's own convolution of side "
            f"{config.local_kernel}; use {config.local_kernel} or a larger odd number."
        )
    grown = dict(tensors)
    for layer in range(config.layers):
        name = f"blocks.{layer}.local_mixing.weight"
        like = tensors["final_norm.weight"]
        stored = tensors.get(name, like.new_zeros(config.width, 1, 1, 1))
        margin = (kernel - stored.shape[-1]) // 2
        grown[name] = F.pad(stored, (margin,) * 4)
    return changed, tensors if kernel == config.local_kernel else grown


def describe(source: Source, revision: str | None = None) -> Facts:
    """The facts of a model that `veca.load` would load; its hash is verified, tensor by tensor."""
    place = locate(source, revision)
    untrained = True
    with open_weights(place.weights) as file:
        identity = identify(file, place.config)
        found = WeightsHash(identity.config)
        for name, tensor in file.tensors():
            found.add(name, tensor)
            untrained = untrained and not is_trained(name, tensor)
        dtype = names_of_types(file.dtypes.values())
    check_hash(found.text(), identity, place.weights)
    return Facts(
        config=identity.config,
        path=place.weights,
        dtype=dtype,
        file_bytes=place.weights.stat().st_size,
        digest=found.text(),
        untrained=untrained,
        provenance=identity.provenance,
        notes=identity.notes,
    )


class NamedModel(NamedTuple):
    """A model in evaluation mode, and what to tell about it."""

    model: VECA
    name: str
    trained: bool
    digest: str
    """SHA-256 of configuration and weights, as `veca info` tells it: for a stored model that of its
    file, whatever precision it is loaded in."""

    @property
    def title(self) -> str:
        """Name, size and state of training in a line."""
        size = size_name(self.model.config)
        described = f"{self.name} (size {size})" if size not in {None, self.name} else self.name
        state = "trained" if self.trained else "untrained"
        return (
            f"{described}, {self.model.cost(256, 256).parameters / 1e6:.1f} M parameters, {state}"
        )


def named_model(
    name: str,
    *,
    device: torch.device | str = "cpu",
    precision: Precision = "fp32",
    seed: int = 0,
    **overrides: Any,  # noqa: ANN401 - the types stand in BackboneConfig
) -> NamedModel:
    """The model that `veca.load` finds, or an untrained one for the name of a size.

    `seed` and `overrides`, fields of a configuration, are for untrained models; a folder that is
    called like a size is loaded. `precision` is what it computes with, as `veca.load` takes it.
    """
    if name in SIZES and not Path(name).exists():
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            model = build(name, **overrides).eval()
        digest = weights_hash(model.config, model.state_dict())
        model = model.to(device)
    elif overrides:
        raise ValueError(
            f"{', '.join(overrides)} of the stored model {name!r} cannot be changed; leave it out, "
            f"or name a size ({', '.join(SIZES)}) for an untrained model."
        )
    else:
        model, digest = load_with_digest(name, device=device)
    model.precision = resolve_precision(precision, device)
    trained = any(is_trained(key, tensor) for key, tensor in model.state_dict().items())
    return NamedModel(model, name, trained, digest)
