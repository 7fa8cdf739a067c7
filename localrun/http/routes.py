"""The whole API as one table, and the application made from it.

Owns paths, methods and which dialect a path answers in; nothing here decides anything else.
Source: Ollama `server/routes.go` (texts and statuses of unknown routes and methods).
"""

from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp

from localrun.http.create import CreateApi
from localrun.http.errors import error_response
from localrun.http.guard import Guard, Limits, dialect_of
from localrun.http.models import ModelsApi
from localrun.http.native import NativeApi
from localrun.http.openai import OpenAIApi
from localrun.http.origins import Origins
from localrun.loopback import is_loopback
from localrun.service import TextService
from localrun.settings import Settings
from localrun.wire.streams import JSON_TYPE
from modelstore.store import Store

Handler = Callable[[Request], Awaitable[ASGIApp]]
Lifespan = Callable[[Starlette], AbstractAsyncContextManager[None]]


def table(service: TextService, store: Store) -> list[tuple[str, str, Handler]]:
    """(methods, path, handler) of every route; HEAD comes with GET."""
    native, openai = NativeApi(service), OpenAIApi(service, store)
    models, making = ModelsApi(service, store), CreateApi(store)
    return [
        ("GET", "/", _root),
        ("GET", "/health", _health),
        ("GET", "/api/version", models.version),
        ("GET", "/api/tags", models.tags),
        ("GET", "/api/ps", models.ps),
        ("POST", "/api/show", models.show),
        ("POST", "/api/generate", native.generate),
        ("POST", "/api/chat", native.chat),
        ("POST", "/api/create", making.create),
        ("HEAD POST", "/api/blobs/{digest}", making.blob),
        ("DELETE", "/api/delete", models.delete),
        ("POST", "/api/copy", models.copy),
        ("GET", "/v1/models", openai.models),
        ("GET", "/v1/models/{model:path}", openai.model),
        ("POST", "/v1/chat/completions", openai.chat_completions),
    ]


def build_app(
    service: TextService,
    store: Store,
    settings: Settings,
    *,
    lifespan: Lifespan | None = None,
    is_draining: Callable[[], bool] = lambda: False,
    limits: Limits | None = None,
) -> ASGIApp:
    """The application. While `is_draining` says so, every request is refused with 503.

    Raises BadSetting for an origin that cannot match anything.
    """
    routes = [
        Route(path, _endpoint(handler), methods=methods.split())
        for methods, path, handler in table(service, store)
    ]
    app = Starlette(
        routes=routes,
        lifespan=lifespan,
        exception_handlers={HTTPException: _no_route},
    )
    return Guard(
        app,
        Origins(settings.origins),
        checks_host=is_loopback(settings.host),
        is_draining=is_draining,
        limits=limits or Limits(),
    )


def _endpoint(handler: Handler) -> Handler:
    """The handler, with its errors turned into replies of the path's dialect."""

    async def endpoint(request: Request) -> ASGIApp:
        try:
            return await handler(request)
        except ClientDisconnect:
            return Response()  # nobody reads it
        except Exception as error:  # noqa: BLE001 - the table decides what the client is told
            return error_response(error, dialect_of(request.url.path))

    return endpoint


async def _root(request: Request) -> Response:
    # Health probes compare these words.
    return PlainTextResponse("Ollama is running")


async def _health(request: Request) -> Response:
    return Response(b'{"status":"ok"}', media_type=JSON_TYPE)


async def _no_route(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    text = {404: "404 page not found", 405: "405 method not allowed"}.get(error.status_code)
    return PlainTextResponse(text or error.detail, error.status_code, headers=error.headers)
