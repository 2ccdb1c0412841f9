"""A small model behind a page, in this process and on a port."""

import io
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import pytest
import torch
from PIL import Image

import veca
from veca.explore import server
from veca.explore.session import Explorer
from veca.weights.checkpoint import NamedModel


def small_explorer(attention: str = "core-periphery") -> Explorer:
    """A model of three layers that takes no time."""
    more = {} if attention == "full" else {"budgets": (2, 4), "ffn_shares": (0.5, 1.0)}
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = veca.build(
            "tiny", layers=3, width=32, heads=2, core_motion="normalized", attention=attention,
            **more,
        ).eval()  # fmt: skip
    return Explorer(NamedModel(model, "small", trained=True, digest="0" * 64))


def picture_file(width: int = 60, height: int = 40, seed: int = 0, kind: str = "PNG") -> bytes:
    """A file of colored noise."""
    noise = np.random.default_rng(seed).integers(0, 256, (height, width, 3), np.uint8)
    buffer = io.BytesIO()
    Image.fromarray(noise).save(buffer, kind)
    return buffer.getvalue()


@contextmanager
def served(explorer: Explorer) -> Iterator[int]:
    """A real server in a thread; yields its port."""
    listener = server.free_socket(0)
    listener.listen(128)
    running = server.http_server(explorer)
    thread = threading.Thread(target=running.run, kwargs={"sockets": [listener]})
    thread.start()
    try:
        yield listener.getsockname()[1]
    finally:
        running.should_exit = True
        thread.join(20)
        listener.close()


@pytest.fixture
def explorer() -> Explorer:
    return small_explorer()
