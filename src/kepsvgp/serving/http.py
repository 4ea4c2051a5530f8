"""A saved model behind HTTP: JSON in, JSON out, the answers of `kepsvgp predict`."""

import asyncio
import base64
import hmac
import io
import json
import logging
import os
import time
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

from PIL import Image

from kepsvgp.data import pictures
from kepsvgp.data.tables import fault
from kepsvgp.errors import UserError
from kepsvgp.inference.abstention import Abstainer
from kepsvgp.serving.batcher import Answer, Batcher, QueueFull
from kepsvgp.serving.openapi import describe, page
from kepsvgp.serving.rows import Row
from kepsvgp.serving.saved import SavedModel
from kepsvgp.serving.stream import entries

NEEDS = UserError("This needs starlette and uvicorn: pip install 'kepsvgp[serve]'.")
try:
    from starlette.applications import Starlette
    from starlette.exceptions import HTTPException
    from starlette.middleware import Middleware
    from starlette.requests import ClientDisconnect, Request
    from starlette.responses import HTMLResponse, JSONResponse, PlainTextResponse, Response
    from starlette.routing import Route
    from starlette.types import ASGIApp, Message, Receive, Scope, Send
except ImportError:
    raise NEEDS from None

_LOG = logging.getLogger(__name__)
_BUSY = {"Retry-After": "1"}
# as many of the largest are held at a time
_BODIES = 8


@dataclass(frozen=True)
class Limits:
    """How much is taken on.

    Attributes:
        batch_size: Rows that the model sees at a time.
        rows: Most rows in a request.
        body: Most bytes of a request. Eight times as many are held for all.
        queue: Most rows that wait.
        seconds: Longest time for a request to arrive, and again for its answer.
    """

    batch_size: int = 64
    rows: int = 256
    body: int = 8 * 2**20
    queue: int = 1024
    seconds: float = 30.0

    def __post_init__(self) -> None:
        if self.queue < self.rows:
            raise UserError(
                f"the queue must have room for a request of {self.rows} rows; got {self.queue}."
            )


class Service:
    """What the server does with a request, and what it counted.

    Args:
        saved: The model.
        rule: When to withhold an answer.
        limits: How much is taken on.
        token: What a client must show as bearer; None for no such check.
    """

    def __init__(
        self, saved: SavedModel, rule: Abstainer | None, limits: Limits, token: str | None = None
    ) -> None:
        self.saved, self.rule, self.limits, self.token = saved, rule, limits, token
        self._field = "texts" if saved.task == "text" else "images"
        self._batcher = Batcher(self._answer, batch_size=limits.batch_size, max_queue=limits.queue)
        self._pool = ThreadPoolExecutor(os.cpu_count())
        self._held = self._rows = self._withheld = 0
        self.seconds = 0.0
        self.statuses: Counter[int] = Counter()

    def warm_up(self) -> None:
        """One answer to nobody: a model or rule that cannot answer says so before others ask."""
        picture = _Upload()
        Image.new("RGB", (8, 8)).save(picture, "PNG")
        first = self.saved.load("a" if self.saved.task == "text" else picture)
        self._answer([Row("1", first)])

    def app(self) -> Starlette:
        """The application, for uvicorn or any other server of ASGI."""
        routes = [
            Route("/", self._page),
            Route("/docs", self._page),
            Route("/openapi.json", self._openapi),
            Route("/health", self._health),
            Route("/metrics", self._metrics),
            Route("/predict", self._predict, methods=["POST"]),
        ]
        door = Middleware(_Door, service=self)
        refusals: Any = {HTTPException: _refuse}
        return Starlette(
            routes=routes, middleware=[door], exception_handlers=refusals, lifespan=self._life
        )

    @asynccontextmanager
    async def _life(self, _app: Starlette) -> AsyncIterator[None]:
        work = asyncio.create_task(self._batcher.run())
        try:
            yield
        finally:
            work.cancel()
            self._pool.shutdown(wait=False, cancel_futures=True)

    async def _predict(self, request: Request) -> Response:
        limits = self.limits
        kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
        if kind != "application/json" or "content-encoding" in request.headers:
            raise HTTPException(415, "the body must be application/json, not compressed")
        try:
            rows = await self._read(request)
            async with asyncio.timeout(limits.seconds):
                answers = await self._batcher(rows)
        except HTTPException:
            raise
        except UserError as error:
            raise HTTPException(422, str(error)) from None
        except QueueFull:
            raise HTTPException(503, "too many rows wait; try again soon", _BUSY) from None
        except TimeoutError:
            raise HTTPException(503, f"no answer within {limits.seconds:g} s", _BUSY) from None
        except Exception:
            _LOG.exception("a request failed")
            raise HTTPException(500, "the model failed on this input") from None
        self._rows += len(answers)
        self._withheld += sum(answer["abstain"] is True for answer in answers)
        return JSONResponse({"answers": answers})

    async def _read(self, request: Request) -> list[Row]:
        """The rows of a request; its bytes count among those that are held until then."""
        body = bytearray()
        try:
            await self._receive(request, body)
            loop, deadline = asyncio.get_running_loop(), time.monotonic() + self.limits.seconds
            async with asyncio.timeout(self.limits.seconds):
                return await loop.run_in_executor(self._pool, self._load, body, deadline)
        finally:
            self._held -= len(body)

    async def _receive(self, request: Request, body: bytearray) -> None:
        most = self.limits.body
        try:
            async with asyncio.timeout(self.limits.seconds):
                async for chunk in request.stream():
                    body += chunk
                    self._held += len(chunk)
                    if len(body) > most:
                        raise HTTPException(413, f"the body must have at most {most} bytes")
                    if self._held > _BODIES * most:
                        raise HTTPException(503, "too much is being sent; try again soon", _BUSY)
        except TimeoutError:
            # what comes late is not waited for
            message = f"the body must arrive within {self.limits.seconds:g} s"
            raise HTTPException(408, message, {"Connection": "close"}) from None
        except ClientDisconnect:
            raise HTTPException(400, "the body must be whole; it ended early") from None

    def _load(self, body: bytearray, deadline: float) -> list[Row]:
        """The rows of a body with their inputs read, in a thread of their own."""
        contents = self._contents(body)
        if self.saved.task == "image":
            contents = [_upload(number, item) for number, item in enumerate(contents)]
            if sum(map(pictures.num_pixels, contents)) > pictures.MOST_PIXELS:
                raise HTTPException(
                    413, f"all images together must have at most {pictures.MOST_PIXELS} pixels"
                )
        rows = []
        for number, item in enumerate(contents, start=1):
            if time.monotonic() > deadline:
                raise TimeoutError
            rows.append(Row(str(number), self.saved.load(item)))
        return rows

    def _contents(self, body: bytearray) -> list[Any]:
        try:
            value = json.loads(body)
        except (ValueError, RecursionError) as error:
            raise UserError(f"the body must be JSON; it is not ({error}).") from None
        items = value.get(self._field) if isinstance(value, dict) and len(value) == 1 else None
        if not isinstance(items, list) or not items:
            raise UserError(
                f'the body must be an object {{"{self._field}": […]}} and nothing else, with at '
                "least one row."
            )
        if len(items) > self.limits.rows:
            raise HTTPException(413, f"a request must have at most {self.limits.rows} rows")
        for number, item in enumerate(items):
            problem = fault(self.saved.task, item)
            if problem is not None:
                raise UserError(f"{self._field}[{number}]: {problem}.")
        return items

    def _answer(self, rows: Sequence[Row]) -> list[Answer]:
        prediction = self.saved.predict([row.content for row in rows])
        return list(entries(list(rows), prediction, self.saved.classes, self.rule))

    async def _page(self, _request: Request) -> Response:
        return HTMLResponse(page(self._description()))

    async def _openapi(self, _request: Request) -> Response:
        return JSONResponse(self._description())

    def _description(self) -> dict[str, Any]:
        words = None if self.rule is None else self.rule.words
        secured = self.token is not None
        return describe(self._field, self.saved.classes, self.limits.rows, words, secured=secured)

    async def _health(self, _request: Request) -> Response:
        return JSONResponse({"status": "ok"})

    async def _metrics(self, _request: Request) -> Response:
        """As Prometheus reads it."""
        lines = ["# TYPE kepsvgp_requests_total counter"]
        lines += [
            f'kepsvgp_requests_total{{status="{status}"}} {count}'
            for status, count in sorted(self.statuses.items())
        ]
        values = {
            "rows_total": ("counter", self._rows),
            "withheld_total": ("counter", self._withheld),
            "batches_total": ("counter", self._batcher.batches),
            "request_seconds_total": ("counter", self.seconds),
            "queue_rows": ("gauge", self._batcher.waiting),
            "body_bytes": ("gauge", self._held),
        }
        for name, (kind, value) in values.items():
            lines += [f"# TYPE kepsvgp_{name} {kind}", f"kepsvgp_{name} {value}"]
        return PlainTextResponse("\n".join([*lines, ""]), media_type="text/plain; version=0.0.4")


class _Door:
    """Lets in who has the token, and counts what comes out."""

    def __init__(self, app: ASGIApp, service: Service) -> None:
        self._app, self._service = app, service

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return await self._app(scope, receive, send)
        started = time.monotonic()

        async def counted(message: Message) -> None:
            if message["type"] == "http.response.start":
                self._service.statuses[message["status"]] += 1
                self._service.seconds += time.monotonic() - started
            await send(message)

        if self._may_enter(scope):
            return await self._app(scope, receive, counted)
        headers = {"WWW-Authenticate": "Bearer", "Connection": "close"}
        refusal = JSONResponse({"error": "this needs the server's bearer token"}, 401, headers)
        return await refusal(scope, receive, counted)

    def _may_enter(self, scope: Scope) -> bool:
        token = self._service.token
        if token is None or scope["path"] == "/health":
            return True
        shown = dict(scope["headers"]).get(b"authorization", b"")
        return hmac.compare_digest(shown, f"Bearer {token}".encode())


class _Upload(io.BytesIO):
    """An image that came in a request."""

    name = "the image"

    def __repr__(self) -> str:
        return self.name


def _upload(number: int, text: str) -> _Upload:
    """The image in a text of base64, which may be a data URL."""
    name = f"images[{number}]"
    try:
        upload = _Upload(base64.b64decode(text.rpartition(",")[2], validate=True))
    except ValueError as error:
        raise UserError(f"{name} must be base64; it is not ({error}).") from None
    upload.name = name
    return upload


async def _refuse(_request: Request, error: HTTPException) -> Response:
    return JSONResponse({"error": error.detail}, error.status_code, error.headers)
