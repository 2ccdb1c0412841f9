"""Run an exported file without torch: ONNX Runtime or OpenVINO, numpy arrays in and out.

`Session` is called like a model: `session(images, budget=16)`. Images are normalized as
`veca.preprocess` does it, or bytes of any size for a file that resizes them itself
(`veca export onnx --preprocess`). Nothing here imports torch.
"""

import json
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Literal, NamedTuple, SupportsIndex, cast, get_args

import numpy as np
from numpy.typing import NDArray

from veca.runtime import VecaError

Runtime = Literal["onnx", "openvino"]
Array = NDArray[np.floating]
Run = Callable[[Mapping[str, NDArray[Any]]], list[Array]]

METADATA_NAME = "veca"
"""Key of the JSON that describes a file, in its metadata."""

FORMAT = 1
"""Of that JSON; raised when older readers must refuse a file."""


class SessionError(VecaError, ValueError):
    """An exported file cannot be opened, or not be called like this."""


class SessionFeatures(NamedTuple):
    """Features as arrays; None where the file was exported without them."""

    image: Array | None
    """(B, D), the first core."""
    cores: Array | None
    """(B, C, D)"""
    patches: Array | None
    """(B, N, D), row by row."""
    core_points: Array | None
    """(B, C, 2), x then y, within (-1, 1)."""
    grid: tuple[int, int]
    """Rows and columns of patches."""

    @property
    def patch_map(self) -> Array | None:
        """The patches as an image (B, D, rows, columns)."""
        if self.patches is None:
            return None
        return np.moveaxis(self.patches, 2, 1).reshape(len(self.patches), -1, *self.grid)


def session(
    file: str | os.PathLike[str], runtime: Runtime = "onnx", threads: int | None = None
) -> "Session":
    """Open a file that `veca export onnx` wrote.

    Args:
        file: the ONNX file.
        runtime: 'onnx' for ONNX Runtime, 'openvino' for OpenVINO.
        threads: of one call; None leaves the choice to the runtime.
    """
    path = Path(file).expanduser()
    if not path.is_file():
        raise SessionError(f"{path} does not exist; make it with: veca export onnx.")
    if runtime not in get_args(Runtime):
        raise SessionError(f"runtime={runtime!r} is unknown; use 'onnx' or 'openvino'.")
    opened = (_onnx_runtime if runtime == "onnx" else _openvino)(path, threads)
    return Session(_checked_metadata(path, opened.metadata), opened.run)


class Session:
    """A model in an ONNX file, from `veca.session`."""

    def __init__(self, metadata: dict[str, Any], run: Run) -> None:
        self.metadata = metadata
        """What the file says of itself, such as 'budgets', 'patch_size', 'mean' and 'std'."""
        self._run = run
        self.budget: int | None = None
        """Cores to use when a call gives no budget; None uses the file's default."""

    def __call__(
        self, images: NDArray[Any], budget: SupportsIndex | None = None
    ) -> SessionFeatures:
        """Encode a batch with the first `budget` cores, as the model does.

        Without a budget: `self.budget`, else the default of the file, else all cores.
        """
        pixels, grid = self._checked_images(np.asarray(images))
        feed: dict[str, NDArray[Any]] = {"pixels": pixels}
        if (cores := self._input_budget(budget)) is not None:
            feed["budget"] = np.asarray(cores, np.int64)
        found: dict[str, Array] = dict(zip(self.metadata["outputs"], self._run(feed), strict=True))
        return SessionFeatures(
            found.get("image"), found.get("cores"), found.get("patches"), found.get("points"), grid
        )

    def chosen_budget(self, budget: SupportsIndex | None = None) -> int | None:
        """Cores that a call uses; None for full attention."""
        fixed: int | None = self.metadata["budget"]
        return fixed or self._input_budget(budget)

    def _input_budget(self, budget: SupportsIndex | None) -> int | None:
        """The budget to feed; None for a file without that input."""
        facts, wanted = self.metadata, self.budget if budget is None else budget
        if facts["attention"] == "full" or facts["budget"] is not None:
            if wanted is None or wanted == facts["budget"]:
                return None
            kind = (
                "full attention has no cores"
                if facts["attention"] == "full"
                else f"it was exported with {facts['budget']} cores"
            )
            raise SessionError(f"budget={wanted!r} cannot be used: {kind}; omit it.")
        if wanted is None:
            return int(facts["default_budget"] or facts["cores"])
        cores = -1 if isinstance(wanted, bool) else wanted.__index__()
        if not 1 <= cores <= facts["cores"]:
            raise SessionError(
                f"budget={wanted!r} is outside 1..{facts['cores']}, the cores of this model; omit "
                "it to use its default."
            )
        return cores

    def _checked_images(self, images: NDArray[Any]) -> tuple[NDArray[Any], tuple[int, int]]:
        """Images in the type that the file takes, and the grid of their patches."""
        facts = self.metadata
        if facts["resize_to"] is not None:
            if images.ndim != 4 or images.shape[3] != 3 or images.dtype != np.uint8:
                raise SessionError(
                    f"images are {images.dtype} of the shape {images.shape}, but this file takes "
                    "uint8 of (B, height, width, 3); stack pictures of one size."
                )
            height, width = images.shape[1:3]
            return images, resized_grid(height, width, facts["resize_to"], facts["patch_size"])
        channels = facts["backbone"]["in_channels"]
        floats = np.issubdtype(images.dtype, np.floating)
        if images.ndim != 4 or images.shape[1] != channels or not floats:
            raise SessionError(
                f"images are {images.dtype} of the shape {images.shape}, but must be normalized "
                f"floats (B, {channels}, height, width), as from veca.preprocess."
            )
        sides, patch = images.shape[2:], facts["patch_size"]
        if facts["fixed_size"] is not None and list(sides) != list(facts["fixed_size"]):
            raise SessionError(
                f"images have {sides[0]} x {sides[1]} pixels (height x width), but this file was "
                f"exported for {' x '.join(map(str, facts['fixed_size']))}; resize them, or export "
                "without --fixed-size."
            )
        if min(sides) < patch or any(side % patch for side in sides):
            raise SessionError(
                f"images have {sides[0]} x {sides[1]} pixels, but sides must be multiples of the "
                f"patch size {patch}; resize, crop or pad them."
            )
        return images.astype(np.float32, copy=False), (sides[0] // patch, sides[1] // patch)


def resized_grid(height: int, width: int, size: int, patch: int) -> tuple[int, int]:
    """Rows and columns once the short side is `size` and each is rounded to whole patches."""
    short = min(height, width) * patch
    rows, columns = (max(1, (2 * side * size + short) // (2 * short)) for side in (height, width))
    return rows, columns


class _Opened(NamedTuple):
    """A file in a runtime."""

    metadata: str | None
    run: Run


def _onnx_runtime(path: Path, threads: int | None) -> _Opened:
    """Open with ONNX Runtime; with CUDA where its build has it."""
    try:
        import onnxruntime  # noqa: PLC0415 - an extra
    except ImportError as error:
        raise SessionError("this needs onnxruntime: pip install 'veca[onnx]'.") from error
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads or 0
    wanted = ("CUDAExecutionProvider", "CPUExecutionProvider")
    usable = [name for name in wanted if name in onnxruntime.get_available_providers()]
    try:
        session = onnxruntime.InferenceSession(path, options, providers=usable)
    except Exception as error:  # the runtime has a class of its own for each way to fail
        raise _unreadable(path, error) from error
    metadata = session.get_modelmeta().custom_metadata_map.get(METADATA_NAME)
    return _Opened(metadata, lambda feed: cast(list[Array], session.run(None, dict(feed))))


def _openvino(path: Path, threads: int | None) -> _Opened:
    """Open with OpenVINO on the CPU, computing in fp32: its own default may be bf16."""
    try:
        import openvino  # noqa: PLC0415 - an extra
    except ImportError as error:
        raise SessionError("this needs openvino: pip install 'veca[openvino]'.") from error
    options: dict[str, Any] = {"INFERENCE_PRECISION_HINT": "f32"}
    if threads is not None:
        options["INFERENCE_NUM_THREADS"] = threads
    try:
        core = openvino.Core()
        model = core.read_model(path)
        compiled = core.compile_model(model, "CPU", options)
    except Exception as error:  # as above
        raise _unreadable(path, error) from error
    place = ["framework", METADATA_NAME]
    metadata = model.get_rt_info(place).astype(str) if model.has_rt_info(place) else None

    def run(feed: Mapping[str, NDArray[Any]]) -> list[Array]:
        found = compiled(dict(feed))
        return [np.asarray(found[output]) for output in compiled.outputs]

    return _Opened(metadata, run)


def _unreadable(path: Path, error: Exception) -> SessionError:
    """One sentence for whatever a runtime says of a file."""
    reason = (str(error) or type(error).__name__).splitlines()[0][:200]
    return SessionError(
        f"{path} cannot be opened ({reason}); it is damaged or no ONNX file: export it again."
    )


def _checked_metadata(path: Path, text: str | None) -> dict[str, Any]:
    """The description that `veca export onnx` put into the file."""
    if text is None:
        raise SessionError(
            f"{path} has no description by veca; open files that `veca export onnx` wrote."
        )
    facts = json.loads(text)
    if facts.get("format") != FORMAT:
        raise SessionError(
            f"{path} has the format {facts.get('format')!r}, this veca reads {FORMAT}; update "
            "veca, or export again."
        )
    return cast(dict[str, Any], facts)
