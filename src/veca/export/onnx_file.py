"""Write a model as one ONNX file, checked by ONNX Runtime before it gets its name.

torch's exporter (the one built on `torch.export`) translates the graph; names of symbolic sizes
become readable, traces of the machine that exported are dropped, and `describe` goes into the
file's metadata. int8 quantizes the weights of matrix products per channel, and activations while it
runs, so it needs no calibration.
"""

import contextlib
import io
import json
import logging
import re
import tempfile
import warnings
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from veca.backbone.model import VECA
from veca.export.graph import (
    Difference,
    Example,
    ExportConfig,
    ExportError,
    Graph,
    describe,
    examples,
    to_program,
    verify,
)
from veca.export.session import METADATA_NAME
from veca.runtime.files import write_atomic

OPSET = 20

MAX_BYTES = 2**31 - 2**24
"""Of weights: a protobuf message ends at 2 GiB, and the graph needs room too."""


def export_onnx(model: VECA, file: Path, config: ExportConfig) -> Difference:
    """Write the file once ONNX Runtime gives the features of the model; say how close they are."""
    try:
        import onnx  # noqa: PLC0415, F401 - an extra
        import onnxruntime  # noqa: PLC0415, F401
        import onnxscript  # noqa: PLC0415, F401
    except ImportError as error:
        raise ExportError(
            f"exporting to ONNX needs {error.name}; install it with: pip install 'veca[export]'."
        ) from error
    graph = Graph(model, config)
    size = sum(weight.nbytes for weight in graph.state_dict().values())
    if size > MAX_BYTES:
        raise ExportError(
            f"the weights take {size / 1e9:.1f} GB, but one ONNX file holds 2.1; use precision "
            "fp16, or veca export torch."
        )
    content = _translated(graph)
    if config.precision == "int8":
        content = _quantized(content)
    _set_metadata(content, describe(graph, model))
    data = content.SerializeToString(deterministic=True)
    found = verify(graph, model, _runner(data), examples(graph))
    write_atomic(file, [data])
    return found


def _translated(graph: Graph) -> Any:  # noqa: ANN401 - an onnx.ModelProto
    """The graph in ONNX."""
    inputs = ["pixels", *(["budget"] if graph.has_budget_input else [])]
    with _quiet():
        program = torch.onnx.export(
            to_program(graph),
            dynamo=True,
            opset_version=OPSET,
            input_names=inputs,
            output_names=list(graph.config.outputs),
            external_data=False,
        )
    if program is None:
        raise ExportError("torch gave no ONNX program; please report this.")
    content = program.model_proto
    _rename_sizes(content, graph)
    for node in _nodes(content.graph):  # traces of the code that made it, with its paths
        del node.metadata_props[:]
        node.doc_string = ""
    for value in (*content.graph.value_info, *content.graph.input, *content.graph.output):
        del value.metadata_props[:]
    del content.graph.metadata_props[:]
    return content


def _nodes(graph: Any) -> Iterator[Any]:  # noqa: ANN401
    """All nodes, those of inner graphs too."""
    for node in graph.node:
        yield node
        for attribute in node.attribute:
            if attribute.HasField("g"):
                yield from _nodes(attribute.g)


def _rename_sizes(content: Any, graph: Graph) -> None:  # noqa: ANN401
    """Call symbolic sizes what they are: batch, height, width, budget."""
    dims = content.graph.input[0].type.tensor_type.shape.dim
    layout = (
        ("batch", "height", "width", "")
        if graph.config.resize_to
        else ("batch", "", "height", "width")
    )
    names = {
        dim.dim_param: name
        for dim, name in zip(dims, layout, strict=True)
        if dim.dim_param and name
    }
    for value in (*content.graph.value_info, *content.graph.input, *content.graph.output):
        for dim in value.type.tensor_type.shape.dim:
            if dim.dim_param:
                words = re.sub(r"\bu\d+\b", "budget", dim.dim_param)
                dim.dim_param = re.sub(r"\w+", lambda w: names.get(w[0], w[0]), words)


def _quantized(content: Any) -> Any:  # noqa: ANN401
    """Matrix products in int8: weights per channel, activations per tensor and call."""
    import onnx  # noqa: PLC0415 - an extra
    from onnxruntime.quantization import QuantType, quantize_dynamic  # noqa: PLC0415

    with tempfile.TemporaryDirectory() as folder, _quiet():
        target = Path(folder) / "int8.onnx"
        quantize_dynamic(
            content, target, op_types_to_quantize=["MatMul", "Gemm"],
            per_channel=True, weight_type=QuantType.QInt8,
        )  # fmt: skip
        return onnx.load(target)


def _set_metadata(content: Any, description: dict[str, Any]) -> None:  # noqa: ANN401
    """Put the description, and who made the file, into it."""
    del content.metadata_props[:]
    entry = content.metadata_props.add()
    entry.key, entry.value = METADATA_NAME, json.dumps(description)
    content.producer_name, content.producer_version = "veca", description["veca_version"]
    content.doc_string = ""


def _runner(data: bytes) -> Callable[[Example], Sequence[Tensor]]:
    """The file in ONNX Runtime."""
    import onnxruntime  # noqa: PLC0415 - an extra

    session = onnxruntime.InferenceSession(data, providers=["CPUExecutionProvider"])

    def run(example: Example) -> Sequence[Tensor]:
        feed = {"pixels": example.pixels.contiguous().numpy()}
        if example.budget is not None:
            feed["budget"] = example.budget.numpy()
        return [torch.from_numpy(np.asarray(found)) for found in session.run(None, feed)]

    return run


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Silence libraries that print and log about themselves while they export."""
    loggers = [logging.getLogger(name) for name in ("torch.onnx", "onnxscript", "onnx_ir", "")]
    levels = [logger.level for logger in loggers]
    with warnings.catch_warnings(), contextlib.redirect_stdout(io.StringIO()):
        warnings.simplefilter("ignore")
        try:
            for logger in loggers:
                logger.setLevel(logging.ERROR)
            yield
        finally:
            for logger, level in zip(loggers, levels, strict=True):
                logger.setLevel(level)
