"""A FastAPI application over a service of streams: POST /predict/{stream}, GET /streams, DELETE /streams/{name}.

Nothing here knows what learns; `StreamService` is the promise of what stands behind it.
"""

import asyncio
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass
from typing import Annotated, Any, Protocol

from fastapi import FastAPI, Query, Request
from fastapi.responses import JSONResponse
from starlette.convertors import StringConvertor, register_url_convertor
from starlette.datastructures import Headers, UploadFile
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from spear_hf.integrations.serving import Reply, refusal
from spear_hf.utils.loopback import is_loopback, is_own_request

LISTED = 1000


class StreamNameConvertor(StringConvertor):
    """Any text: the "path" of starlette does not match a line break, so a bad name would be 404 instead of 400.

    >>> import re
    >>> from spear_hf.integrations.http_app import StreamNameConvertor
    >>> re.fullmatch(StreamNameConvertor.regex, "hall 3/north\\n") is not None
    True
    """

    regex = "(?s:.*)"


register_url_convertor("stream", StreamNameConvertor())


class StreamService(Protocol):
    """Answers requests; each result is a Reply.

    >>> from spear_hf.integrations.http_app import StreamService
    >>> [name for name in ("predict", "listed", "forget", "health") if hasattr(StreamService, name)]
    ['predict', 'listed', 'forget', 'health']
    """

    async def predict(self, stream: str, body: bytes, learn: bool) -> Reply:
        """The prediction for the bytes of an image file."""
        ...

    async def listed(self, offset: int, limit: int) -> Reply:
        """The known streams."""
        ...

    async def forget(self, stream: str) -> Reply:
        """Forget a stream."""
        ...

    async def health(self) -> Reply:
        """What the service is, and whether it works."""
        ...

    def running(self) -> AbstractAsyncContextManager[Any]:
        """Entered when the application starts, left when it ends."""
        ...


@dataclass(frozen=True)
class HttpLimits:
    """What a client may ask for.

    Args:
        max_body_bytes: of a request.
        max_requests: in work at a time; more are refused with 503.
        timeout_s: for a body to arrive, and for an answer to be found, in seconds.

    >>> from spear_hf.integrations.http_app import HttpLimits
    >>> HttpLimits().max_requests
    256
    """

    max_body_bytes: int = 16_000_000
    max_requests: int = 256
    timeout_s: float = 30.0


def create_app(service: StreamService, limits: HttpLimits = HttpLimits(), *, host: str = "127.0.0.1") -> FastAPI:
    """The application.

    Args:
        service: what answers.
        limits: of a request.
        host: where the application listens. On a loopback address, requests for another host, or from a page of
            another origin, are refused.

    >>> from spear_hf.integrations.http_app import create_app
    >>> app = create_app(None)
    >>> sorted(path for path in app.openapi()["paths"])
    ['/health', '/predict/{stream}', '/streams', '/streams/{stream}']
    """

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        async with service.running():
            yield

    app = FastAPI(title="spear_hf", lifespan=lifespan, docs_url=None, redoc_url=None)
    if is_loopback(host):
        app.add_middleware(SameOrigin)
    places = asyncio.Semaphore(limits.max_requests)

    async def answered(stream: str, request: Request, learn: bool) -> JSONResponse:
        if places.locked():
            return JSONResponse(
                {"error": "too many requests at a time; send this one again"}, 503, {"Retry-After": "1"}
            )
        async with places:
            try:
                body = await asyncio.wait_for(image_in(request, limits.max_body_bytes), limits.timeout_s)
            except asyncio.TimeoutError:
                raise HTTPException(
                    408, f"the body did not arrive within {limits.timeout_s:g} s; send it faster"
                ) from None
            try:
                return sent(await asyncio.wait_for(service.predict(stream, body, learn), limits.timeout_s))
            except asyncio.TimeoutError:
                raise HTTPException(
                    504, f"no answer within {limits.timeout_s:g} s; send fewer images at a time"
                ) from None

    @app.exception_handler(HTTPException)
    async def in_words(_: Request, error: HTTPException) -> JSONResponse:
        return JSONResponse({"error": error.detail}, error.status_code, error.headers)

    @app.exception_handler(Exception)
    async def failed(_: Request, error: Exception) -> JSONResponse:
        return sent(refusal(error))

    @app.post("/predict/{stream:stream}")
    async def predict(stream: str, request: Request, learn: bool = True) -> JSONResponse:
        return await answered(stream, request, learn)

    @app.get("/streams")
    async def streams(
        offset: Annotated[int, Query(ge=0)] = 0, limit: Annotated[int, Query(ge=1, le=LISTED)] = LISTED
    ) -> JSONResponse:
        return sent(await service.listed(offset, limit))

    @app.delete("/streams/{stream:stream}")
    async def forget(stream: str) -> JSONResponse:
        return sent(await service.forget(stream))

    @app.get("/health")
    async def health() -> JSONResponse:
        return sent(await service.health())

    return app


def sent(reply: Reply) -> JSONResponse:
    """A Reply as a response.

    >>> from spear_hf.integrations.http_app import sent
    >>> from spear_hf.integrations.serving import Reply
    >>> sent(Reply(200, {"deleted": "cam-1"})).body
    b'{"deleted":"cam-1"}'
    """
    return JSONResponse(reply.content, reply.status)


async def image_in(request: Request, max_bytes: int) -> bytes:
    """The bytes of the image in a request: its body, or the one file of a multipart form.

    Raises:
        HTTPException: 413 for more than max_bytes, which are not read to their end; 400 for no image.
    """
    too_large = HTTPException(413, f"the body has more than {max_bytes:,} bytes; send a smaller image")
    declared = request.headers.get("content-length", "")
    if declared.isdigit() and int(declared) > max_bytes:
        raise too_large
    body = bytearray()
    try:
        async for chunk in request.stream():
            body += chunk
            if len(body) > max_bytes:
                raise too_large
    except ClientDisconnect:
        raise HTTPException(400, "the body broke off; send the image again") from None
    if not request.headers.get("content-type", "").lower().startswith("multipart/form-data"):
        return bytes(body)
    # The form is parsed from the bytes that are here already, since the parser has no limit for the whole body.
    message: Message = {"type": "http.request", "body": bytes(body), "more_body": False}

    async def receive() -> Message:
        return message

    async with Request(request.scope, receive).form(max_files=1, max_fields=8) as form:
        files = [value for value in form.values() if isinstance(value, UploadFile)]
        if len(files) != 1:
            raise HTTPException(400, f"the form has {len(files)} files; send one, the image")
        return await files[0].read()


class SameOrigin:
    """Refuses requests for another host, and those that a page of another origin sends.

    >>> from spear_hf.integrations.http_app import SameOrigin
    >>> SameOrigin(None).app is None
    True
    """

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            headers = Headers(scope=scope)
            if not is_own_request(headers.get("host", ""), headers.get("origin")):
                response = JSONResponse({"error": "this service is for its own machine; ask it as 127.0.0.1"}, 403)
                return await response(scope, receive, send)
        return await self.app(scope, receive, send)
