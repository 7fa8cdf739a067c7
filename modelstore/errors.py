"""Everything the store can refuse, as one exception tree.

Owns the sentences that a user reads about names, digests, manifests, GGUF files and disks. Knows
nothing of HTTP: the daemon maps each class to a status. Fields carry the facts; `__str__` makes one
sentence that names the thing, says what is wrong and, where it is not obvious, what to do. Files
are named by their base name, since messages travel to clients that have no business with our paths.
"""

import re

_USERINFO = re.compile(r"^(\s*(?:[A-Za-z][A-Za-z0-9+.-]*://)?)[^/]*@")


class StoreError(Exception):
    """Root of every error that the store raises on purpose."""


class InvalidName(StoreError):
    """A model name breaks the grammar; `problem` says which part and why."""

    def __init__(self, text: str, problem: str) -> None:
        super().__init__(text, problem)
        self.text = text
        self.problem = problem

    def __str__(self) -> str:
        # What stands before an `@` may be a password.
        text = _USERINFO.sub(r"\1***@", self.text)
        return f"invalid model name {_quoted(text)}: {self.problem}"


class InvalidDigest(StoreError):
    """A digest is not `sha256:` followed by 64 lower-case hex digits."""

    def __init__(self, text: str) -> None:
        super().__init__(text)
        self.text = text

    def __str__(self) -> str:
        return (
            f"invalid digest format: {_quoted(self.text)} is not `sha256:` and 64 lower-case "
            "hex digits"
        )


class ModelNotFound(StoreError):
    """No manifest exists under this name, in any spelling.

    `pull_problem` says why it could not be pulled either, where that was tried.
    """

    def __init__(self, name: str, pull_problem: str = "") -> None:
        super().__init__(name, pull_problem)
        self.name = name
        self.pull_problem = pull_problem

    def __str__(self) -> str:
        tried = f", and it cannot be pulled: {self.pull_problem}" if self.pull_problem else ""
        return f"model '{self.name}' not found{tried}"


class BlobNotFound(StoreError):
    """A digest that was asked for, or that a manifest names, is not in the store."""

    def __init__(self, digest: str) -> None:
        super().__init__(digest)
        self.digest = digest

    def __str__(self) -> str:
        return f"blob {self.digest} is not in the store; upload it, or create the model again"


class IncompleteModel(BlobNotFound):
    """The model is there, but a blob that its manifest names is not."""

    def __init__(self, model: str, digest: str) -> None:
        super().__init__(digest)
        self.args = (model, digest)
        self.model = model

    def __str__(self) -> str:
        return (
            f"blob {self.digest} of model '{self.model}' is not in the store; "
            f"`localrun verify --repair {self.model}` fetches it again"
        )


class DigestMismatch(StoreError):
    """The bytes that arrived are not the bytes that were announced."""

    def __init__(self, expected: str, actual: str) -> None:
        super().__init__(expected, actual)
        self.expected = expected
        self.actual = actual

    def __str__(self) -> str:
        return f'digest mismatch, expected "{self.expected}", got "{self.actual}"'


class CorruptManifest(StoreError):
    """A manifest, or a small layer that it names, cannot be understood."""

    def __init__(self, path_name: str, problem: str) -> None:
        super().__init__(path_name, problem)
        self.path_name = path_name
        self.problem = problem

    def __str__(self) -> str:
        return (
            f"manifest of `{self.path_name}` is corrupt: {self.problem}; remove the model, or "
            "create it again"
        )


class InvalidGGUF(StoreError):
    """A file is not a GGUF file that the engine could load."""

    def __init__(self, problem: str) -> None:
        super().__init__(problem)
        self.problem = problem

    def __str__(self) -> str:
        return f"invalid GGUF: {self.problem}"


class IncompleteGGUF(InvalidGGUF):
    """The file ends before what its header promises; `needed_bytes` is a lower bound."""

    def __init__(self, size_bytes: int, needed_bytes: int) -> None:
        super().__init__(f"file is incomplete: has {size_bytes} bytes, needs {needed_bytes}")
        self.args = (size_bytes, needed_bytes)
        self.size_bytes = size_bytes
        self.needed_bytes = needed_bytes


class IncompleteSplit(InvalidGGUF):
    """`n_missing` of the `n_parts` files of a split model are not there; `name` is the first."""

    def __init__(self, name: str, n_missing: int, n_parts: int) -> None:
        missing = f"`{name}` is" if n_missing == 1 else f"`{name}` and {n_missing - 1} more are"
        super().__init__(
            f"the model is split into {n_parts} files, of which {missing} missing; all are needed"
        )
        self.args = (name, n_missing, n_parts)
        self.name = name
        self.n_missing = n_missing
        self.n_parts = n_parts


class ModelfileSyntax(StoreError):
    """A Modelfile does not follow the grammar; `line` counts from 1."""

    def __init__(self, line: int, problem: str) -> None:
        super().__init__(line, problem)
        self.line = line
        self.problem = problem

    def __str__(self) -> str:
        return f"Modelfile line {self.line}: {self.problem}"


class InvalidCreate(StoreError):
    """A request to create a model contradicts itself or lacks something."""

    def __init__(self, problem: str) -> None:
        super().__init__(problem)
        self.problem = problem

    def __str__(self) -> str:
        return self.problem


class InvalidTemplate(StoreError):
    """A TEMPLATE is not a Go template; `problem` is what its parser said."""

    def __init__(self, problem: str) -> None:
        super().__init__(problem)
        self.problem = problem

    def __str__(self) -> str:
        return f"template error: {self.problem}"


class JobFailed(StoreError):
    """The process that was to `task` ended without a result; `problem` says how."""

    def __init__(self, task: str, problem: str) -> None:
        super().__init__(task, problem)
        self.task = task
        self.problem = problem

    def __str__(self) -> str:
        return f"could not {self.task}: {self.problem}"


class UnsupportedFormat(StoreError):
    """The input is valid in itself, but of a kind that the store does not take."""

    def __init__(self, problem: str) -> None:
        super().__init__(problem)
        self.problem = problem

    def __str__(self) -> str:
        return self.problem


class SourceNotAllowed(StoreError):
    """A file may not be used as a source: not a regular file, or not readable."""

    def __init__(self, problem: str) -> None:
        super().__init__(problem)
        self.problem = problem

    def __str__(self) -> str:
        return self.problem


# Nothing to check, unlike other problems of such a file.
GONE = "is no longer there"


class ChangedFile(StoreError):
    """A file that is used in place is no longer the file that was registered.

    `model` is the one that needs it, where that is known.
    """

    def __init__(self, name: str, problem: str, model: str = "") -> None:
        super().__init__(name, problem, model)
        self.name = name
        self.problem = problem
        self.model = model

    @property
    def finding(self) -> str:
        """What is wrong, without what to do."""
        return f"file `{self.name}`, used in place, {self.problem}"

    def __str__(self) -> str:
        if self.problem == GONE:
            return f"{self.finding}; put it back, or create the model again"
        if not self.model:
            return f"{self.finding}; create the model again"
        return (
            f"{self.finding}; `localrun verify {self.model}` checks it and registers it again if "
            "its content is the same; if not, create the model again"
        )


class StoreBusy(StoreError):
    """Another thread or process has held the store's lock for too long."""

    def __init__(self, waited_s: float) -> None:
        super().__init__(waited_s)
        self.waited_s = waited_s

    def __str__(self) -> str:
        return (
            f"the model store is locked by another process (waited {self.waited_s:.0f} s); "
            "try again when it has finished"
        )


class DownloadUnderway(StoreError):
    """What should be removed is being downloaded at this moment."""

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.name = name

    def __str__(self) -> str:
        return f"model '{self.name}' is being downloaded; stop the download, then remove it"


class DiskFull(StoreError):
    """The store's file system has no room; `needed_bytes` is 0 for what takes a few KB."""

    def __init__(self, needed_bytes: int, free_bytes: int) -> None:
        super().__init__(needed_bytes, free_bytes)
        self.needed_bytes = needed_bytes
        self.free_bytes = free_bytes

    def __str__(self) -> str:
        if not self.needed_bytes:
            return (
                "the disk of the model store is full: a few KB are needed, "
                f"{self.free_bytes} bytes are free"
            )
        return (
            f"not enough disk space for the model: needs {self.needed_bytes} bytes, "
            f"{self.free_bytes} are free"
        )


class StoreNotWritable(StoreError):
    """The store can be read, but this user may not change it."""

    def __init__(self, folder: str, user: str, problem: str) -> None:
        super().__init__(folder, user, problem)
        self.folder = folder
        self.user = user
        self.problem = problem

    def __str__(self) -> str:
        return (
            f"cannot write to `{self.folder}` of the model store as user {self.user}: "
            f"{self.problem}"
        )


class RegistryError(StoreError):
    """Root of what goes wrong between us and a registry, or another server with models.

    Messages name the host and never hold what it sent: a pull may have been pointed at a server
    whose answers are none of the client's business.
    """


class AddressNotAllowed(RegistryError):
    """The policy forbids to contact `host`; nothing was sent to it."""

    def __init__(self, host: str, problem: str) -> None:
        super().__init__(host, problem)
        self.host = host
        self.problem = problem

    def __str__(self) -> str:
        return f"`{shown(self.host)}` is not contacted: {self.problem}"


class HostUnreachable(RegistryError):
    """No usable connection to `host`, or it broke; `proxy` is the one in between, if any."""

    def __init__(self, host: str, problem: str, proxy: str = "") -> None:
        super().__init__(host, problem, proxy)
        self.host = host
        self.problem = problem
        self.proxy = proxy

    def __str__(self) -> str:
        return f"`{shown(self.host)}`{_through(self.proxy)}: {self.problem}"


class ServerRefused(RegistryError):
    """`host` answered with an HTTP status that says no; `what` is what was asked for.

    `hint` is what may help.
    """

    def __init__(self, host: str, status: int, what: str, proxy: str = "", hint: str = "") -> None:
        super().__init__(host, status, what, proxy, hint)
        self.hint = hint
        self.host = host
        self.status = status
        self.what = what
        self.proxy = proxy

    def __str__(self) -> str:
        hint = f"; {self.hint}" if self.hint else ""
        return (
            f"`{shown(self.host)}`{_through(self.proxy)} answered with HTTP status {self.status} "
            f"when asked for {self.what}{hint}"
        )


class SignInRequired(RegistryError):
    """`host` wants to know who asks, and what we could tell it was not enough."""

    def __init__(self, host: str, problem: str) -> None:
        super().__init__(host, problem)
        self.host = host
        self.problem = problem

    def __str__(self) -> str:
        return f"unauthorized: access denied by `{shown(self.host)}`: {self.problem}"


class BadReply(RegistryError):
    """`host` answered, but not with what the protocol promises."""

    def __init__(self, host: str, problem: str) -> None:
        super().__init__(host, problem)
        self.host = host
        self.problem = problem

    def __str__(self) -> str:
        return f"`{shown(self.host)}` sent something unusable: {self.problem}"


class ManifestNotFound(RegistryError):
    """The registry has no model `name`, which is the full one. Clients compare the first words."""

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.name = name

    def __str__(self) -> str:
        return f"pull model manifest: file does not exist: {self.name} not found"


class BadManifest(RegistryError):
    """A registry's manifest breaks a rule that protects the store."""

    def __init__(self, name: str, problem: str) -> None:
        super().__init__(name, problem)
        self.name = name
        self.problem = problem

    def __str__(self) -> str:
        return f"the registry's manifest of `{self.name}` is not acceptable: {self.problem}"


class TransferFailed(RegistryError):
    """The tries of one part are used up; `problem` is what ended the last one."""

    def __init__(self, what: str, n_tries: int, problem: str) -> None:
        super().__init__(what, n_tries, problem)
        self.what = what
        self.n_tries = n_tries
        self.problem = problem

    def __str__(self) -> str:
        return (
            f"max retries exceeded: {self.what} failed {self.n_tries} times in a row, at last "
            f"with: {self.problem}; pull again to resume"
        )


class Stopped(StoreError):
    """Nobody wants the operation any more, or the process ends."""

    def __str__(self) -> str:
        return "the operation was stopped; what has arrived is kept, and pulling again resumes"


def shown(text: str) -> str:
    """A text from outside, fit for a message: at most 80 printable characters.

    A hostile name can be megabytes long or hold control characters; neither belongs in a log.
    """
    short = text if len(text) <= 80 else text[:77] + "..."
    return "".join(c if c.isprintable() else "?" for c in short)


def _through(proxy: str) -> str:
    return f" (through the proxy `{shown(proxy)}`)" if proxy else ""


def _quoted(text: str) -> str:
    return f'"{shown(text)}"'
