"""The one table of errors: exception class → status, OpenAI type, OpenAI code.

Anthropic's type follows from the status.

All trees, `localrun.errors`, `modelstore.errors` and `localrun.http.refusals`, have all their
leaves here, along the MRO; a test enumerates them. An exception that no row covers is a bug: status
500, a traceback in the log, and nothing about it in the reply.
Source: Ollama's HTTP API; where the statuses differ the reason stands beside the row.
"""

import contextlib
import logging
import re
import secrets
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Literal

from starlette.responses import Response

from localrun import errors as ours
from localrun.http import refusals
from localrun.http.refusals import TransportError
from localrun.wire.faults import Fault
from localrun.wire.streams import JSON_TYPE
from modelstore import errors as store

Dialect = Literal["native", "openai", "anthropic"]

# The header that names a request in Anthropic's dialect.
REQUEST_ID = "request-id"

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Row:
    """`text` replaces the error's own words; `from_engine` marks words that may hold paths."""

    status: int
    kind: str = "api_error"
    code: str | None = None
    text: str | None = None
    from_engine: bool = False


_BAD = "invalid_request_error"

TABLE: dict[type[Exception], Row] = {
    ours.BadRequest: Row(400, _BAD),
    ours.Unsupported: Row(400, _BAD, "unsupported"),
    # The code is Anthropic's: its clients then send the whole conversation by themselves.
    ours.NotRemembered: Row(400, _BAD, "thread_unsupported_request"),
    ours.ContextOverflow: Row(400, _BAD, "context_length_exceeded"),
    ours.WindowTooLarge: Row(400, _BAD, "window_too_large"),
    # Ollama says 500; but it is the conversation that the template does not take.
    ours.TemplateFailed: Row(400, _BAD, "template_failed", from_engine=True),
    ours.TemplateTimeout: Row(500, code="template_timeout"),
    ours.QueueFull: Row(503, code="queue_full"),
    ours.ShuttingDown: Row(503, code="shutting_down"),
    # As Ollama. Not 503: to come back later does not help.
    ours.NotEnoughMemory: Row(500, code="not_enough_memory"),
    ours.LoadFailed: Row(500, code="load_failed", from_engine=True),
    ours.EngineFailed: Row(500, code="engine_failed"),
    # Format and biases are the client's: the same request would end there again.
    ours.FormatFailed: Row(400, _BAD, "format_failed"),
    # Come back: whoever asks next has it loaded again.
    ours.ModelStopped: Row(503, code="model_stopped"),
    ours.RunnerLost: Row(500, code="runner_lost", from_engine=True),
    store.InvalidName: Row(400, _BAD, "invalid_name"),
    store.InvalidDigest: Row(400, _BAD, "invalid_digest"),
    store.ModelNotFound: Row(404, "not_found_error", "model_not_found"),
    store.BlobNotFound: Row(404, "not_found_error", "blob_not_found"),
    # Not 404: clients answer that with a pull, which would replace the model.
    store.IncompleteModel: Row(500, code="incomplete_model"),
    store.DigestMismatch: Row(400, _BAD, "digest_mismatch"),
    store.CorruptManifest: Row(500, code="corrupt_manifest"),
    store.InvalidGGUF: Row(400, _BAD, "invalid_gguf"),
    store.ModelfileSyntax: Row(400, _BAD, "modelfile_syntax"),
    store.InvalidCreate: Row(400, _BAD),
    store.InvalidTemplate: Row(400, _BAD, "invalid_template"),
    store.JobFailed: Row(500, code="job_failed", from_engine=True),
    store.UnsupportedFormat: Row(400, _BAD, "unsupported_format"),
    store.SourceNotAllowed: Row(403, _BAD, "source_not_allowed"),
    store.ChangedFile: Row(500, code="changed_file"),
    store.StoreBusy: Row(503, code="store_busy"),
    store.DownloadUnderway: Row(409, _BAD, "download_underway"),
    store.DiskFull: Row(507, code="disk_full"),
    # Its own words name the user; those belong in the log.
    store.StoreNotWritable: Row(
        500,
        code="store_not_writable",
        text="the daemon may not write to its model store; its log says where and why",
    ),
    store.AddressNotAllowed: Row(403, _BAD, "address_not_allowed"),
    # Ollama says 500; the name is unknown to the registry as well.
    store.ManifestNotFound: Row(404, "not_found_error", "model_not_found"),
    # A digest that is no digest is refused like one in a request.
    store.BadManifest: Row(400, _BAD, "bad_manifest"),
    # Not 401: that would be about the client's own key for this daemon.
    store.SignInRequired: Row(403, _BAD, "sign_in_required"),
    store.RegistryError: Row(502, code="registry_error"),
    store.Stopped: Row(503, code="stopped"),
    refusals.BadFraming: Row(400, _BAD, "bad_framing"),
    refusals.HeadTooLarge: Row(431, _BAD, "head_too_large"),
    refusals.BodyTooLarge: Row(413, _BAD, "body_too_large"),
    refusals.BodyTimeout: Row(408, _BAD, "body_timeout"),
    refusals.BodyTooSlow: Row(408, _BAD, "body_timeout"),
    refusals.EncodingRefused: Row(415, _BAD, "encoding_refused"),
    refusals.HostRefused: Row(403, _BAD, "host_refused"),
    refusals.OriginRefused: Row(403, _BAD, "origin_refused"),
    # The codes are OpenAI's: its clients make classes of errors from them and the status.
    refusals.KeyMissing: Row(401, _BAD, "missing_api_key"),
    refusals.KeyRefused: Row(401, _BAD, "invalid_api_key"),
    refusals.KeyBusy: Row(429, "rate_limit_error", "rate_limit_exceeded"),
    refusals.UnknownRoute: Row(404, _BAD, "unknown_url"),
    refusals.WrongMethod: Row(405, _BAD, "method_not_allowed"),
    refusals.NoAccount: Row(401, _BAD, "no_account"),
    refusals.CloudDisabled: Row(403, _BAD, "cloud_disabled"),
}

_ANTHROPIC_KINDS = {
    400: _BAD,
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
    # Anthropic's own status for it is 529; its clients come back after either.
    503: "overloaded_error",
}

_UNMAPPED = Row(500, code="internal_error", text="internal error")
# Errors that name the field of the request.
_WITH_PATH = (ours.BadRequest, ours.Unsupported, ours.NotRemembered, ours.WindowTooLarge)
# Errors that advise on `num_ctx`, which only Ollama's dialect has.
_ABOUT_WINDOW = (ours.ContextOverflow, ours.WindowTooLarge, ours.NotEnoughMemory)
# Folders of an absolute path, with spaces only inside quotes; the file's own name stays.
_FOLDERS = re.compile(
    r"""(?<=['"`])/(?:[^/'"`\n]+/)+  |  (?<![\w.:/-])/(?:[^/\s'"`]+/)+""", re.VERBOSE
)


def row_of(error: Exception) -> Row | None:
    """The row of the most specific class, or None."""
    return next((TABLE[cls] for cls in type(error).__mro__ if cls in TABLE), None)


def fault_of(error: Exception, dialect: Dialect = "native") -> tuple[Row, Fault]:
    """What the client is told. Logs a traceback for an error that no row covers."""
    row = row_of(error)
    if row is None:
        row = _UNMAPPED
        _log.error("unexpected error in a request", exc_info=error)
    elif row.status in (500, 507):
        _log.warning("%s: %s", type(error).__name__, error)
    message = str(error) if row.text is None else row.text
    path = error.path if isinstance(error, _WITH_PATH) else ""
    if dialect != "native" and isinstance(error, _ABOUT_WINDOW):
        message, path = error.without_options(), ""
    if row.from_engine:
        message = _FOLDERS.sub("", message)
    return row, Fault(message, row.kind, row.code, path, _anthropic_kind(row.status))


def _anthropic_kind(status: int) -> str:
    return _ANTHROPIC_KINDS.get(status, _BAD if status < 500 else "api_error")


def new_request_id() -> str:
    """A request's name in Anthropic's dialect."""
    return f"req_{secrets.token_hex(12)}"


def error_response(error: Exception, dialect: Dialect) -> Response:
    """The error as a whole reply, with the headers that tell a client when to come back."""
    row, fault = fault_of(error, dialect)
    headers: Mapping[str, str] = {}
    if isinstance(error, TransportError):
        headers = error.headers
    elif isinstance(error, ours.QueueFull):
        headers = {"Retry-After": str(error.retry_after_s)}
    elif isinstance(error, ours.ShuttingDown):
        headers = {"Connection": "close"}
    if dialect == "anthropic":
        request_id = new_request_id()
        body, headers = fault.anthropic(request_id), {**headers, REQUEST_ID: request_id}
    else:
        body = fault.native() if dialect == "native" else fault.openai()
    return Response(body, row.status, headers, media_type=JSON_TYPE)


@contextlib.contextmanager
def as_sent(model: str) -> Iterator[None]:
    """Lets an unknown model be named as the client spelled it, which is what clients compare."""
    try:
        yield
    except store.ModelNotFound as error:
        raise store.ModelNotFound(model) from error
