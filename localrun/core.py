"""The nouns that every room shares: what is asked for, what is loaded, what comes back.

Values only: frozen, without I/O and without defaults that depend on the machine. They are msgspec
structs so that the same object is validated at the HTTP edge and travels to the runner as it is.
Counts are tokens unless a name says otherwise; durations are nanoseconds on the wire (`_ns`), as in
Ollama's API, and seconds (`_s`) everywhere else.
"""

from typing import Any, Literal

from msgspec import Struct

from localrun.memory import CPU, Need

# Who holds which cells: one pool for all sequences, or a whole window for each slot.
KvLayout = Literal["unified", "split"]

# How waiting sequences enter: at every step; a full batch that runs to its end; or a batch that
# also starts when its oldest member has waited long enough.
Admission = Literal["continuous", "static", "dynamic"]

# How a stream ends. `load` and `unload` answer a request that had no prompt (Ollama's API).
DoneReason = Literal["stop", "length", "load", "unload"]


class ToolCall(Struct, frozen=True):
    """A function that the model wants called; `arguments` is a JSON object."""

    name: str
    arguments: dict[str, Any]
    id: str = ""


class Message(Struct, frozen=True):
    """One turn of a conversation. `role` is lower case; `content` is text, never null."""

    role: str
    content: str = ""
    thinking: str = ""
    tool_calls: tuple[ToolCall, ...] = ()
    tool_name: str = ""
    tool_call_id: str = ""


class SamplingParams(Struct, frozen=True):
    """How one sequence is sampled and when it ends.

    `temperature` 0 is greedy. `top_k` 0 or -1, `top_p` 1, `min_p` 0 and `typical_p` 1 switch a
    filter off. `repeat_last_n` tokens are looked back at: 0 none, -1 the whole window. `seed` -1
    draws one. `num_predict` bounds the completion: -1 and -2 mean until the window is full.
    `num_keep` tokens at the front stay when something has to leave the window, all when negative.
    `deterministic` gives up shared prefixes and shared forwards, so that nothing else on the
    machine changes a bit of the logits. `logit_bias` is added to the logits of single tokens, by
    id, before all filters: -100 bans a token, 100 leaves no other. `top_logprobs` asks for the
    log-probability of each token and of so many likeliest ones, None for neither; it changes
    nothing that is sampled. Defaults are Ollama's.
    """

    temperature: float = 0.8
    top_k: int = 40
    top_p: float = 0.9
    min_p: float = 0.0
    typical_p: float = 1.0
    repeat_last_n: int = 64
    repeat_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    seed: int = -1
    num_predict: int = -1
    num_keep: int = 4
    stop: tuple[str, ...] = ()
    deterministic: bool = False
    logit_bias: dict[int, float] = {}
    top_logprobs: int | None = None

    @property
    def is_greedy(self) -> bool:
        """True when every step takes the likeliest token and nothing moves the logits."""
        return self.temperature <= 0 and not self.has_penalties and not self.logit_bias

    @property
    def starts_fresh(self) -> bool:
        """True when the prompt must be evaluated from its first token.

        A prefix from elsewhere was evaluated in pieces of other sizes, which moves the last bits
        of the logits: with a seed, the same request would not always give the same text.
        """
        return self.deterministic or self.seed >= 0

    def n_lookback(self, n_ctx: int) -> int:
        """Tokens that penalties look back at in a window of `n_ctx`."""
        return self.repeat_last_n if self.repeat_last_n >= 0 else n_ctx

    @property
    def has_penalties(self) -> bool:
        """True when earlier tokens of the sequence change the logits."""
        return self.repeat_last_n != 0 and (
            self.repeat_penalty != 1.0
            or self.presence_penalty != 0.0
            or self.frequency_penalty != 0.0
        )


class LoadOptions(Struct, frozen=True):
    """What a request or a Modelfile may fix about a loaded model. None leaves the choice to us.

    `num_ctx` tokens per sequence, `num_batch` rows per forward, `num_gpu` layers on GPUs,
    `main_gpu` the number of the only GPU to use, `tensor_split` the share of each GPU.
    """

    num_ctx: int | None = None
    num_batch: int | None = None
    num_gpu: int | None = None
    main_gpu: int | None = None
    tensor_split: tuple[float, ...] | None = None
    use_mmap: bool | None = None
    num_thread: int | None = None
    admission: Admission | None = None


# Rows of one forward: llama.cpp's own default for a ubatch. More only grows the compute buffer.
DEFAULT_N_BATCH = 512

# The architecture in a GGUF file that makes it a script for `localrun.runner.fake`.
FAKE_ARCHITECTURE = "localrun-fake"


class Verdict(Struct, frozen=True):
    """What a self-test found fastest for one model on one machine.

    `merges_rows`: decodes and prompt rows share a forward instead of having one each.
    """

    layout: KvLayout
    flash_attention: bool
    merges_rows: bool = False


def model_key(weights_digest: str, adapter_paths: tuple[str, ...]) -> str:
    """Identity of what is in memory: the weights and what is applied on top of them."""
    return "+".join((weights_digest, *adapter_paths))


class LoadSpec(Struct, frozen=True):
    """Everything that decides what a runner holds: weights, adapters and load options.

    A split model has its further parts in `more_weights_paths`, in order; `weights_digest` names
    all of them together.

    Names that share these share a runner; template, system text and sampling travel with the
    call instead. `engine` is `fake` for the scripted model of the tests. `asked` are the options
    that a request or a Modelfile fixed; the other fields hold what came of them.

    `n_gpu_layers` -1 is as many as fit. `gpu_overhead_bytes` are kept free on each GPU, by its
    name, or by the empty name on all others; `spreads` uses all GPUs even for what fits one;
    `rpc_servers` (host:port) lend theirs.

    `kv_pool` tokens of all sequences together, None measures; `kv_layout` None and
    `flash_attention` None follow `verdict`, the result of an earlier self-test, if there is one.
    `host_tier_bytes` of RAM hold the KV of sequences that had to leave the pool, None a share of
    what is free. `tpot_target_ms` bounds a step that has prompts beside running streams, None
    follows the model's own pace.
    """

    weights_path: str
    weights_digest: str
    n_ctx: int
    n_parallel: int
    n_threads: int
    engine: Literal["llama", "fake"] = "llama"
    more_weights_paths: tuple[str, ...] = ()
    adapter_paths: tuple[str, ...] = ()
    n_batch: int = DEFAULT_N_BATCH
    n_gpu_layers: int = -1
    main_gpu: int | None = None
    tensor_split: tuple[float, ...] | None = None
    gpu_overhead_bytes: dict[str, int] = {}
    spreads: bool = False
    rpc_servers: tuple[str, ...] = ()
    use_mmap: bool | None = None
    kv_cache_type: str = "f16"
    flash_attention: bool | None = None
    kv_pool: int | None = None
    kv_layout: KvLayout | None = None
    host_tier_bytes: int | None = None
    tpot_target_ms: float | None = None
    admission: Admission = "continuous"
    verdict: Verdict | None = None
    asked: LoadOptions = LoadOptions()

    @property
    def weights_paths(self) -> tuple[str, ...]:
        """All files of the weights, in order."""
        return (self.weights_path, *self.more_weights_paths)

    @property
    def key(self) -> str:
        """See `model_key`."""
        return model_key(self.weights_digest, self.adapter_paths)

    def covers(self, wanted: "LoadSpec") -> bool:
        """True when a runner loaded with this spec can serve `wanted` without loading again.

        Only options that `wanted` really asks for count. The window is none of them: a smaller
        one is a cap on the sequence, for a larger one the runner makes a new context around the
        weights that it has.
        """
        asked = wanted.asked
        return (
            self.key == wanted.key
            and asked.num_batch in (None, self.n_batch)
            and asked.num_gpu in (None, self.n_gpu_layers)
            and asked.main_gpu in (None, self.main_gpu)
            and asked.tensor_split in (None, self.tensor_split)
            and asked.use_mmap in (None, self.use_mmap)
            and asked.admission in (None, self.admission)
            and (asked.num_thread in (None, 0) or wanted.n_threads == self.n_threads)
        )


class ChatPrompt(Struct, frozen=True, tag="chat"):
    """Turns for the model's template. `context` holds token ids that stand before them."""

    messages: tuple[Message, ...]
    context: tuple[int, ...] = ()


class RawPrompt(Struct, frozen=True, tag="raw"):
    """Text that reaches the tokenizer as it is, without a template."""

    text: str


class FillPrompt(Struct, frozen=True, tag="fill"):
    """The model writes what stands between `prefix` and `suffix`. No template but an own one."""

    prefix: str
    suffix: str


Prompt = ChatPrompt | RawPrompt | FillPrompt


class Overflow(Struct, frozen=True):
    """What becomes of tokens that the window does not hold.

    `cuts`: the oldest turns, or the middle of a text, are left out of a prompt that is too long;
    else it is refused. `shifts`: so is the middle of the window when an answer reaches its end;
    else the answer ends there.
    """

    cuts: bool = True
    shifts: bool = False


class Tokenize(Struct, frozen=True, tag="tokenize"):
    """The ids of `text`, control tokens recognised; with a BOS in front if the model wants one and
    it `adds_special`."""

    text: str
    adds_special: bool = False
    with_pieces: bool = False


class Detokenize(Struct, frozen=True, tag="detokenize"):
    """The text of tokens, control tokens spelled out."""

    tokens: tuple[int, ...]


Question = Tokenize | Detokenize


class Tokens(Struct, frozen=True, tag="tokens"):
    """What came of a `Tokenize`; a piece may be a part of a character."""

    ids: tuple[int, ...]
    pieces: tuple[bytes, ...] | None = None


class Text(Struct, frozen=True, tag="plain_text"):
    """What came of a `Detokenize`."""

    text: str


class Call(Struct, frozen=True):
    """One request for text, whatever dialect it came in.

    Each of `prompts` gets `n_each` choices: answers that are sampled apart from each other. No
    prompt asks only to load the model, or to unload it when `keep_alive_s` is 0.
    `options` are checked but not yet merged with the model's own. `keep_alive_s` None leaves the
    loaded model's value. `system` replaces the model's system text, `template` its Go template.
    `cuts` and `shifts` are those of `Overflow`; `cuts` None follows the setting.
    `client` is whom requests are shared out fairly among, an API key or an address; prefixes are
    shared within a `scope` only. `top_logprobs` as in `SamplingParams`.
    """

    model: str
    prompts: tuple[Prompt, ...] = ()
    options: dict[str, Any] = {}
    keep_alive_s: float | None = None
    system: str | None = None
    template: str | None = None
    capability: Literal["generate", "chat"] = "chat"
    return_context: bool = False
    cuts: bool | None = None
    shifts: bool = False
    client: str = ""
    scope: str = ""
    n_each: int = 1
    top_logprobs: int | None = None

    @property
    def n_choices(self) -> int:
        """How many `Done`s answer this call; a load and an unload have one too."""
        return max(1, len(self.prompts)) * self.n_each


class Usage(Struct, frozen=True):
    """Tokens and time of one request; `prompt_count` includes the `cached_count` tokens.

    `dropped_count` tokens of the prompt were left out because the window does not hold them.
    """

    prompt_count: int = 0
    cached_count: int = 0
    completion_count: int = 0
    load_ns: int = 0
    prompt_ns: int = 0
    completion_ns: int = 0
    total_ns: int = 0
    dropped_count: int = 0


class Likelihood(Struct, frozen=True, array_like=True, gc=False):
    """A token's bytes, and the natural logarithm of its probability."""

    data: bytes
    logprob: float


class TokenLogprob(Struct, frozen=True, array_like=True):
    """A token of the answer; `data` may be part of a character, and `top` are the likeliest.

    The probabilities are the model's own, before temperature, penalties and biases. Of a token
    that a stop string cuts, `data` is what is before the cut.
    """

    data: bytes
    logprob: float
    top: tuple[Likelihood, ...] = ()


class TextDelta(Struct, frozen=True, tag="text", omit_defaults=True):
    """A piece of the answer: whole characters, never part of a stop string.

    `index` is the choice that it belongs to, choice j of prompt i being number `i * n_each + j`.
    The daemon counts so; for a runner every choice is a request of its own, with index 0.
    `logprobs`, if asked for, are the tokens that have become part of the text with this piece;
    the bytes of them all are those of the whole text. Rarely they come without text, at its end.
    """

    text: str
    index: int = 0
    logprobs: tuple[TokenLogprob, ...] = ()


class Done(Struct, frozen=True, tag="done"):
    """The last event of a choice; `index` as in `TextDelta`.

    `context` is prompt and completion as token ids, if asked.
    """

    reason: DoneReason
    usage: Usage
    context: tuple[int, ...] = ()
    index: int = 0


Event = TextDelta | Done


class Choice(Struct, frozen=True):
    """One whole choice of an answer."""

    text: str
    done: Done
    logprobs: tuple[TokenLogprob, ...] = ()


class RunnerInfo(Struct, frozen=True):
    """What a loaded runner really holds.

    `n_ctx` tokens per sequence, `n_slots` sequences at once, `n_cells` tokens of all sequences
    together; `needs` is what lies on each device, as allocated.
    """

    n_ctx: int
    n_slots: int
    n_cells: int = 0
    layout: KvLayout = "split"
    flash_attention: bool = False
    needs: dict[str, Need] = {}

    @property
    def device_bytes(self) -> dict[str, int]:
        """Bytes by device name."""
        return {name: need.total_bytes for name, need in self.needs.items()}

    @property
    def size_bytes(self) -> int:
        """Bytes on all devices."""
        return sum(self.device_bytes.values())

    @property
    def size_vram_bytes(self) -> int:
        """Bytes on all devices but the CPU."""
        return sum(n for name, n in self.device_bytes.items() if name != CPU)


class Histogram(Struct, frozen=True):
    """Observations so far: `counts` one for each bucket of the metric and one above the last."""

    counts: tuple[int, ...]
    sum: float


class RunnerStats(Struct, frozen=True):
    """Counters and gauges of one runner since its load, by the names in `localrun.metrics`."""

    values: dict[str, float] = {}
    histograms: dict[str, Histogram] = {}


class Resident(Struct, frozen=True):
    """A model in memory, as `ps` shows it: a copy, never live state.

    `expires_at_s` is unix time, infinite for a model that stays. `n_queued` requests have no slot.
    `info` of a model that is being loaded is what it is planned to hold, None before there is a
    plan.
    """

    key: str
    model: str
    state: Literal["loading", "ready", "stopping"]
    expires_at_s: float
    n_busy: int = 0
    n_queued: int = 0
    info: RunnerInfo | None = None
    stats: RunnerStats | None = None
