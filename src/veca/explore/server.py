"""The page and the JSON API of `veca explore`, served on this machine only.

`create_app` is the whole service: a table of routes, whose functions check what they are given and
leave the work to the thread of `session.Worker`. `Guard` stands before them: it answers only
browsers and scripts that address this machine by name (a page of another site cannot, not even by
DNS rebinding), and gives every answer a policy under which nothing but the page's own files runs.

Uploads are the body of a request, counted while they arrive, never written to disk. No client
names a file: pages come from a fixed list, samples and neighbors by exact match.
"""

import asyncio
import io
import json
import os
import socket
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from importlib import resources
from statistics import median
from typing import Annotated, Any, TypeVar

import h11
import numpy as np
import uvicorn
from fastapi import Depends, FastAPI, Path, Query, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from PIL import Image
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect
from uvicorn.protocols.http.h11_impl import H11Protocol

from veca.analysis.page import STYLE, data_url
from veca.backbone.cost import Cost
from veca.explore.api_page import api_page
from veca.explore.session import (
    SIZES,
    Asked,
    BusyError,
    Explorer,
    MissingError,
    Picture,
    Recent,
    Setting,
    SupersededError,
    View,
    ViewKind,
    Worker,
    sample_thumbnail,
    samples,
)
from veca.runtime import VERSION, VecaError
from veca.runtime.device import ran_out_of_memory

Result = TypeVar("Result")

MAX_UPLOAD = 20_000_000
"""Bytes of a picture file."""

UPLOAD_MEMORY = 80_000_000
"""Bytes of all uploads that arrive or wait to be decoded: a slow one holds what it has sent."""

UPLOAD_SECONDS = 30.0
HEADER_SECONDS = 10.0
"""What a client may take to send a picture, and the headers of a request."""

TIMED_ROUNDS = 3
MOST_MILLISECONDS = 3000.0
"""A pass is timed this often, if it does not take longer: everything else waits for it."""

MAX_SCALE = 32

TOO_LARGE = "The file is too large: at most {} MB are accepted; shrink the picture."

CLOSE = {"connection": "close"}
"""Of answers that come before the request has ended."""

HOSTS = frozenset({"127.0.0.1", "localhost", "[::1]"})

FILES = {
    "/": ("index.html", "text/html; charset=utf-8"),
    "/app.js": ("app.js", "text/javascript; charset=utf-8"),
    "/draw.js": ("draw.js", "text/javascript; charset=utf-8"),
    "/style.css": ("style.css", "text/css; charset=utf-8"),
    "/icon.svg": ("icon.svg", "image/svg+xml"),
}

HEADERS = {
    "content-security-policy": "default-src 'none'; script-src 'self'; style-src 'self'; "
    "img-src 'self' blob: data:; connect-src 'self'; base-uri 'none'; form-action 'none'; "
    "frame-ancestors 'none'",
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "cache-control": "no-store",
}

STATUS: dict[type[Exception], int] = {
    MissingError: 404,
    SupersededError: 409,
    BusyError: 503,
    ValueError: 422,
    VecaError: 422,
}
"""By the first class that fits."""

ANSWERS: dict[int | str, dict[str, Any]] = {
    404: {"description": "The picture, sample or collection is not there."},
    409: {"description": "A newer request of the same client replaced this one."},
    422: {"description": "A value cannot be used; the answer says why."},
    503: {"description": "Too much is waiting, or memory ran out; try again."},
}

PictureName = Annotated[str, Path(pattern="^[0-9a-f]{20}$", description="As POST returned it.")]
OtherPicture = Annotated[
    str | None,
    Query(
        pattern="^[0-9a-f]{20}$",
        description="Another picture: the one that `point` lies on, or to share the colors with.",
    ),
]
Size = Annotated[
    int, Query(ge=SIZES[0], le=SIZES[1], description="Short side in pixels for the model.")
]
Budget = Annotated[
    int | None, Query(ge=1, le=65536, description="Number of cores; all if not given.")
]
Share = Annotated[
    float | None, Query(gt=0, le=1, description="Share of the FFN's hidden units to use.")
]
Layer = Annotated[
    int | None,
    Query(ge=-1024, le=1023, description="From 0, or from the end; by default the last."),
]
Point = Annotated[
    str | None,
    Query(pattern="^[0-9]{1,6},[0-9]{1,6}$", description="x,y in pixels of the original picture."),
]
Client = Annotated[
    str | None,
    Query(
        pattern="^[A-Za-z0-9_-]{1,64}$",
        description="Any name: a newer request of the same client replaces one that waits.",
    ),
]


def setting(
    size: Size = 448, budget: Budget = None, ffn: Share = None, layer: Layer = None
) -> tuple[int, int | None, float | None, int | None]:
    """How a picture goes through the model, as asked for."""
    return size, budget, ffn, layer


AskedSetting = Annotated[tuple[int, int | None, float | None, int | None], Depends(setting)]


@dataclass
class Api:
    """The functions behind the routes."""

    explorer: Explorer
    worker: Worker
    received: int = 0
    """Bytes of uploads in memory."""
    timings: Recent[Any, dict[bool, float | None]] = field(default_factory=lambda: Recent(10_000))

    async def run(self, job: Callable[[], Result], client: str | None = None) -> Result:
        """The result of a job of the worker."""
        return await asyncio.wrap_future(self.worker.submit(job, client))

    def checked(self, asked: AskedSetting) -> tuple[Setting, int]:
        """A setting and layer that the model has."""
        size, budget, ffn, layer = asked
        return self.explorer.setting(size, budget, ffn), self.explorer.model.layer_number(layer)

    async def model(self) -> dict[str, Any]:
        """The model, what it can be asked for, and the collection."""
        named, config = self.explorer.named, self.explorer.model.config
        full = config.attention == "full"
        collection = self.explorer.collection
        return {
            "name": named.name,
            "title": named.title,
            "trained": named.trained,
            "sha256": named.digest,
            "precision": named.model.precision,
            "layers": config.layers,
            "cores": None if full else config.cores,
            "budgets": None if full else config.budgets,
            "ffn_shares": config.ffn_shares,
            "patch_size": config.patch_size,
            "width": config.width,
            "sizes": SIZES,
            "max_upload": MAX_UPLOAD,
            "collection": None if collection is None else str(collection),
            "veca": VERSION,
        }

    async def samples(self) -> list[dict[str, str]]:
        """The sample photographs, with thumbnails; empty without the extra `samples`."""
        found = await self.run(lambda: {name: sample_thumbnail(name) for name in samples()})
        return [
            {"name": name, "thumbnail": data_url(data, "image/jpeg")}
            for name, data in found.items()
        ]

    async def open_sample(
        self, name: Annotated[str, Path(pattern="^[a-z_]{1,40}$")]
    ) -> dict[str, Any]:
        """Open a sample photograph."""
        return opened(await self.run(partial(self.explorer.open_sample, name)))

    async def open_neighbor(
        self, path: Annotated[str, Query(max_length=4096, description="As neighbors returned it.")]
    ) -> dict[str, Any]:
        """Open a picture of the collection."""
        return opened(await self.run(partial(self.explorer.open_neighbor, path)))

    async def upload(self, request: Request) -> dict[str, Any]:
        """Open a picture: the body is the file."""
        data = bytearray()
        try:
            async with asyncio.timeout(UPLOAD_SECONDS):
                await self._receive(request, data)
            return opened(await self.run(partial(self.explorer.open, bytes(data))))
        except TimeoutError as error:
            raise HTTPException(
                408, f"The picture did not arrive within {UPLOAD_SECONDS:.0f} seconds.", CLOSE
            ) from error
        finally:
            self.received -= len(data)

    async def _receive(self, request: Request, data: bytearray) -> None:
        """Append the body of a request to `data`, counting what arrives."""
        length = request.headers.get("content-length", "0")
        if not length.isdecimal() or int(length) > MAX_UPLOAD:
            raise HTTPException(413, TOO_LARGE.format(MAX_UPLOAD // 10**6), CLOSE)
        async for chunk in request.stream():
            data += chunk
            self.received += len(chunk)
            if len(data) > MAX_UPLOAD:
                raise HTTPException(413, TOO_LARGE.format(MAX_UPLOAD // 10**6), CLOSE)
            if self.received > UPLOAD_MEMORY:
                raise BusyError("Too many pictures are arriving; try again in a moment.")

    async def picture(self, picture: PictureName) -> dict[str, Any]:
        """Width and height of a picture that is still open."""
        return opened(await self.run(partial(self.explorer.picture, picture)))

    async def image(self, picture: PictureName) -> Response:
        """The picture, upright, at most 1280 pixels a side."""
        found = await self.run(partial(self.explorer.picture, picture))
        return Response(found.shown, media_type="image/jpeg")

    async def view(  # noqa: PLR0913, PLR0917 - the parameters of the request
        self,
        picture: PictureName,
        asked: AskedSetting,
        view: ViewKind = "colors",
        point: Point = None,
        of: OtherPicture = None,
        beside: OtherPicture = None,
        client: Client = None,
    ) -> Response:
        """All that the page draws of a view: a PNG, labels, values, paths and the cost."""
        where, layer = self.checked(asked)
        wanted = Asked(view, picture, where, layer, as_point(point), of, beside)

        def answer() -> bytes:
            found = self.explorer.view(wanted)
            return json.dumps(self._as_json(wanted, found)).encode()

        return Response(await self.run(answer, client), media_type="application/json")

    def _as_json(self, asked: Asked, found: View) -> dict[str, Any]:
        """A view as the page takes it."""
        own, full = self.explorer.cost(asked.picture, asked.setting)
        best = None
        if found.cosine is not None:
            best = [int(place) for place in np.unravel_index(found.cosine.argmax(), found.grid)]
        return {
            **asked._asdict(),
            "setting": asked.setting._asdict(),
            "grid": found.grid,
            "png": data_url(png(found.pixels), "image/png"),
            "labels": plain(found.labels),
            "cosine": plain(found.cosine, 3),
            "best": best,
            "points": plain(found.points, 4),
            "colors": plain(found.colors),
            "cost": cost_json(own),
            "full_cost": None if full is None else cost_json(full),
        }

    async def map(  # noqa: PLR0913, PLR0917 - the parameters of the request
        self,
        picture: PictureName,
        asked: AskedSetting,
        view: ViewKind = "colors",
        point: Point = None,
        core: Annotated[int, Query(ge=0, description="Of the view 'core'.")] = 0,
        scale: Annotated[
            int, Query(ge=1, le=MAX_SCALE, description="Pixels of a patch, a side.")
        ] = 16,
    ) -> Response:
        """A view as PNG: feature colors, cores, one core, objects or similarity."""
        if view == "paths":
            raise ValueError("paths are no map; GET .../view?view=paths has their points.")
        where, layer = self.checked(asked)
        if where.budget is not None and core >= where.budget:
            raise ValueError(f"core={core} is outside 0..{where.budget - 1}, the budget.")

        def answer() -> bytes:
            found = self.explorer.view(Asked(view, picture, where, layer, as_point(point)))
            rows, columns = found.grid
            first = core * rows if view == "core" else 0
            return png(found.pixels[first : first + rows], (columns * scale, rows * scale))

        return Response(await self.run(answer), media_type="image/png")

    async def features(
        self,
        picture: PictureName,
        asked: AskedSetting,
        tokens: Annotated[
            str, Query(pattern="^(patches|cores|image)$", description="Which features.")
        ] = "patches",
    ) -> Response:
        """Features as a .npy file: (rows, columns, D), (C, D) or (D,), float32."""
        where, layer = self.checked(asked)

        def answer() -> bytes:
            found = self.explorer.features(picture, where, layer)
            values = found.cores[0] if tokens == "cores" else found.image[0]
            if tokens == "patches":
                values = found.patch_map[0].permute(1, 2, 0)
            buffer = io.BytesIO()
            np.save(buffer, values.float().cpu().contiguous().numpy())
            return buffer.getvalue()

        return Response(await self.run(answer), media_type="application/octet-stream")

    async def cost(
        self, request: Request, picture: PictureName, asked: AskedSetting, client: Client = None
    ) -> dict[str, Any]:
        """Time on this machine, GFLOPs and pairs of this setting and of full attention.

        Times are medians of passes in turns, after one that is not counted; null for full attention
        where a pass would take longer than three seconds.
        """
        where, _ = self.checked(asked)
        own, full = await self.run(partial(self.explorer.cost, picture, where), client)
        key = (own.pairs, own.flops, where)
        times = self.timings.get(key)
        if times is None:
            flops = {False: own.flops} if full is None else {False: own.flops, True: full.flops}
            measure = partial(self.explorer.milliseconds, picture, where)
            times = await self._timed(request, measure, flops, client)
            self.timings.put(key, times, 1)
        answer: dict[str, Any] = {"model": cost_json(own) | {"ms": times[False]}, "full": None}
        if full is not None:
            answer["full"] = cost_json(full) | {"ms": times[True]}
        return answer

    async def _timed(
        self,
        request: Request,
        measure: Callable[[bool], float],
        flops: dict[bool, int],
        client: str | None,
    ) -> dict[bool, float | None]:
        """Medians of passes in turns, one job each, while somebody waits for them."""
        samples: dict[bool, list[float]] = {kind: [] for kind in flops}
        for _ in range(TIMED_ROUNDS + 1):
            for kind, taken in samples.items():
                known = taken or samples[False]
                expected = known[0] * flops[kind] / flops[kind if taken else False] if known else 0
                if expected > MOST_MILLISECONDS:
                    continue
                if await request.is_disconnected():
                    raise ClientDisconnect
                taken.append(await self.run(partial(measure, kind), client))
        return {
            kind: round(median(taken[1:] or taken), 2) if taken else None
            for kind, taken in samples.items()
        }

    async def neighbors(
        self, picture: PictureName, point: Point = None, client: Client = None
    ) -> list[dict[str, Any]]:
        """The nearest pictures of the collection, to all of the picture or to a crop.

        With `point`, the square around it that is a third of the short side.
        """
        job = partial(self.explorer.neighbors, picture, as_point(point))
        return [
            {
                "path": found.path,
                "similarity": found.similarity,
                "thumbnail": data_url(found.thumbnail, "image/jpeg") if found.thumbnail else None,
            }
            for found in await self.run(job, client)
        ]


def create_app(explorer: Explorer, worker: Worker | None = None) -> FastAPI:
    """The service; its worker starts with it."""
    api = Api(explorer, worker or Worker())
    app = FastAPI(
        title="veca explore", version=VERSION, description="Pictures in; features, maps and cost "
        "out. Errors are JSON with a sentence in `detail`.", docs_url=None, redoc_url=None,
        redirect_slashes=False,
    )  # fmt: skip
    file = {"schema": {"type": "string", "format": "binary"}}
    body = {"required": True, "description": "A file.", "content": {"image/*": file}}
    upload = {
        "openapi_extra": {"requestBody": body},
        "responses": {408: {"description": "It was too slow."}, 413: {"description": "Too large."}},
    }
    routes: list[tuple[str, str, Callable[..., Any], dict[str, Any]]] = [
        ("GET", "/api/model", api.model, {}),
        ("GET", "/api/samples", api.samples, {}),
        ("POST", "/api/samples/{name}", api.open_sample, {}),
        ("POST", "/api/neighbors", api.open_neighbor, {}),
        ("POST", "/api/pictures", api.upload, upload),
        ("GET", "/api/pictures/{picture}", api.picture, {}),
        ("GET", "/api/pictures/{picture}/image.jpg", api.image, _binary("image/jpeg")),
        ("GET", "/api/pictures/{picture}/view", api.view, _binary("application/json")),
        ("GET", "/api/pictures/{picture}/map.png", api.map, _binary("image/png")),
        ("GET", "/api/pictures/{picture}/features.npy", api.features,
         _binary("application/octet-stream")),
        ("GET", "/api/pictures/{picture}/cost", api.cost, {}),
        ("GET", "/api/pictures/{picture}/neighbors", api.neighbors, {}),
    ]  # fmt: skip
    for method, path, function, more in routes:
        summary = (function.__doc__ or "").partition("\n")[0].rstrip(".")
        more["responses"] = {**ANSWERS, **more.get("responses", {})}
        app.add_api_route(path, function, methods=[method], summary=summary, **more)
    for path, (name, kind) in FILES.items():
        content = resources.files("veca.explore").joinpath("static", name).read_bytes()
        app.add_api_route(path, _file(content, kind), include_in_schema=False)
    app.add_api_route("/page.css", _file(STYLE.read_bytes(), "text/css"), include_in_schema=False)
    app.add_api_route(
        "/api", lambda: Response(api_page(app.openapi()), media_type="text/html"),
        include_in_schema=False,
    )  # fmt: skip
    for error in (VecaError, ValueError, RuntimeError, MemoryError, ClientDisconnect,
                  HTTPException, RequestValidationError):  # fmt: skip
        app.add_exception_handler(error, on_error)
    app.add_middleware(Guard)
    return app


class Guard:
    """Refuses what comes from other sites, and adds the headers of every answer."""

    def __init__(self, app: Any) -> None:  # noqa: ANN401 - an ASGI application
        self.app = app

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:  # noqa: ANN401
        """Answer one request."""
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return

        async def send_with_headers(message: dict[str, Any]) -> None:
            if message["type"] == "http.response.start":
                added = [(name.encode(), value.encode()) for name, value in HEADERS.items()]
                message = {**message, "headers": [*message["headers"], *added]}
            await send(message)

        reason = refused(scope["path"], scope["headers"])
        app = self.app if reason is None else JSONResponse({"detail": reason}, 403)
        await app(scope, receive, send_with_headers)


def refused(path: str, raw: list[tuple[bytes, bytes]]) -> str | None:
    """Why a request is not answered, from its path and headers; None if it is."""
    headers = [(name.decode("latin-1"), value.decode("latin-1")) for name, value in raw]
    hosts = [value for name, value in headers if name == "host"]
    name = hosts[0].removesuffix(":" + hosts[0].rpartition(":")[2]) if hosts else ""
    if len(hosts) != 1 or not {hosts[0], name} & HOSTS:
        return "This page answers only as 127.0.0.1 or localhost; open it under that address."
    given = dict(headers)
    origin, site = given.get("origin"), given.get("sec-fetch-site", "none")
    if origin is not None and origin != f"http://{hosts[0]}":
        return "Another site cannot use this page; open it by itself."
    followed_link = path in FILES and given.get("sec-fetch-mode") == "navigate"
    if site not in {"same-origin", "none"} and not followed_link:
        return "Another site cannot use this page; open it by itself."
    return None


async def on_error(request: Request, error: Exception) -> Response:
    """An error as JSON with a sentence."""
    headers: dict[str, str] = {}
    if isinstance(error, HTTPException):
        status, sentence, headers = error.status_code, str(error.detail), dict(error.headers or {})
        if status == 404 and error.detail == "Not Found":
            sentence = "There is nothing here; the page is at /, its API is described at /api."
    elif isinstance(error, RequestValidationError):
        status = 422
        found = error.errors()[0]
        sentence = f"{found['loc'][-1]}: {found['msg']}, not {str(found.get('input'))[:60]!r}."
    elif isinstance(error, ClientDisconnect):
        status, sentence = 400, "The client went away."
    elif ran_out_of_memory(error):
        status, sentence = 503, "Memory ran out; use a smaller resolution or picture."
    else:
        status = next((code for kind, code in STATUS.items() if isinstance(error, kind)), 500)
        sentence = " ".join(str(error).split())
    if status == 500:
        raise error
    if status == 503:
        headers["retry-after"] = "1"
    return JSONResponse({"detail": sentence}, status, headers)


def opened(picture: Picture) -> dict[str, Any]:
    """What the client needs of an opened picture."""
    height, width = picture.decoded.sides
    return {"picture": picture.name, "width": width, "height": height}


def as_point(text: str | None) -> tuple[int, int] | None:
    """The numbers of `x,y`."""
    if text is None:
        return None
    x, _, y = text.partition(",")
    return int(x), int(y)


def cost_json(cost: Cost) -> dict[str, Any]:
    """Cost by formula."""
    return {"gflops": round(cost.flops / 1e9, 3), "pairs": cost.pairs}


def plain(values: Any, digits: int | None = None) -> Any:  # noqa: ANN401 - an array or None
    """An array as lists; floats are rounded."""
    if values is None:
        return None
    return (values if digits is None else values.astype(float).round(digits)).tolist()


def png(pixels: Any, size: tuple[int, int] | None = None) -> bytes:  # noqa: ANN401 - an array
    """Pixels as PNG, enlarged to (width, height) without smoothing."""
    picture = Image.fromarray(np.ascontiguousarray(pixels))
    if size is not None:
        picture = picture.resize(size, Image.Resampling.NEAREST)
    buffer = io.BytesIO()
    picture.save(buffer, "PNG", compress_level=1)
    return buffer.getvalue()


def _binary(kind: str) -> dict[str, Any]:
    """OpenAPI of an answer that FastAPI does not write itself."""
    return {"responses": {200: {"content": {kind: {}}}}, "response_class": Response}


def _file(content: bytes, kind: str) -> Callable[[], Response]:
    """A route of a fixed file."""
    return lambda: Response(content, media_type=kind)


class TimedProtocol(H11Protocol):  # type: ignore[misc]
    """Closes connections that do not send the headers of a request in time."""

    deadline: asyncio.TimerHandle | None = None

    def connection_made(self, transport: Any) -> None:  # noqa: ANN401 - an asyncio transport
        """Expect the first request."""
        super().connection_made(transport)
        self._expect()

    def data_received(self, data: bytes) -> None:
        """Go on expecting headers until they are complete."""
        super().data_received(data)
        self._expect()

    def connection_lost(self, exc: Exception | None) -> None:
        """Expect nothing more."""
        super().connection_lost(exc)
        if self.deadline is not None:
            self.deadline.cancel()

    def _expect(self) -> None:
        """Start the clock where headers are missing, stop it where they are complete."""
        if self.conn.their_state is not h11.IDLE:
            if self.deadline is not None:
                self.deadline.cancel()
            self.deadline = None
        elif self.deadline is None:
            self.deadline = self.loop.call_later(HEADER_SECONDS, self.transport.close)


def free_socket(port: int) -> socket.socket:
    """A socket of this machine on a port; 0 takes any free one."""
    if not 0 <= port <= 65535:
        raise ValueError(f"--port {port} is outside 0..65535; 0 takes any free port.")
    found = socket.socket()
    if os.name == "posix":  # on Windows it would share the port of another program
        found.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        found.bind(("127.0.0.1", port))
    except OSError as error:
        found.close()
        raise VecaError(
            f"port {port} cannot be used ({error.strerror}); another program may have it, perhaps "
            "veca explore itself: use another --port, or --port 0 for any free one."
        ) from error
    return found


def http_server(explorer: Explorer) -> uvicorn.Server:
    """What listens; `serve` runs it."""
    return uvicorn.Server(
        uvicorn.Config(
            create_app(explorer), http=TimedProtocol, ws="none", lifespan="off",
            log_level="error", access_log=False, server_header=False, timeout_graceful_shutdown=1,
        )
    )  # fmt: skip


def serve(explorer: Explorer, listener: socket.socket, ready: Callable[[], object]) -> None:
    """Serve until interrupted; `ready` is called when the page can be opened."""
    server = http_server(explorer)
    listener.listen(128)
    ready()  # from here on connections wait in the socket until they are answered
    server.run(sockets=[listener])
