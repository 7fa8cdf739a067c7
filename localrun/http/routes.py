"""The whole API as one table, and the application made from it.

Owns paths, methods and which dialect a path answers in; nothing here decides anything else.
Source: Ollama `server/routes.go` (texts and statuses of unknown routes and methods).
"""

from collections.abc import Awaitable, Callable, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from typing import Any

from starlette.requests import ClientDisconnect
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route, Router
from starlette.types import ASGIApp, Receive, Scope, Send

from localrun.http import cloud
from localrun.http.clean_paths import CleanPaths
from localrun.http.create import CreateApi
from localrun.http.embeddings import EmbeddingsApi
from localrun.http.errors import error_response
from localrun.http.guard import MESSAGES_PATH, MODELS_PATH, Guard, Limits, asked_dialect, dialect_of
from localrun.http.keys import Keys, load_keys
from localrun.http.machine import Diagnose, MachineApi
from localrun.http.messages import MessagesApi
from localrun.http.models import ModelsApi
from localrun.http.native import NativeApi
from localrun.http.openai import OpenAIApi
from localrun.http.origins import Origins
from localrun.http.pull import PullApi
from localrun.http.push import PushApi
from localrun.http.refusals import UnknownRoute, WrongMethod
from localrun.http.requests import ApiRequest, Bodies
from localrun.http.responses import ResponsesApi
from localrun.http.storage import StorageApi
from localrun.http.tokens import TokensApi
from localrun.http.turns import Turns
from localrun.loopback import is_loopback
from localrun.service import TextService
from localrun.settings import BadSetting, Settings
from localrun.wire.streams import JSON_TYPE
from modelstore.registry.access import Access
from modelstore.store import Store
from modelstore.transfer.transfers import Transfers

Handler = Callable[[ApiRequest], Awaitable[ASGIApp]]
Lifespan = Callable[[Any], AbstractAsyncContextManager[None]]


@dataclass(frozen=True, slots=True)
class Life:
    """What runs around the application. While `is_draining`, every request is refused with 503."""

    lifespan: Lifespan | None = None
    is_draining: Callable[[], bool] = lambda: False


@dataclass(frozen=True, slots=True)
class Registries:
    """How models are fetched: whom the daemon may contact, and the transfers that run."""

    access: Access = field(default_factory=Access)
    transfers: Transfers = field(default_factory=Transfers)


def table(
    service: TextService, store: Store, diagnose: Diagnose, registries: Registries
) -> list[tuple[str, str, Handler]]:
    """(methods, path, handler) of every route; HEAD comes with GET."""
    native, openai = NativeApi(service), OpenAIApi(service, store)
    machine, tokens = MachineApi(diagnose), TokensApi(service)
    embeddings, messages = EmbeddingsApi(service), MessagesApi(service)
    responses = ResponsesApi(service)
    pulling = PullApi(service, store, registries.access, registries.transfers)
    models, making = ModelsApi(service, store), CreateApi(service, store, pulling.fetch)
    pushing = PushApi(store, registries.access)
    storage = StorageApi(service, store, pulling.fetch_blob)
    return [
        ("GET", "/", _root),
        ("GET", "/health", _health),
        ("GET", "/metrics", models.metrics),
        ("GET", "/api/version", models.version),
        ("GET", "/api/status", cloud.status),
        ("GET", "/api/tags", models.tags),
        ("GET", "/api/ps", models.ps),
        ("GET", "/api/devices", machine.devices),
        ("POST", "/api/show", models.show),
        ("POST", "/api/generate", native.generate),
        ("POST", "/api/chat", native.chat),
        ("POST", "/api/embed", embeddings.embed),
        ("POST", "/api/embeddings", embeddings.embeddings),
        ("POST", "/api/tokenize", tokens.tokenize),
        ("POST", "/api/detokenize", tokens.detokenize),
        ("POST", "/api/create", making.create),
        ("POST", "/api/pull", pulling.pull),
        ("HEAD POST", "/api/blobs/{digest}", making.blob),
        ("DELETE", "/api/delete", models.delete),
        ("POST", "/api/copy", models.copy),
        ("POST", "/api/push", pushing.push),
        ("GET", "/api/df", storage.df),
        ("POST", "/api/prune", storage.prune),
        ("POST", "/api/verify", storage.verify),
        ("POST", "/api/me", cloud.account),
        ("POST", "/api/signout", cloud.account),
        ("DELETE", "/api/user/keys/{key}", cloud.account),
        ("POST", "/api/experimental/web_search", cloud.web_search),
        ("POST", "/api/experimental/web_fetch", cloud.web_fetch),
        ("GET", "/api/experimental/model-recommendations", cloud.recommendations),
        ("GET", MODELS_PATH, openai.models),
        ("GET", f"{MODELS_PATH}/{{model:path}}", openai.model),
        ("POST", "/v1/chat/completions", openai.chat_completions),
        ("POST", "/v1/completions", openai.completions),
        ("POST", "/v1/responses", responses.create),
        ("POST", "/v1/responses/input_tokens", responses.input_tokens),
        ("POST", "/v1/responses/compact", responses.compact),
        ("POST", "/v1/embeddings", embeddings.openai),
        ("POST", "/v1/rerank", embeddings.rerank),
        ("POST", MESSAGES_PATH, messages.messages),
        ("POST", f"{MESSAGES_PATH}/count_tokens", messages.count_tokens),
    ]


def build_app(
    service: TextService,
    store: Store,
    settings: Settings,
    *,
    diagnose: Diagnose,
    registries: Registries | None = None,
    life: Life | None = None,
    limits: Limits | None = None,
) -> ASGIApp:
    """The application.

    Raises BadSetting for an origin that cannot match anything, and for keys that cannot be used.
    """
    life = life or Life()
    keys = load_keys(settings)
    bodies, turns = Bodies(), _turns(settings, keys)
    routes = [
        _Route(path, _Endpoint(handler, bodies, turns), methods=methods.split())
        for methods, path, handler in table(service, store, diagnose, registries or Registries())
    ]
    # A bare router: Starlette's own middleware wraps `send` twice for errors that never get there.
    router = _Router(routes, default=_not_found, lifespan=life.lifespan, redirect_slashes=False)
    return Guard(
        CleanPaths(router, routes),
        Origins(settings.origins),
        keys,
        checks_host=is_loopback(settings.host),
        is_draining=life.is_draining,
        limits=limits or Limits(),
    )


def _turns(settings: Settings, keys: Keys) -> Turns:
    max_running, max_queued = settings.max_running_per_key, settings.max_queued_per_key
    if max_running is not None and not keys:
        raise BadSetting("LOCALRUN_MAX_RUNNING_PER_KEY", "there are no keys; set LOCALRUN_API_KEY")
    if max_queued is not None and max_running is None:
        raise BadSetting(
            "LOCALRUN_MAX_QUEUED_PER_KEY", "has no effect without LOCALRUN_MAX_RUNNING_PER_KEY"
        )
    return Turns(max_running, settings.max_queue if max_queued is None else max_queued)


class _Endpoint:
    """A handler as an ASGI application, its errors turned into replies of the path's dialect."""

    def __init__(self, handler: Handler, bodies: Bodies, turns: Turns) -> None:
        self._handler = handler
        self._bodies = bodies
        self._turns = turns

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            reply = await self._handler(ApiRequest(scope, receive, self._bodies, self._turns))
        except ClientDisconnect:
            return
        except Exception as error:  # noqa: BLE001 - the table decides what the client is told
            reply = error_response(error, asked_dialect(scope))
        await reply(scope, receive, send)


class _Route(Route):
    async def handle(self, scope: Scope, receive: Receive, send: Send) -> None:
        if self.methods and scope["method"] not in self.methods:
            error = WrongMethod(scope["method"], scope["path"], ", ".join(sorted(self.methods)))
            await _unrouted(error, "405 method not allowed")(scope, receive, send)
        else:
            await self.app(scope, receive, send)


class _Router(Router):
    """Starlette's, which tries one route after the other, with a table in front of it."""

    def __init__(self, routes: Sequence[_Route], **options: Any) -> None:
        super().__init__(routes, **options)
        self._plain = {route.path: route for route in routes if not route.param_convertors}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        route = self._plain.get(scope["path"]) if scope["type"] == "http" else None
        if route is None:
            await super().__call__(scope, receive, send)
        else:
            await route.handle(scope, receive, send)


async def _root(request: ApiRequest) -> Response:
    # Health probes compare these words.
    return PlainTextResponse("Ollama is running")


async def _health(request: ApiRequest) -> Response:
    return Response(b'{"status":"ok"}', media_type=JSON_TYPE)


async def _not_found(scope: Scope, receive: Receive, send: Send) -> None:
    error = UnknownRoute(scope["method"], scope["path"])
    await _unrouted(error, "404 page not found")(scope, receive, send)


def _unrouted(error: UnknownRoute | WrongMethod, text: str) -> Response:
    """Ollama says `text`, plainly, everywhere; the other clients read an object."""
    dialect = dialect_of(error.path)
    if dialect != "native":
        return error_response(error, dialect)
    status = error_response(error, "native").status_code
    return PlainTextResponse(text, status, headers=error.headers)
