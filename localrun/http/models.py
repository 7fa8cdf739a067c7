"""Handlers of Ollama's routes about models: lists, descriptions, copies, removal.

Every call of the store runs in a thread. What is said about a model is put together in
`describe`; making models is `create`'s.
"""

import asyncio
import os

from starlette.responses import Response

import localrun
from localrun import metrics
from localrun.errors import BadRequest
from localrun.http.abilities import Abilities
from localrun.http.describe import Describer
from localrun.http.errors import as_sent
from localrun.http.requests import ApiRequest
from localrun.service import TextService
from localrun.settings import cache_folder
from localrun.wire.native_models import (
    decode_copy,
    decode_delete,
    decode_show,
    encode_description,
    encode_models,
    encode_version,
)
from localrun.wire.streams import JSON_TYPE
from modelstore.errors import InvalidName, shown
from modelstore.names import ModelName
from modelstore.store import Store

# Copilot, Open WebUI and others switch features by the version of Ollama that they think they see.
_OLLAMA_VERSION = "0.30.0"


class ModelsApi:
    """Everything about models but their making."""

    def __init__(self, service: TextService, store: Store) -> None:
        self._service = service
        self._store = store
        self._describer = Describer(store, Abilities(cache_folder() / "abilities.json"))

    async def version(self, request: ApiRequest) -> Response:
        """Who answers here."""
        return _json(encode_version(_OLLAMA_VERSION, localrun.__version__, os.getpid()))

    async def tags(self, request: ApiRequest) -> Response:
        """The models of the store, latest change first."""
        return _json(encode_models(await asyncio.to_thread(self._describer.installed)))

    async def ps(self, request: ApiRequest) -> Response:
        """The models in memory, the one that stays longest first."""
        residents = self._service.resident()
        return _json(encode_models(await asyncio.to_thread(self._describer.running, residents)))

    async def metrics(self, request: ApiRequest) -> Response:
        """Counters and gauges of the models in memory, as Prometheus reads them."""
        text = metrics.exposition(self._service.resident())
        return Response(text, headers={"Content-Type": metrics.CONTENT_TYPE})

    async def show(self, request: ApiRequest) -> Response:
        """Raises BadRequest, InvalidName, ModelNotFound, CorruptManifest, IncompleteModel."""
        wanted = await request.decoded(decode_show)
        # Copilot shows this as the model's title.
        is_copilot = request.headers.get("user-agent", "").startswith("GitHubCopilotChat/")
        description = await asyncio.to_thread(self._describer.describe, wanted, titled=is_copilot)
        return _json(encode_description(description))

    async def delete(self, request: ApiRequest) -> Response:
        """A model that is loaded goes when its answers have ended, unless it has another name.

        Raises BadRequest, ModelNotFound, StoreBusy, StoreNotWritable.
        """
        model = await request.decoded(decode_delete)
        name = _parsed(model, "name")
        with as_sent(model):
            await asyncio.to_thread(self._store.delete, name)
        await self._service.unload_unnamed()
        return Response()

    async def copy(self, request: ApiRequest) -> Response:
        """Raises BadRequest, ModelNotFound, CorruptManifest, StoreBusy, StoreNotWritable."""
        source, destination = await request.decoded(decode_copy)
        names = _parsed(source, "source"), _parsed(destination, "destination")
        with as_sent(source):
            await asyncio.to_thread(self._store.copy, *names)
        await self._service.unload_unnamed()
        return Response()


def _parsed(text: str, what: str) -> ModelName:
    try:
        return ModelName.parse(text)
    except InvalidName as error:
        raise BadRequest("", f'{what} "{shown(text)}" is invalid') from error


def _json(document: bytes) -> Response:
    return Response(document, media_type=JSON_TYPE)
