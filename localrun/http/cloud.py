"""Routes about an account of ollama.com and what is answered there: there is nothing of it here.

Source: Ollama `server/routes.go`; clients ask these to decide what to offer to a person.
"""

from starlette.responses import Response

from localrun.http.refusals import CloudDisabled, NoAccount
from localrun.http.requests import ApiRequest
from localrun.wire.streams import JSON_TYPE


async def status(request: ApiRequest) -> Response:
    """No cloud, and no setting that could switch it on."""
    return Response(b'{"cloud":{"disabled":true,"source":"config"}}', media_type=JSON_TYPE)


async def account(request: ApiRequest) -> Response:
    """Raises: NoAccount."""
    raise NoAccount


async def web_search(request: ApiRequest) -> Response:
    """Raises: CloudDisabled."""
    raise CloudDisabled("web search")


async def web_fetch(request: ApiRequest) -> Response:
    """Raises: CloudDisabled."""
    raise CloudDisabled("web fetch")


async def recommendations(request: ApiRequest) -> Response:
    """None: which models suit this machine is not known here."""
    return Response(b'{"recommendations":[]}', media_type=JSON_TYPE)
