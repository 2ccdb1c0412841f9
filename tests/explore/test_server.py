"""The API: pictures in, features, maps and cost out; safe against what comes from elsewhere."""

import http.client
import io
import json
import os
import re
import socket
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import schemathesis
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from PIL import Image
from starlette.testclient import TestClient

import veca
from tests.explore.conftest import picture_file, served, small_explorer
from veca.explore import server
from veca.explore.session import Explorer, Worker
from veca.runtime import VecaError


@pytest.fixture(scope="module")
def client() -> Iterator[TestClient]:
    with TestClient(server.create_app(small_explorer()), base_url="http://127.0.0.1:8765") as found:
        yield found


@pytest.fixture
def picture(client: TestClient) -> str:
    return upload(client)


def upload(client: TestClient, data: bytes | None = None) -> str:
    """The name of an uploaded picture."""
    answer = client.post("/api/pictures", content=picture_file() if data is None else data)
    assert answer.status_code == 200, answer.text
    return answer.json()["picture"]


def detail(answer: Any, status: int) -> str:
    """The sentence of an error."""
    assert answer.status_code == status, answer.text
    sentence: str = answer.json()["detail"]
    assert sentence.endswith("."), sentence
    return sentence


def test_a_picture_goes_in_and_the_features_of_the_model_come_out(client: TestClient) -> None:
    answer = client.post("/api/pictures", content=picture_file()).json()
    assert (answer["width"], answer["height"]) == (60, 40)
    query = "size=48&budget=3&ffn=0.5&layer=-2"
    with torch.inference_mode():
        (expected,) = small_explorer().model.intermediates(
            veca.preprocess(picture_file(), size=48)[None], [1], 3, 0.5
        )
    shapes = {"patches": expected.patch_map[0].permute(1, 2, 0), "cores": expected.cores[0],
              "image": expected.image[0]}  # fmt: skip
    for tokens, values in shapes.items():
        address = f"/api/pictures/{answer['picture']}/features.npy?{query}&tokens={tokens}"
        found = np.load(io.BytesIO(client.get(address).content))
        assert found.dtype == np.float32
        np.testing.assert_allclose(found, values.numpy(), atol=1e-6)


@pytest.mark.parametrize("view", ["colors", "cores", "core", "objects", "similarity"])
def test_a_map_is_a_png_with_a_square_for_each_patch(
    client: TestClient, picture: str, view: str
) -> None:
    answer = client.get(f"/api/pictures/{picture}/map.png?size=48&view={view}&scale=4&core=2")
    assert answer.headers["content-type"] == "image/png"
    with Image.open(io.BytesIO(answer.content)) as found:
        assert found.size == (20, 12)
        enlarged = np.asarray(found)
    np.testing.assert_array_equal(enlarged, enlarged[::4, ::4].repeat(4, 0).repeat(4, 1))


def test_cost_has_times_and_formulas_of_both_kinds_of_attention(
    client: TestClient, picture: str
) -> None:
    found = client.get(f"/api/pictures/{picture}/cost?size=48&budget=2").json()
    assert found["model"]["pairs"] == 2 * 15 * 2 + 4
    assert found["full"]["pairs"] == 16**2
    assert found["model"]["ms"] > 0 < found["full"]["ms"]
    assert client.get(f"/api/pictures/{picture}/cost?size=48&budget=2").json() == found  # once


def test_full_attention_that_would_hold_up_everything_is_not_timed(
    client: TestClient, picture: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Explorer, "milliseconds", lambda *_: 1.0)
    assert client.get(f"/api/pictures/{picture}/cost?size=64").json()["full"]["ms"] is not None
    monkeypatch.setattr(Explorer, "milliseconds", lambda *_: server.MOST_MILLISECONDS + 1)
    slow = client.get(f"/api/pictures/{picture}/cost?size=512").json()
    assert slow["model"]["ms"] == server.MOST_MILLISECONDS + 1
    assert slow["full"]["ms"] is None
    assert slow["full"]["gflops"] > slow["model"]["gflops"]


def test_a_view_has_all_that_the_page_draws(client: TestClient, picture: str) -> None:
    address = f"/api/pictures/{picture}/view?size=48&budget=3"
    found = client.get(f"{address}&view=similarity&point=30,20").json()
    assert found["grid"] == [3, 5]
    assert np.array(found["cosine"]).shape == (3, 5)
    assert found["cosine"][found["best"][0]][found["best"][1]] == 1.0
    assert found["png"].startswith("data:image/png;base64,")
    paths = client.get(f"{address}&view=paths&layer=1").json()
    assert np.array(paths["points"]).shape == (3, 2, 2)
    assert np.array(paths["colors"]).shape == (3, 3)


@pytest.mark.parametrize(
    ("path", "status", "message"),
    [
        ("view?size=5000", 422, "size: Input should be less than or equal to 1024, not '5000'."),
        ("view?budget=9", 422, "budget=9 is outside 1..4"),
        ("view?ffn=2", 422, "ffn: Input should be less than or equal to 1"),
        ("view?layer=3", 422, "layer 3 is outside -3..2"),
        ("view?view=nothing", 422, "view: Input should be 'colors',"),
        ("view?point=1,x", 422, "point: String should match"),
        ("view?view=similarity&point=600,1", 422, "outside the original image"),
        ("view?beside=00000000000000000000", 404, "no longer in memory"),
        ("map.png?view=core&core=4", 422, "core=4 is outside 0..3"),
        ("map.png?view=paths", 422, "GET .../view?view=paths has their points"),
        ("neighbors", 404, "start with veca explore --in"),
        ("nothing", 404, "the page is at /"),
    ],
)
def test_a_mistake_is_one_sentence(
    client: TestClient, picture: str, path: str, status: int, message: str
) -> None:
    assert message in detail(client.get(f"/api/pictures/{picture}/{path}"), status)


def test_memory_that_runs_out_is_no_crash(
    client: TestClient, picture: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise RuntimeError(
            "[enforce fail at alloc_cpu.cpp] DefaultCPUAllocator: can't allocate memory"
        )

    monkeypatch.setattr(Explorer, "view", fail)
    answer = client.get(f"/api/pictures/{picture}/view")
    assert "Memory ran out" in detail(answer, 503)


# Safety


@pytest.mark.parametrize(
    "headers",
    [
        {"host": "evil.example"},
        {"host": "evil.example:8765"},
        {"host": "127.0.0.1.evil.example:8765"},
        {"host": "127.0.0.1:8765:80"},
        {"host": ""},
        {"origin": "http://evil.example"},
        {"origin": "null"},
        {"origin": "https://127.0.0.1:8765"},
        {"origin": "http://127.0.0.1:9999"},
        {"sec-fetch-site": "cross-site"},
        {"sec-fetch-site": "same-site", "sec-fetch-mode": "navigate"},
    ],
    ids=str,
)
def test_other_sites_are_refused(client: TestClient, headers: dict[str, str]) -> None:
    assert detail(client.get("/api/model", headers=headers), 403)
    assert detail(client.post("/api/pictures", headers=headers, content=picture_file()), 403)


@pytest.mark.parametrize(
    "headers",
    [
        {},
        {"host": "localhost:1234"},
        {"host": "127.0.0.1"},
        {"host": "[::1]:8765"},
        {"origin": "http://127.0.0.1:8765", "sec-fetch-site": "same-origin"},
    ],
    ids=str,
)
def test_this_machine_is_answered_by_every_name(
    client: TestClient, headers: dict[str, str]
) -> None:
    assert client.get("/api/model", headers=headers).status_code == 200


def test_a_link_from_elsewhere_opens_the_page_and_nothing_else(client: TestClient) -> None:
    followed = {"sec-fetch-site": "cross-site", "sec-fetch-mode": "navigate"}
    assert client.get("/", headers=followed).status_code == 200
    assert client.get("/", headers={**followed, "sec-fetch-mode": "no-cors"}).status_code == 403


@pytest.mark.parametrize(
    "path", ["/", "/app.js", "/api", "/api/model", "/nowhere", "/api/pictures/x"]
)
def test_every_answer_carries_the_strict_policy(client: TestClient, path: str) -> None:
    for headers in ({}, {"host": "evil.example"}):
        found = client.get(path, headers=headers).headers
        policy = found["content-security-policy"]
        assert "default-src 'none'" in policy
        assert "unsafe" not in policy
        assert "http" not in policy
        assert found["x-content-type-options"] == "nosniff"
        assert found["cache-control"] == "no-store"


def test_no_file_of_the_page_names_another_host_or_runs_inline_code(client: TestClient) -> None:
    for path in (*server.FILES, "/page.css", "/api"):
        text = client.get(path).text
        addresses = set(re.findall(r"(?:https?:)?//[\w.-]+\.\w+[^\s\"'<]*", text))
        assert not {one for one in addresses if "127.0.0.1" not in one and "www.w3.org" not in one}
        assert not re.search(
            r"<script(?![^>]* src=\"/)|<style|\sstyle=|\son\w+=\"|javascript:", text
        )
        assert "innerHTML" not in text


def test_the_api_page_describes_every_route(client: TestClient) -> None:
    page, description = client.get("/api").text, client.get("/openapi.json").json()
    assert len(description["paths"]) == 12
    for path in description["paths"]:
        assert path in page
    for words in ("colors, cores, core, paths, objects, similarity", "32..1024, default 448"):
        assert words in page


def in_chunks(data: bytes, size: int = 2**16) -> Iterator[bytes]:
    """A body of unknown length."""
    for start in range(0, len(data), size):
        yield data[start : start + size]


def test_an_upload_is_limited_by_the_bytes_that_arrive(
    client: TestClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = picture_file()
    monkeypatch.setattr(server, "MAX_UPLOAD", len(whole))
    assert client.post("/api/pictures", content=in_chunks(whole, 100)).status_code == 200
    for body in (whole + b"x", in_chunks(whole + b"x", 100)):
        assert "too large" in detail(client.post("/api/pictures", content=body), 413)
    for length in ("99999999999999999999", "-1", "1e3"):
        lying = client.post("/api/pictures", content=whole, headers={"content-length": length})
        assert lying.status_code == 413


@pytest.mark.parametrize(
    "data",
    [b"", b"no picture", picture_file()[:200], b"%!PS-Adobe-3.0 EPSF", b"GIF89a" + b"\xff" * 50,
     b"\x89PNG\r\n\x1a\n" + b"\0" * 100],
)  # fmt: skip
def test_a_bad_upload_is_refused_and_the_next_one_works(client: TestClient, data: bytes) -> None:
    assert detail(client.post("/api/pictures", content=data), 422).startswith("This picture")
    assert upload(client)


def test_a_full_queue_answers_503_and_a_newer_request_replaces_an_older_one() -> None:
    worker, go, started = Worker(most_waiting=2), threading.Event(), threading.Event()
    explorer = small_explorer()
    name = explorer.open(picture_file()).name
    app = server.create_app(explorer, worker)
    with TestClient(app, base_url="http://127.0.0.1:8765") as client, ThreadPoolExecutor(8) as pool:
        worker.submit(started.set)
        worker.submit(partial(go.wait, 60))
        assert started.wait(10)
        wait_for(lambda: not worker._waiting)

        def ask(query: str) -> Any:
            return client.get(f"/api/pictures/{name}/view?size=48{query}")

        old = pool.submit(ask, "&client=page-1")
        wait_for(lambda: len(worker._waiting) == 1)
        new = pool.submit(ask, "&client=page-1&view=cores")
        assert "newer request" in detail(old.result(20), 409)
        other = pool.submit(ask, "")
        wait_for(lambda: len(worker._waiting) == 2)
        full = ask("&view=objects")
        assert "Too many requests are waiting" in detail(full, 503)
        assert full.headers["retry-after"] == "1"
        go.set()
        assert new.result(20).json()["kind"] == "cores"
        assert other.result(20).status_code == 200


def wait_for(condition: Any) -> None:
    """Wait until something holds."""
    end = time.monotonic() + 20
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.005)


# The server itself


@pytest.fixture(scope="module")
def port() -> Iterator[int]:
    """A real server with short patience."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(server, "HEADER_SECONDS", 0.5)
        patch.setattr(server, "UPLOAD_SECONDS", 0.5)
        with served(small_explorer()) as found:
            yield found


def raw(port: int, request: bytes) -> bytes:
    """What the server sends until it closes."""
    with socket.create_connection(("127.0.0.1", port), 10) as connection:
        connection.sendall(request)
        found = b""
        while more := connection.recv(65536):
            found += more
    return found


SPELLINGS = [
    "/../pyproject.toml", "/static/../session.py", "/%2e%2e/%2e%2e/etc/passwd",
    "/..%2f..%2fetc/passwd", "//etc/passwd", "/app.js/../../server.py", "/....//....//etc/passwd",
    "/..\\..\\etc\\passwd", "/%252e%252e/etc/passwd", "/app.js%00.py", "/./../server.py",
    "/api/../server.py", "/api/samples/../../server.py", "/api/samples/..%2f..%2fetc",
    "/static/app.js", "/index.html", "/session.py", "/.git/config", "/icon.svg/",
    "/%c0%ae%c0%ae/etc/passwd", "/file:///etc/passwd", "/APP.JS", "/app.js;.py",
    "/api/pictures/..%2f..%2fetc/image.jpg",
]  # fmt: skip


@pytest.mark.parametrize("path", SPELLINGS)
def test_no_spelling_of_a_path_leaves_the_list_of_files(port: int, path: str) -> None:
    host = f"Host: 127.0.0.1:{port}\r\nConnection: close\r\n\r\n"
    found = raw(port, f"GET {path} HTTP/1.1\r\n{host}".encode())
    assert found.split(b" ")[1] in {b"404", b"405", b"422"}
    assert b"root:" not in found
    assert b"import" not in found


def test_slow_connections_are_closed_and_hold_up_nobody(port: int) -> None:
    head = f"POST /api/pictures HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\n".encode()
    slow = [socket.create_connection(("127.0.0.1", port), 20) for _ in range(30)]
    for number, connection in enumerate(slow):
        connection.sendall(head if number < 27 else head + b"Content-Length: 1000\r\n\r\nxx")
    asking = http.client.HTTPConnection("127.0.0.1", port, timeout=10)
    asking.request("GET", "/api/model")
    assert asking.getresponse().status == 200
    asking.close()
    answers = []
    for connection in slow:
        answers.append(connection.recv(4096))
        connection.close()
    assert answers[:27] == [b""] * 27  # closed
    assert {answer.split(b" ")[1] for answer in answers[27:]} == {b"408"}


def resident() -> int:
    """Memory of this process in bytes."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def mixed(port: int, client: int, number: int) -> tuple[bool, int]:
    """Whether a request is a good one, and the status it got."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    good = picture_file(160, 120, seed=1000 * client + number)
    kind = number % 5
    body = {0: good, 1: good, 2: good[:9000], 3: b"\0" * 50_000, 4: b""}[kind]
    try:
        connection.request("POST", "/api/pictures", body)
        answer = connection.getresponse()
        found = json.loads(answer.read())
        if answer.status == 200:
            query = f"size=64&client=c{client}&view={['colors', 'objects'][kind]}"
            connection.request("GET", f"/api/pictures/{found['picture']}/view?{query}")
            answer = connection.getresponse()
            answer.read()
        return kind < 2, answer.status
    finally:
        connection.close()


def test_eight_clients_with_good_and_bad_requests_leave_memory_bounded() -> None:
    explorer = small_explorer()
    explorer.pictures.most_bytes = explorer.passes.most_bytes = 2_500_000
    with served(explorer) as port, ThreadPoolExecutor(8) as pool:
        everyone = range(8)
        list(pool.map(lambda client: mixed(port, client, 0), everyone))  # what starts once
        before = resident()
        statuses = list(
            pool.map(
                lambda job: mixed(port, *job), [(c, n) for n in range(1, 26) for c in everyone]
            )
        )
    assert len(statuses) == 200
    assert {status for good, status in statuses if good} == {200}
    assert {status for good, status in statuses if not good} == {422}
    assert explorer.pictures.num_bytes <= 2_500_000
    assert explorer.passes.num_bytes <= 2_500_000
    assert resident() - before < 60_000_000


def test_a_taken_port_is_reported_with_a_way_out() -> None:
    taken = server.free_socket(0)
    taken.listen(1)
    number = taken.getsockname()[1]
    with pytest.raises(VecaError, match=rf"port {number} cannot be used .*--port 0"):
        server.free_socket(number)
    taken.close()
    with pytest.raises(ValueError, match="--port 70000 is outside"):
        server.free_socket(70000)


# Whatever the description allows, and what it does not


def test_uploads_together_are_limited_and_slow_ones_count_what_they_sent(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(server, "UPLOAD_MEMORY", 50_000)
    with served(small_explorer()) as port:
        head = f"POST /api/pictures HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\n"
        slow = socket.create_connection(("127.0.0.1", port), 10)
        slow.sendall(head.encode() + b"Content-Length: 90000\r\n\r\n" + b"x" * 40_000)
        wait_for(lambda: upload_status(port, picture_file(100, 50)) == 503)
        assert upload_status(port, picture_file(20, 20)) == 200
        slow.close()
        wait_for(lambda: upload_status(port, picture_file(100, 50)) == 200)


def upload_status(port: int, body: bytes) -> int:
    """The answer to an upload."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=10)
    connection.request("POST", "/api/pictures", body)
    status = connection.getresponse().status
    connection.close()
    return status


EXPLORER = small_explorer()
SCHEMA = schemathesis.openapi.from_asgi(
    "/openapi.json", server.create_app(EXPLORER), headers={"host": "127.0.0.1"}
)
OPERATIONS = [found.ok() for found in SCHEMA.get_all_operations()]


@pytest.mark.parametrize("operation", OPERATIONS, ids=lambda operation: operation.label)
@settings(suppress_health_check=list(HealthCheck), max_examples=15)
@given(data=st.data())
def test_no_request_fails_within_the_server(operation: Any, data: st.DataObject) -> None:
    mode = data.draw(st.sampled_from(schemathesis.GenerationMode))
    case = data.draw(operation.as_strategy(generation_mode=mode))
    if "picture" in case.path_parameters and data.draw(st.booleans()):
        case.path_parameters["picture"] = EXPLORER.open(picture_file()).name
    answer = case.call(headers={"host": "127.0.0.1"})
    assert answer.status_code < 500, answer.text
    assert answer.status_code < 400 or isinstance(answer.json()["detail"], str)
