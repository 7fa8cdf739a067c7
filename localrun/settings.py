"""The daemon's and the CLI's settings: one table, one reader of the environment.

A setting is looked up as `LOCALRUN_X`, then as `OLLAMA_X` where Ollama has it, then bare as `X`
for the few names that users write that way. A value that does not parse stops the start with a
sentence that names the variable. `SETTINGS` also produces `serve --help` and the README's table.
"""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from msgspec import Struct

from localrun import setting_texts as texts
from localrun.setting_texts import DEFAULT_PORT
from localrun.units import parse_duration_s, parse_size_bytes, parse_switch

if TYPE_CHECKING:
    from localrun.spec import KvLayout

# Fields that no log and no traceback may show.
_SECRETS = ("registries", "hf_token", "api_key")


class BadSetting(Exception):
    """`variable` holds a value that cannot be used; `problem` says why and what would work."""

    def __init__(self, variable: str, problem: str) -> None:
        super().__init__(variable, problem)
        self.variable = variable
        self.problem = problem

    def __str__(self) -> str:
        return f"{self.variable}: {self.problem}"


class Settings(Struct, frozen=True):
    """Values of one process. None means that the program chooses from what it finds."""

    host: str = "127.0.0.1"
    port: int = DEFAULT_PORT
    models: Path | None = None
    keep_alive_s: float = 300.0
    num_parallel: int = 8
    max_loaded_models: int | None = None
    max_queue: int = 512
    context_length: int | None = None
    kv_cache_type: str = "f16"
    kv_pool: int | None = None
    kv_layout: "KvLayout | None" = None
    host_tier_bytes: int | None = None
    flash_attention: bool | None = None
    gpu_overhead_bytes: dict[str, int] = {}
    sched_spread: bool = False
    rpc_servers: tuple[str, ...] = ()
    registries: tuple[str, ...] = ()
    hf_token: str = ""
    tpot_target_ms: float | None = None
    embed_batch: int | None = None
    embed_delay_ms: float = 0.0
    deterministic: bool = False
    truncate: str = "drop"
    load_timeout_s: float = 300.0
    num_thread: int | None = None
    origins: tuple[str, ...] = ()
    api_key: str = ""
    api_keys_file: Path | None = None
    max_running_per_key: int | None = None
    max_queued_per_key: int | None = None
    log_level: str = "info"
    insecure: bool = False
    no_autostart: bool = False
    no_history: bool = False
    no_prune: bool = False

    def __repr__(self) -> str:
        shown = (name for name in self.__struct_fields__ if name not in _SECRETS)
        return f"Settings({', '.join(f'{name}={getattr(self, name)!r}' for name in shown)})"

    @property
    def has_keys(self) -> bool:
        """Whether requests need an API key."""
        return bool(self.api_key) or self.api_keys_file is not None

    @property
    def url(self) -> str:
        """Where a client on this machine reaches the daemon; a wildcard becomes loopback."""
        host = {"0.0.0.0": "127.0.0.1", "::": "::1", "": "127.0.0.1"}.get(self.host, self.host)
        return f"http://[{host}]:{self.port}" if ":" in host else f"http://{host}:{self.port}"


def models_folder(settings: Settings) -> Path:
    """Where the model store lies, absolute: the setting, else the user's data folder.

    Links in the path are left as they are.
    """
    if settings.models is not None:
        try:
            return settings.models.expanduser().absolute()
        except RuntimeError:  # `~somebody` who does not exist is a name like any other
            return settings.models.absolute()
    # Imported here: the CLI reads settings at every start and rarely needs this.
    import platformdirs

    return Path(platformdirs.user_data_dir("localrun", appauthor=False)) / "models"


def cache_folder() -> Path:
    """Where the user's machine keeps what localrun can find out again."""
    import platformdirs

    return Path(platformdirs.user_cache_dir("localrun", appauthor=False))


class Setting(Struct, frozen=True):
    """One row of the table: `parse` raises ValueError with a sentence."""

    name: str
    fields: tuple[str, ...]
    parse: Callable[[str], Any]
    default: str
    help: str
    ollama: bool = True
    bare: bool = False


SETTINGS: tuple[Setting, ...] = (
    Setting(
        "HOST",
        ("host", "port"),
        texts.parse_host,
        "127.0.0.1:11434",
        "address the daemon listens on and the CLI connects to",
    ),
    Setting("MODELS", ("models",), Path, "user data folder", "folder of the model store"),
    Setting(
        "KEEP_ALIVE",
        ("keep_alive_s",),
        parse_duration_s,
        "5m",
        "how long an idle model stays loaded; -1 for ever, 0 not at all",
        bare=True,
    ),
    Setting(
        "NUM_PARALLEL",
        ("num_parallel",),
        texts.count,
        "8",
        "sequences that one model serves at once",
        bare=True,
    ),
    Setting(
        "MAX_LOADED_MODELS",
        ("max_loaded_models",),
        texts.auto_count,
        "3 for each GPU",
        "models in memory at once; without a GPU 3",
        bare=True,
    ),
    Setting(
        "MAX_QUEUE",
        ("max_queue",),
        texts.count,
        "512",
        "requests that may wait for a slot before 503",
        bare=True,
    ),
    Setting(
        "CONTEXT_LENGTH",
        ("context_length",),
        texts.auto_count,
        "by GPU memory",
        "tokens of a sequence unless the model or request says otherwise: 4096, from 23 GiB of "
        "GPU memory 32768, from 47 GiB 262144",
    ),
    Setting(
        "KV_CACHE_TYPE",
        ("kv_cache_type",),
        texts.choice("f16", "q8_0", "q4_0"),
        "f16",
        "type of the KV cache",
    ),
    Setting(
        "KV_POOL",
        ("kv_pool",),
        texts.auto_count,
        "auto",
        "tokens in the KV cache of a model, all its sequences together",
        ollama=False,
    ),
    Setting(
        "KV_LAYOUT",
        ("kv_layout",),
        texts.auto(texts.choice("unified", "split")),
        "auto",
        "KV cache: unified, one pool for all sequences; split, a window for each slot; or auto",
        ollama=False,
    ),
    Setting(
        "HOST_TIER",
        ("host_tier_bytes",),
        texts.auto(parse_size_bytes),
        "auto",
        "memory for the KV of sequences that had to leave the cache, such as 2GiB; 0 for none, "
        "auto an eighth of the cache",
        ollama=False,
    ),
    Setting(
        "FLASH_ATTENTION",
        ("flash_attention",),
        texts.auto(parse_switch),
        "auto",
        "flash attention: 1, 0 or auto",
    ),
    Setting(
        "GPU_OVERHEAD",
        ("gpu_overhead_bytes",),
        texts.parse_overheads,
        "0",
        "memory of each GPU that no model gets, such as 1GiB, or CUDA0=2GiB,RPC0=20GiB",
    ),
    Setting(
        "SCHED_SPREAD",
        ("sched_spread",),
        parse_switch,
        "0",
        "spread every model over all GPUs, also one that fits one of them",
    ),
    Setting(
        "RPC_SERVERS",
        ("rpc_servers",),
        texts.parse_rpc_servers,
        "",
        "host:port of llama.cpp's RPC servers, comma separated, whose memory models may use; in "
        "trusted networks only",
        ollama=False,
    ),
    Setting(
        "REGISTRIES",
        ("registries",),
        texts.names,
        "",
        "registries that may be contacted though they are not public hosts with https, comma "
        "separated: host:port, http://host:port, or https://user:password@host to sign in",
        ollama=False,
    ),
    Setting(
        "HF_TOKEN",
        ("hf_token",),
        texts.token,
        "",
        "access token for private and gated models of Hugging Face, sent to nobody else",
        ollama=False,
        bare=True,
    ),
    Setting(
        "TPOT_TARGET_MS",
        ("tpot_target_ms",),
        texts.auto(texts.milliseconds),
        "auto",
        "milliseconds that a step may take when prompts are computed beside running answers",
        ollama=False,
    ),
    Setting(
        "EMBED_BATCH",
        ("embed_batch",),
        texts.auto(texts.count),
        "auto",
        "tokens of texts that become vectors in one forward; auto is 256 in RAM, 512 on a GPU",
        ollama=False,
    ),
    Setting(
        "EMBED_DELAY_MS",
        ("embed_delay_ms",),
        texts.delay_ms,
        "0",
        "milliseconds that a text may wait for others to become vectors with",
        ollama=False,
    ),
    Setting(
        "DETERMINISTIC",
        ("deterministic",),
        parse_switch,
        "0",
        "the same seed gives the same text whatever else runs; slower",
        ollama=False,
    ),
    Setting(
        "TRUNCATE",
        ("truncate",),
        texts.choice("drop", "error"),
        "drop",
        "prompts beyond the window: drop what is oldest and say so, or answer with an error",
        ollama=False,
    ),
    Setting(
        "LOAD_TIMEOUT",
        ("load_timeout_s",),
        texts.timeout_s,
        "5m",
        "how long a load or a step may go without progress",
    ),
    Setting(
        "NUM_THREAD",
        ("num_thread",),
        texts.auto_count,
        "cores available",
        "CPU threads of a model; no more compute than there are processors",
        ollama=False,
    ),
    Setting(
        "ORIGINS",
        ("origins",),
        texts.names,
        "",
        "further browser origins that may call the API, comma separated; `*` is all of them, but "
        "without an API key only for what changes no models",
    ),
    Setting(
        "LOG_LEVEL",
        ("log_level",),
        texts.choice("debug", "info", "warning", "error"),
        "info",
        "least level of log lines",
        ollama=False,
    ),
    Setting(
        "API_KEY",
        ("api_key",),
        texts.token,
        "",
        "key that every request to the daemon must bring, as `Authorization: Bearer KEY`; the CLI "
        "sends it",
        ollama=False,
    ),
    Setting(
        "API_KEYS_FILE",
        ("api_keys_file",),
        Path,
        "",
        "file with further keys, one `name: key` on each line, that only its owner may read",
        ollama=False,
    ),
    Setting(
        "MAX_RUNNING_PER_KEY",
        ("max_running_per_key",),
        texts.auto_count,
        "no limit",
        "requests for text that one API key may have running",
        ollama=False,
    ),
    Setting(
        "MAX_QUEUED_PER_KEY",
        ("max_queued_per_key",),
        texts.whole,
        "as MAX_QUEUE",
        "requests of one API key that wait while MAX_RUNNING_PER_KEY run, before 429",
        ollama=False,
    ),
    Setting(
        "INSECURE",
        ("insecure",),
        parse_switch,
        "0",
        "listen beyond loopback without an API key, so that everybody may use the models",
        ollama=False,
    ),
    Setting(
        "NO_AUTOSTART",
        ("no_autostart",),
        parse_switch,
        "0",
        "the CLI never starts the daemon by itself",
        ollama=False,
    ),
    Setting(
        "NOHISTORY", ("no_history",), parse_switch, "0", "do not keep the history of the prompt"
    ),
    Setting(
        "NOPRUNE", ("no_prune",), parse_switch, "0", "do not remove unreferenced blobs at start"
    ),
)


def from_env(environ: Mapping[str, str]) -> Settings:
    """Settings of `environ`. Surrounding spaces and quotes are cut, an empty value is unset.

    Raises BadSetting for a value that does not parse and for a `LOCALRUN_` name no row knows.
    """
    values: dict[str, Any] = {}
    for row in SETTINGS:
        variable, text = _look_up(environ, row)
        if not text:
            continue
        try:
            parsed = row.parse(text)
        except ValueError as error:
            raise BadSetting(variable, str(error)) from None
        values.update(zip(row.fields, parsed if len(row.fields) > 1 else (parsed,), strict=True))
    _refuse_unknown(environ)
    return Settings(**values)


def _look_up(environ: Mapping[str, str], row: Setting) -> tuple[str, str]:
    names = [f"LOCALRUN_{row.name}"]
    names += [f"OLLAMA_{row.name}"] if row.ollama else []
    names += [row.name] if row.bare else []
    for name in names:
        text = environ.get(name, "").strip().strip("\"'").strip()
        if text:
            return name, text
    return names[0], ""


def _refuse_unknown(environ: Mapping[str, str]) -> None:
    # Names with a further prefix belong to the installer and the tests, not to the daemon.
    known = {f"LOCALRUN_{row.name}" for row in SETTINGS}
    for name in environ:
        if (
            name.startswith("LOCALRUN_")
            and not name.startswith(("LOCALRUN_TEST_", "LOCALRUN_INSTALL_"))
            and name not in known
        ):
            raise BadSetting(
                name, f"there is no such setting; known are {', '.join(sorted(known))}"
            )


assert {name for row in SETTINGS for name in row.fields} == set(Settings.__struct_fields__)
