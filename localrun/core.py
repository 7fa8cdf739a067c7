"""The nouns of a request for text: what is asked for, and what comes back.

Values only: frozen, without I/O and without defaults that depend on the machine. They are msgspec
structs so that the same object is validated at the HTTP edge and travels to the runner as it is.
Counts are tokens unless a name says otherwise; durations are nanoseconds on the wire (`_ns`), as in
Ollama's API, and seconds (`_s`) everywhere else. What is loaded to answer it: `localrun.spec`.
"""

from typing import Any, Literal

from msgspec import Struct

# How a stream ends. `load` and `unload` answer a request that had no prompt (Ollama's API).
DoneReason = Literal["stop", "length", "load", "unload"]

# How Ollama's API, and whoever cannot know better, calls the field with a schema.
SCHEMA_PATH = "format"

# What a model that can think is asked to do: None leaves it to the model's own habit.
Think = bool | Literal["low", "medium", "high", "max"] | None


class Tool(Struct, frozen=True):
    """A function that the model may call; `parameters` is a JSON Schema, its keys as sent.

    A call that has to come is held to them as far as can be, or, with a `strict_path`, in whole:
    then that is where they stand in the request, for refusals.
    """

    name: str
    description: str = ""
    parameters: dict[str, Any] = {}
    strict_path: str = ""


class ToolChoice(Struct, frozen=True):
    """Whether a tool has to be called: any, or the one with `name`; several unless not parallel."""

    is_required: bool = False
    name: str = ""
    is_parallel: bool = True


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


class ChatPrompt(Struct, frozen=True, tag="chat"):
    """Turns for the model's template. `context` holds token ids that stand before them.

    The answer may call `tools`, as `choice` says. To be told to think is an error for a model that
    cannot, unless that `may_not_think`.
    """

    messages: tuple[Message, ...]
    context: tuple[int, ...] = ()
    tools: tuple[Tool, ...] = ()
    choice: ToolChoice = ToolChoice()
    think: Think = None
    may_not_think: bool = False


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


class EmbedTexts(Struct, frozen=True, tag="embed"):
    """The vectors of `texts`, of length 1, cut to `n_dims` numbers unless that is 0 or more.

    With a `query`, how well each of the texts answers it: one number each. `n_ctx` tokens of a
    text count; one with more is cut, or refused unless it `cuts`. `first` is the place of the
    first text in the request, of which this may be a part.
    """

    texts: tuple[str, ...]
    n_ctx: int = 0
    first: int = 0
    query: str | None = None
    cuts: bool = True
    n_dims: int = 0


class CountPrompt(Struct, frozen=True, tag="count_prompt"):
    """How many tokens a chat comes to, rendered by `template` as in `Call`, in any window."""

    prompt: ChatPrompt
    template: str | None = None


Question = Tokenize | Detokenize | EmbedTexts | CountPrompt


class Tokens(Struct, frozen=True, tag="tokens"):
    """What came of a `Tokenize`; a piece may be a part of a character."""

    ids: tuple[int, ...]
    pieces: tuple[bytes, ...] | None = None


class Text(Struct, frozen=True, tag="plain_text"):
    """What came of a `Detokenize`."""

    text: str


class Vectors(Struct, frozen=True, tag="vectors"):
    """What came of an `EmbedTexts`: `n_dims` float32 for each text, little-endian, one by one.

    `n_tokens` were evaluated, `n_dropped` left out because a window does not hold them. Loading
    the model took `load_ns` of `total_ns`, which only the daemon knows.
    """

    data: bytes = b""
    n_dims: int = 0
    n_tokens: int = 0
    n_dropped: int = 0
    load_ns: int = 0
    total_ns: int = 0


class Count(Struct, frozen=True, tag="count"):
    """What came of a `CountPrompt`."""

    n_tokens: int


Reply = Tokens | Text | Vectors | Count


class Call(Struct, frozen=True):
    """One request for text, whatever dialect it came in.

    Each of `prompts` gets `n_each` choices: answers that are sampled apart from each other. No
    prompt asks only to load the model, or to unload it when `keep_alive_s` is 0.
    `options` are checked but not yet merged with the model's own. `keep_alive_s` None leaves the
    loaded model's value. `system` replaces the model's system text, `template` its Go template.
    `cuts` and `shifts` are those of `Overflow`; `cuts` None follows the setting.
    `client` is whom requests are shared out fairly among, an API key or an address; prefixes are
    shared within a `scope` only. `top_logprobs` as in `SamplingParams`. The answer's text matches
    `schema`, the text of a JSON Schema with its keys as sent; None leaves it free. `places` says
    how the client's dialect calls the fields `format` and `think` of Ollama's, for refusals.
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
    schema: str | None = None
    places: dict[str, str] = {}

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


class ThinkingDelta(Struct, frozen=True, tag="thinking", omit_defaults=True):
    """A piece of what the model thinks before it answers; `index`, `logprobs`: see `TextDelta`."""

    text: str
    index: int = 0
    logprobs: tuple[TokenLogprob, ...] = ()


class ToolCallDelta(Struct, frozen=True, tag="call", omit_defaults=True):
    """A whole tool call, number `number` of its choice; `index` as in `TextDelta`."""

    call: ToolCall
    number: int = 0
    index: int = 0


class Done(Struct, frozen=True, tag="done"):
    """The last event of a choice; `index` as in `TextDelta`.

    `context` is prompt and completion as token ids, if asked. `stop_text` is the stop string
    that ended the answer, empty where none did.
    """

    reason: DoneReason
    usage: Usage
    context: tuple[int, ...] = ()
    index: int = 0
    stop_text: str = ""


Delta = TextDelta | ThinkingDelta | ToolCallDelta
Event = Delta | Done


class Choice(Struct, frozen=True):
    """One whole choice of an answer: all its text, and what else it has.

    `pieces` are what it was made of, in order: calls may stand between two texts.
    """

    text: str
    done: Done
    logprobs: tuple[TokenLogprob, ...] = ()
    thinking: str = ""
    tool_calls: tuple[ToolCall, ...] = ()
    pieces: tuple[Delta, ...] = ()
