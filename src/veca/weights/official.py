"""Checkpoints of the authors' release, read without running code from them.

Their file is a pickle in a zip archive, as `torch.save` writes it. `torch.load(weights_only=True)`
runs no foreign code, but a hostile file could still ask for more memory than there is, so the
archive is checked first: `torch.save` compresses nothing, and writes one small pickle.

The file holds the state dict of the student, alone or beside the state of the optimizers. Sizes are
inferred from shapes, and every key must be used.

Their RoPE pairs neighboring channels, ours channel i with i + K/2 (`backbone/rope.py`): rows of
query and key projections are permuted, which changes no product between them.
"""

import hashlib
import itertools
import re
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from veca.backbone.config import SIZES, BackboneConfig
from veca.backbone.model import VECA
from veca.weights.card import Provenance
from veca.weights.format import (
    WeightsError,
    check_finite,
    check_plausible,
    check_shapes,
    expected_shapes,
    listed,
    model_with,
)
from veca.weights.hub import Source

MAX_PICKLE_BYTES = 2_000_000
"""The pickle holds names and shapes: a few hundred bytes for each of about 2,000 tensors."""

MAX_ENTRIES = 100_000
"""Each tensor is an entry of the archive."""


def check_archive(path: Path) -> None:
    """Refuse a file that `torch.save` would not write."""
    size = path.stat().st_size
    try:
        with path.open("rb") as file, zipfile.ZipFile(file) as archive:
            entries = archive.infolist()
            file.seek(0)
            first = file.read(4)
            file.seek(max(size - 22, 0))
            last = file.read()
    except Exception as error:  # reading a damaged archive raises errors of every kind
        raise WeightsError(
            f"{path} is not a complete checkpoint of torch.save ({error}); get it again, or, if it "
            "was saved with torch before 1.6, save it again with a newer torch."
        ) from error
    # The archive must be the whole file, so that all readers see the same one.
    whole = first == b"PK\x03\x04" and last[:4] == b"PK\x05\x06" and last[-2:] == b"\0\0"
    content = sum(entry.file_size for entry in entries)
    stored = all(
        entry.compress_type == zipfile.ZIP_STORED and entry.compress_size == entry.file_size
        for entry in entries
    )
    if not (whole and stored) or len(entries) > MAX_ENTRIES or content > size:
        raise WeightsError(
            f"{path} is not an uncompressed archive of {size} bytes, as torch.save writes it; do "
            "not trust it."
        )
    pickles = [entry for entry in entries if entry.filename.endswith(".pkl")]
    if len(pickles) != 1 or pickles[0].filename.split("/")[1:] != ["data.pkl"]:
        raise WeightsError(
            f"{path} has the pickles {listed(entry.filename for entry in pickles)} instead of one "
            "data.pkl; scripted models and other archives cannot be read."
        )
    if pickles[0].file_size > MAX_PICKLE_BYTES:
        raise WeightsError(
            f"{path} has a pickle of {pickles[0].file_size} bytes, more than {MAX_PICKLE_BYTES}; "
            "save the state dict of the student only."
        )


RELEASE = (
    "Converted from {name} (SHA-256 {digest}), a checkpoint in the form of the authors' release of "
    "VECA (arXiv 2605.12491, github.com/alansong1322/VECA). That release states no license: ask "
    "its authors before you redistribute these weights or what you make of them. According to the "
    "paper, the models were distilled from DINOv3 ViTs of the same size, whose license may apply "
    "too, on Objects365 without labels."
)
"""What the card of a converted model says about its origin."""

HEAD_WIDTH = 64
"""Channels of a head in all sizes of the paper."""

WRAPPERS = ("module.", "_orig_mod.", "student.")
"""Prefixes of names in distributed, compiled and distilled models."""

ADAPTOR = ("output_proj.weight", "output_proj.bias")
"""The projection to the teacher's width, which is not part of a backbone."""

ROTARY_BASES = ("rope_base", "rope_theta", "base")
"""Settings that may hold the rotary base; their code has it as a constant."""

MAX_KEYS = 40
"""Keys that an error lists."""

THEIR_NAMES = (
    ("patch_embedding.", "patch_embed.proj."),
    ("core_bank.tokens.", "query_token_chunks."),
    ("core_bank.points.", "qcoord_chunks."),
    ("core_steps.", "pos_linears."),
    (".head.", "."),
    (".attention_norm.", ".norm_attn."),
    (".feedforward_norm.", ".norm_ffn."),
    (".attention.query.", ".attn.q_proj."),
    (".attention.key.", ".attn.k_proj."),
    (".attention.value.", ".attn.v_proj."),
    (".attention.output.", ".attn.out_proj."),
    (".feedforward.expand.", ".fc1."),
    (".feedforward.contract.", ".fc2."),
)
"""Parts of our names and of the authors'; other parts are the same."""

State = Mapping[str, Tensor]


def load_official(path: Source) -> VECA:
    """The model in a checkpoint of the authors' release, in evaluation mode and fp32."""
    file = Path(path).expanduser()
    state, settings = _read(file)
    model = converted(state, settings, str(path))
    check_finite(model.state_dict(), str(path))
    with file.open("rb") as content:
        digest = hashlib.file_digest(content, "sha256").hexdigest()
    model.provenance = Provenance(notes=RELEASE.format(name=file.name, digest=digest))
    return model


def load_official_adaptor(path: Source) -> nn.Linear | None:
    """The projection to the teacher's width in a checkpoint, if it has one."""
    state, _ = _read(Path(path).expanduser())
    if "output_proj.weight" not in state:
        return None
    outputs, inputs = _shape(state, "output_proj.weight", 2, str(path))
    bias = state.get("output_proj.bias")
    if bias is not None and bias.shape != (outputs,):
        raise WeightsError(
            f"{path} has an output_proj whose bias does not fit its weight; get it again."
        )
    adaptor = nn.utils.skip_init(nn.Linear, inputs, outputs, bias=bias is not None)
    adaptor.weight.data = _owned(state["output_proj.weight"])
    if bias is not None:
        adaptor.bias.data = _owned(bias)
    return adaptor.eval()


def converted(state: State, settings: Mapping[str, Any], where: str) -> VECA:
    """Our model from the authors' state dict and its configuration, `settings`."""
    config = inferred_config(state, settings, where)
    check_plausible(config, state, where)
    names = {name: their_name(name) for name in expected_shapes(config)}
    missing = sorted(set(names.values()) - state.keys())
    left_over = sorted(state.keys() - {*names.values(), *ADAPTOR, "pos_alpha"})
    if missing or left_over:
        problems = [f"lacks {listed(missing, MAX_KEYS)}"] if missing else []
        problems += [f"has unexpected {listed(left_over, MAX_KEYS)}"] if left_over else []
        raise WeightsError(
            f"{where} {' and '.join(problems)}, so it is not a checkpoint of the authors' release; "
            "get it again, or rename its keys."
        )
    tensors = {name: our_tensor(config, state, name) for name in names}
    check_shapes(config, tensors, where)
    return model_with(config, {name: _owned(tensor) for name, tensor in tensors.items()})


def inferred_config(state: State, settings: Mapping[str, Any], where: str) -> BackboneConfig:
    """The configuration inferred from shapes and settings."""
    width, channels, side, _ = _shape(state, "patch_embed.proj.weight", 4, where)
    _, hidden = _shape(state, "blocks.0.fc2.weight", 2, where)
    chunks = _numbers(state, r"query_token_chunks\.(\d{1,6})")
    sizes = [_shape(state, f"query_token_chunks.{n}", 3, where)[1] for n in chunks]
    heads = settings.get("num_heads", width // HEAD_WIDTH)
    given = [settings[name] for name in ROTARY_BASES if settings.get(name) is not None]
    if settings.get("rope_zero_freqs_from", "low") != "low":
        raise WeightsError(
            f"{where} disables the shortest rotary periods, which is not supported; only "
            "rope_zero_freqs_from='low' is."
        )
    try:
        return BackboneConfig(
            layers=len(_numbers(state, r"blocks\.(\d{1,6})\..*")),
            width=width,
            heads=heads,
            ffn_ratio=_ratio(width, hidden),
            patch_size=side,
            in_channels=channels,
            budgets=tuple(itertools.accumulate(sizes)),
            rotary_base=float(given[0]) if given else BackboneConfig.rotary_base,
            rotary_still=float(settings.get("rope_p_zero_freqs", 0.125)),
            coordinate_shift=float(settings.get("rope_shift_coords", 0.08) or 0),
            coordinate_rescale=float(settings.get("rope_rescale_coords", 2.0) or 1),
        )
    except (ValueError, TypeError, ArithmeticError) as error:
        raise WeightsError(f"{where} has an invalid configuration: {error}") from error


def their_name(name: str) -> str:
    """The name of one of our parameters in the authors' code."""
    if name.endswith(".scale"):  # one vector holds the scales of all layers
        return "pos_alpha"
    for ours, theirs in THEIR_NAMES:
        name = name.replace(ours, theirs)
    return name


def our_tensor(config: BackboneConfig, state: State, name: str) -> Tensor:
    """One of our parameters from their state dict, as a view where possible."""
    tensor = state[their_name(name)]
    if name.endswith(".scale"):
        layer = int(name.split(".")[1])
        return tensor[layer : layer + 1] if tensor.shape == (config.layers - 1,) else tensor
    if name.startswith("core_bank."):
        return tensor[0] if tensor.ndim == 3 and len(tensor) == 1 else tensor
    rotated = ".attention.query." in name or ".attention.key." in name
    return _permuted(config, tensor) if rotated and len(tensor) == config.width else tensor


def _permuted(config: BackboneConfig, rows: Tensor) -> Tensor:
    """Channels of each head from (axis, frequency, part) to our (part, axis, frequency)."""
    split = rows.unflatten(0, (config.heads, 2, config.head_width // 4, 2))
    return split.movedim(3, 1).flatten(0, 3)


def _read(path: Path) -> tuple[State, Mapping[str, Any]]:
    """State dict and settings of a checkpoint; no code in the file is executed."""
    if not path.is_file():
        raise WeightsError(f"{path} is not a file; give the path of a checkpoint.")
    check_archive(path)
    try:
        content = torch.load(path, map_location="cpu", weights_only=True, mmap=True)
    except Exception as error:
        reason = (str(error) or type(error).__name__).splitlines()[0][:200]
        raise WeightsError(
            f"{path} cannot be read by torch ({reason}); get it again, or if you trust its author, "
            "save the state dict of the student only."
        ) from error
    whole = isinstance(content, Mapping) and "student" in content
    state = content["student"] if whole else content
    settings = content.get("config") if whole else None
    _check_state(state, path)
    return _unwrapped(state), settings if isinstance(settings, Mapping) else {}


def _check_state(state: object, path: Path) -> None:
    """Require a dictionary of weights that are not larger than the file."""
    weights = state if isinstance(state, Mapping) else {}
    if not weights or not all(
        isinstance(name, str) and isinstance(item, Tensor) and item.is_floating_point()
        for name, item in weights.items()
    ):
        odd = [str(name) for name, item in weights.items() if not isinstance(item, Tensor)]
        raise WeightsError(
            f"{path} has {f'entries such as {listed(odd)}' if odd else 'no weights'}; it must be a "
            "state dict, or a dictionary with 'student' and 'config'."
        )
    claimed = sum(tensor.numel() * tensor.element_size() for tensor in weights.values())
    if claimed > path.stat().st_size:
        raise WeightsError(
            f"{path} claims {claimed} bytes of weights, more than the file has; do not trust it."
        )


def _unwrapped(state: State) -> State:
    """The state dict without the prefixes of distributed and compiled models."""
    for wrapper in WRAPPERS * 2:  # in either order
        if all(name.startswith(wrapper) for name in state):
            state = {name.removeprefix(wrapper): tensor for name, tensor in state.items()}
    return state


def _shape(state: State, name: str, dimensions: int, where: str) -> tuple[int, ...]:
    """The shape of a tensor that determines sizes."""
    tensor = state.get(name)
    if tensor is None or tensor.ndim != dimensions:
        got = "has no" if tensor is None else f"has the shape {tuple(tensor.shape)} for"
        raise WeightsError(
            f"{where} {got} {name}, which needs {dimensions} dimensions; it is not a checkpoint "
            f"of the authors' release (it has {listed(sorted(state))})."
        )
    return tuple(tensor.shape)


def _numbers(state: State, pattern: str) -> list[int]:
    """The numbers in names of this form, sorted."""
    found = (re.fullmatch(pattern, name, re.ASCII) for name in state)
    return sorted({int(match[1]) for match in found if match})


def _ratio(width: int, hidden: int) -> float:
    """A ratio that gives this number of hidden units, that of a named size if possible."""
    for known in SIZES.values():
        if int(width * known.ffn_ratio) == hidden:
            return known.ffn_ratio
    return (hidden + 0.5) / width


def _owned(tensor: Tensor) -> Tensor:
    """A copy in fp32 that does not share memory with the file."""
    return tensor.to(torch.float32, copy=True).contiguous()
