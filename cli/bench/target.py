"""What a run can measure: the daemon with a model loaded, or any OpenAI-compatible server.

Owns how a target is found and made ready; knows nothing of load.
"""

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any
from urllib.parse import urlsplit

from msgspec import Struct

from cli.bench.answers import Endpoint
from cli.bench.sweep import KvUse, Target
from cli.client import Client
from cli.errors import DaemonUnreachable, Failed, Usage
from cli.replies import GenerateLine
from localrun.loopback import is_loopback
from modelstore.names import ModelName


class ServerUnreachable(DaemonUnreachable):
    """Nothing usable answers at the URL that was given."""

    def __str__(self) -> str:
        return f"no server at {self.url}: {self.reason or 'connection refused'}"


class _Kv(Struct):
    cells: int = 0
    used: int = 0
    used_max: int = 0


class _Resident(Struct):
    name: str
    context_length: int = 0
    kv: _Kv | None = None


class _Residents(Struct):
    models: list[_Resident] = []


class _Model(Struct):
    id: str


class _Models(Struct):
    data: list[_Model] = []


class Daemon:
    """The daemon behind `client`, with one model. `api` ends the path of its requests."""

    def __init__(self, client: Client, model: str, api: str, extra: Mapping[str, Any]) -> None:
        """Raises: Usage when the daemon is on another machine."""
        if not is_loopback(client.host):
            raise Usage(
                f"{client.url} is not on this machine; if its load is yours to make, name it with "
                "--url"
            )
        self._client = client
        self._model = model
        self._api = api
        self._extra = extra

    def load(self, policy: str | None) -> Target:
        """The model in memory, admitting requests by `policy` if one is given.

        Raises: ApiError (404: no such model), Usage, Failed.
        """
        version = self._client.version()
        if policy is not None and not version.localrun:
            raise Usage(f"--policy needs a localrun daemon, and {self._client.url} is none")
        options = {} if policy is None else {"options": {"admission": policy}}
        self._client.post(
            "/api/generate", {"model": self._model, "stream": False, **options}, GenerateLine
        )
        found = self._resident()
        about = f"localrun {version.localrun}" if version.localrun else f"Ollama {version.version}"
        parts = urlsplit(self._client.url)
        endpoint = Endpoint(
            self._client.host,
            parts.port or 80,
            self._model,
            self._extra,
            f"/v1{self._api}",
            self._client.api_key,
        )
        window = found.context_length if found else 0
        return Target(self._model, self._model, endpoint, window, about=about, read_kv=self._kv)

    def unload(self) -> None:
        """Takes the model out of memory, and with it the policy. Raises: ApiError, Failed."""
        self._client.close()  # an interrupted request leaves it in the middle of an answer
        body = {"model": self._model, "keep_alive": 0, "stream": False}
        self._client.post("/api/generate", body, GenerateLine)

    def _resident(self) -> _Resident | None:
        wanted = ModelName.parse(self._model).display()
        models = self._client.get("/api/ps", _Residents).models
        return next((m for m in models if m.name.lower() == wanted.lower()), None)

    def _kv(self) -> KvUse | None:
        found = self._resident()
        return KvUse(found.kv.cells, found.kv.used_max) if found and found.kv else None


def server(url: str, model: str | None, api: str, extra: Mapping[str, Any]) -> Target:
    """The server at `url`, with the first model that it lists unless `model` names one.

    Raises: Usage, ServerUnreachable, ApiError, Failed.
    """
    parts = urlsplit(url)
    try:
        port = parts.port or 80
    except ValueError:
        port = 0
    if parts.scheme != "http" or not parts.hostname or not port:
        raise Usage(f"--url `{url}` is not of the form http://host:port")
    base = parts.path.rstrip("/").removesuffix("/v1") + "/v1"
    plain = f"http://{parts.netloc.rpartition('@')[2]}"
    model = model or _first_model(plain, f"{base}/models")
    endpoint = Endpoint(parts.hostname, port, model, extra, f"{base}{api}")
    return Target(plain, model, endpoint, window=0, who=plain)


def _first_model(url: str, path: str) -> str:
    client = Client(url)
    try:
        models = client.get(path, _Models).data
    except DaemonUnreachable as error:
        raise ServerUnreachable(error.url, error.reason) from error
    finally:
        client.close()
    if not models:
        raise Failed(f"{url} lists no model; name one with --model")
    return models[0].id


def named(targets: Iterable[Target]) -> list[Target]:
    """`targets` with names that differ: the same server may be measured twice."""
    found: list[Target] = []
    for target in targets:
        n_same = sum(other.name.partition(" #")[0] == target.name for other in found)
        found.append(replace(target, name=f"{target.name} #{n_same + 1}") if n_same else target)
    return found
