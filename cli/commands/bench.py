"""`localrun bench`: how many users a machine carries, and how long they wait.

Parsing makes a plan; what runs it, with asyncio and rich, is imported only then.
"""

import signal
from collections.abc import Generator, Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Annotated, Any, Literal, get_args

import typer

from cli.bench.lengths import Length, parse_lengths
from cli.bench.plan import Level, Plan, Scenario, doubling
from cli.bench.slo import Slo, parse_slo
from cli.context import Context
from cli.errors import INTERRUPTED, CliError, Usage, explaining_missing
from cli.job import Job
from cli.sources import check_is_model
from localrun import __version__
from localrun.spec import Admission
from localrun.units import FOREVER, parse_duration_s

if TYPE_CHECKING:
    from cli.bench.output import Output
    from cli.bench.sweep import Target

Api = Literal["chat", "completions"]

_API_PATHS: dict[Api, str] = {"chat": "/chat/completions", "completions": "/completions"}
# Streams that run when the long prompt arrives, unless the command line says otherwise.
_STREAMS_BESIDE_LONG = 4
# Twice the slots that a model has by default: enough to see it queue.
_MOST_USERS = 16
_CHAT_LENGTHS = "chat"
_POLICIES: tuple[str, ...] = get_args(Admission)


@dataclass(frozen=True, slots=True)
class BenchOptions:
    """`model` of the daemon, empty when only `urls` are measured; `url_model` is for those.

    `lengths_file`, if any, has the plan's lengths. `json_path` `-` is standard output.
    """

    model: str
    plan: Plan
    urls: tuple[str, ...] = ()
    url_model: str | None = None
    api: Api = "chat"
    policies: tuple[str, ...] = ()
    extra: dict[str, Any] = field(default_factory=dict)
    lengths_file: Path | None = None
    json_path: str | None = None
    plot_path: Path | None = None


def bench(  # noqa: PLR0913  the options of the program
    model: Annotated[
        str, typer.Argument(help="Name of the model; may be left out with --url.")
    ] = "",
    url: Annotated[
        list[str] | None,
        typer.Option(
            help="Another OpenAI-compatible server, http://host:port; several, or MODEL as well, "
            "are measured in turns."
        ),
    ] = None,
    url_model: Annotated[
        str | None,
        typer.Option("--model", help="The model at --url. [the first one that it lists]"),
    ] = None,
    api: Annotated[Api, typer.Option(help="Chats, or prompts without turns.")] = "chat",
    policy: Annotated[
        list[str] | None,
        typer.Option(
            metavar="|".join(_POLICIES),
            help="Load MODEL with this way to admit requests; several are measured one after the "
            "other.",
        ),
    ] = None,
    scenario: Annotated[
        Scenario,
        typer.Option(
            help="Requests that differ; all at once with one system prompt; or a long prompt that "
            "arrives beside running streams."
        ),
    ] = "chat",
    max_concurrency: Annotated[
        int | None,
        typer.Option(min=1, help="Sweep 1, 2, 4, … up to so many users at once. [16]"),
    ] = None,
    concurrency: Annotated[
        str | None, typer.Option(help="These numbers of users instead: 1,4,16.")
    ] = None,
    rate: Annotated[
        str | None,
        typer.Option(help="Random (Poisson) arrivals instead, so many a second: 0.5,1,2."),
    ] = None,
    requests: Annotated[
        int | None, typer.Option(min=1, help="Requests of a level. [8, or 2 a user if more]")
    ] = None,
    duration: Annotated[
        str, typer.Option(help="No request of a level begins later than this.")
    ] = "60s",
    max_requests: Annotated[
        int, typer.Option(min=1, help="No more requests than this in the whole run.")
    ] = 2000,
    prompt_tokens: Annotated[int, typer.Option(min=1, help="Tokens of a prompt, about.")] = 200,
    output_tokens: Annotated[int, typer.Option(min=1, help="Most tokens of an answer.")] = 100,
    lengths: Annotated[
        str | None, typer.Option(help="`chat`: lengths as in chats, many short and few long.")
    ] = None,
    lengths_file: Annotated[
        Path | None, typer.Option(help="A file with lengths in tokens, `PROMPT OUTPUT` a line.")
    ] = None,
    shared_tokens: Annotated[
        int, typer.Option(min=1, help="Tokens of the system prompt of shared-prefix, about.")
    ] = 800,
    long_tokens: Annotated[
        int, typer.Option(min=1, help="Tokens of the long prompt of long-prompt, about.")
    ] = 2600,
    ignore_end: Annotated[
        bool,
        typer.Option(
            "--ignore-end", help="Ask for answers of full length (`ignore_eos`, where it is known)."
        ),
    ] = False,
    slo: Annotated[
        str | None,
        typer.Option(
            help="Search the most users within limits: ttft_p99=2s,tpot_p99=50ms; also ttft_p50, "
            "tpot_p50, gap_max."
        ),
    ] = None,
    seed: Annotated[int, typer.Option(help="Decides words, lengths and arrivals.")] = 0,
    json_path: Annotated[
        str | None,
        typer.Option(
            "--json", metavar="FILE", help="Everything as JSON; `-` instead of the table."
        ),
    ] = None,
    plot_path: Annotated[
        Path | None,
        typer.Option("--plot", metavar="FILE.svg", help="A plot of the time to first token."),
    ] = None,
) -> Job:
    """Measure how many users this machine carries, and how long they wait."""
    if model:
        check_is_model(model)
    _check_targets(model, url or (), url_model, policy or ())
    objectives = _slo(slo)
    if objectives is not None and (concurrency or rate):
        raise Usage("--slo chooses the numbers of users itself; leave --concurrency and --rate out")
    if objectives is not None and scenario == "long-prompt":
        raise Usage("--slo is for the scenarios chat and shared-prefix")
    if rate and scenario != "chat":
        raise Usage("--rate is for the scenario chat")
    if lengths not in (None, _CHAT_LENGTHS):
        raise Usage(f"--lengths takes `chat`, not `{lengths}`; --lengths-file takes a file")
    if lengths is not None and lengths_file is not None:
        raise Usage("give --lengths or --lengths-file, not both")
    most_requests = min(requests or max_requests, max_requests)
    most_users = max_concurrency or min(_MOST_USERS, most_requests)
    _check_users("--max-concurrency", most_users, most_requests)
    plan = Plan(
        scenario=scenario,
        levels=_levels(concurrency, rate, most_users, scenario),
        lengths=() if lengths else (Length(prompt_tokens, output_tokens),),
        shared_tokens=shared_tokens,
        long_tokens=long_tokens,
        n_requests=requests,
        duration_s=_duration_s(duration),
        max_requests=max_requests,
        seed=seed,
        slo=objectives,
        most_users=most_users,
    )
    for level in plan.levels:
        _check_users("--concurrency", level.n_users, most_requests)
    options = BenchOptions(
        model=model,
        plan=plan,
        urls=tuple(url or ()),
        url_model=url_model,
        api=api,
        policies=tuple(dict.fromkeys(policy or ())),
        extra={"ignore_eos": True} if ignore_end else {},
        lengths_file=lengths_file,
        json_path=json_path,
        plot_path=plot_path,
    )
    return partial(run_bench, options)


def _check_targets(
    model: str, urls: Sequence[str], url_model: str | None, policies: Sequence[str]
) -> None:
    if not model and not urls:
        raise Usage("say what to measure: a MODEL of this machine, or --url http://host:port")
    for policy in policies:
        if policy not in _POLICIES:
            raise Usage(f"--policy: `{policy}` is none of {', '.join(_POLICIES)}")
    if policies and urls:
        raise Usage("--policy changes how the daemon loads MODEL; a server at --url has its own")
    if url_model is not None and not urls:
        raise Usage("--model names the model at --url; the daemon's is the argument MODEL")


def _slo(text: str | None) -> Slo | None:
    if text is None:
        return None
    try:
        return parse_slo(text)
    except ValueError as error:
        raise Usage(f"--slo: {error}") from error


def _levels(
    concurrency: str | None, rate: str | None, most: int, scenario: Scenario
) -> tuple[Level, ...]:
    if concurrency and rate:
        raise Usage("give --concurrency or --rate, not both")
    if concurrency:
        return tuple(Level(n_users=int(n)) for n in _numbers("--concurrency", concurrency, int))
    if rate:
        return tuple(Level(rate=n) for n in _numbers("--rate", rate, float))
    if scenario == "long-prompt":
        return (Level(n_users=min(most, _STREAMS_BESIDE_LONG)),)
    return doubling(most)


def _check_users(option: str, n_users: int, most_requests: int) -> None:
    if n_users > most_requests:
        raise Usage(
            f"{option}: {n_users} users at once need as many requests, and --requests or "
            f"--max-requests allows {most_requests}"
        )


def _numbers(option: str, text: str, kind: type[int] | type[float]) -> list[float]:
    found: list[float] = []
    for part in text.split(","):
        try:
            number = kind(part)
        except ValueError:
            number = 0
        if not 0 < number < FOREVER:
            what = "whole number" if kind is int else "number"
            raise Usage(f"{option}: `{part.strip()}` is not a {what} above zero")
        found.append(number)
    return found


def _duration_s(text: str) -> float:
    try:
        seconds = parse_duration_s(text)
    except ValueError as error:
        raise Usage(f"--duration: {error}") from error
    if not 0 < seconds < FOREVER:
        raise Usage("--duration has to be above zero: 30s, 5m")
    return seconds


def run_bench(options: BenchOptions, context: Context) -> int:
    """Measures, and prints each level when it is over. Ctrl-C and SIGTERM end it (exit code 130).

    Raises: ApiError (404: no such model), Usage, Failed (after the results so far), `connect`'s.
    """
    import asyncio

    from cli.bench.output import Output
    from cli.bench.progress import shown
    from cli.bench.sweep import Bench

    for path in (options.json_path, options.plot_path):
        if path not in (None, "-") and not Path(path).parent.is_dir():
            raise Usage(f"the folder of `{path}` does not exist")
    bench = Bench(_with_lengths(options))
    say = context.note if options.json_path == "-" else context.say
    output = Output(bench, __version__, say, names=options.policies)
    try:
        with (
            _ended_by_sigterm(),
            shown(context.stderr) as bar,
            closing(_groups(options, context)) as groups,
        ):

            def show_level(_: object) -> None:
                with bar.hidden():
                    output.show_levels()

            for group in groups:
                output.targets += group
                asyncio.run(bench.run(group, bar.notify, show_level))
    except KeyboardInterrupt:
        output.is_interrupted = True
    finally:
        if bench.measured:
            _finish(options, context, output)
    return INTERRUPTED if output.is_interrupted else 0


@contextmanager
def _ended_by_sigterm() -> Iterator[None]:
    """SIGTERM does what Ctrl-C does; also where Ctrl-C is ignored, as in a script's background."""

    def end(number: int, frame: FrameType | None) -> None:
        handler = signal.getsignal(signal.SIGINT)
        if not callable(handler):
            raise KeyboardInterrupt
        handler(number, frame)

    before = signal.signal(signal.SIGTERM, end)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def _with_lengths(options: BenchOptions) -> Plan:
    if options.lengths_file is None:
        return options.plan
    try:
        lengths = parse_lengths(options.lengths_file.read_text())
    except OSError as error:
        raise Usage(f"--lengths-file `{options.lengths_file}`: {error.strerror}") from error
    except ValueError as error:  # bytes that are not UTF-8 as well
        raise Usage(f"--lengths-file `{options.lengths_file}`: {error}") from error
    return replace(options.plan, lengths=tuple(lengths))


def _groups(options: BenchOptions, context: Context) -> Generator[list["Target"]]:
    """The targets that are measured in turns; policies come one after the other, each alone."""
    from cli.bench.target import Daemon, named, server

    api = _API_PATHS[options.api]
    servers = [server(url, options.url_model, api, options.extra) for url in options.urls]
    if not options.model:
        yield named(servers)
        return
    daemon = Daemon(context.connect(), options.model, api, options.extra)
    if not options.policies:
        with explaining_missing(options.model):
            ours = daemon.load(None)
        yield named([ours, *servers])
        return
    try:
        for policy in options.policies:
            with explaining_missing(options.model):
                ours = daemon.load(policy)
            yield [replace(ours, name=policy)]
    finally:
        # Whoever comes next should get the daemon's own policy; it has ended if this fails.
        with suppress(CliError):
            daemon.unload()


def _finish(options: BenchOptions, context: Context, output: "Output") -> None:
    from cli.bench.output import write

    try:
        output.finish()
        if output.bench.is_exhausted:
            context.note(f"stopped after {options.plan.max_requests} requests (--max-requests)")
        if options.json_path == "-":
            context.emit(output.json().decode())
    finally:  # the files are of use also to whoever did not read on
        if options.json_path not in (None, "-"):
            write(Path(options.json_path), output.json())
        if options.plot_path is not None:
            write(options.plot_path, output.plot())
