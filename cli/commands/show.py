"""`localrun show`: what a model is made of."""

from collections.abc import Iterable
from dataclasses import dataclass
from functools import partial
from typing import Annotated, Any, Literal

import typer

from cli.context import Context
from cli.errors import Usage, explaining_missing
from cli.job import Job
from cli.render import table
from cli.replies import Shown, Tensor
from cli.sources import check_is_model
from modelstore.labels import size_label

Part = Literal["license", "modelfile", "parameters", "system", "template"]

_SHOWN_LINES = 2
_SHOWN_ITEMS = 8


@dataclass(frozen=True, slots=True)
class ShowOptions:
    """`part` None is the overview, which `verbose` makes longer."""

    model: str
    part: Part | None = None
    verbose: bool = False


def show(
    model: Annotated[str, typer.Argument(help="Name of the model.")],
    modelfile: Annotated[bool, typer.Option("--modelfile", help="Only the Modelfile.")] = False,
    parameters: Annotated[bool, typer.Option("--parameters", help="Only the options.")] = False,
    template: Annotated[bool, typer.Option("--template", help="Only the template.")] = False,
    system: Annotated[bool, typer.Option("--system", help="Only the system message.")] = False,
    license_: Annotated[bool, typer.Option("--license", help="Only the licence.")] = False,
    verbose: Annotated[
        bool, typer.Option("--verbose", "-v", help="Also all metadata and tensors.")
    ] = False,
) -> Job:
    """Show what a model is: its architecture, options, system message and licence."""
    flags: dict[Part, bool] = {
        "license": license_,
        "modelfile": modelfile,
        "parameters": parameters,
        "system": system,
        "template": template,
    }
    chosen = [part for part, is_chosen in flags.items() if is_chosen]
    if len(chosen) > 1:
        raise Usage(f"give only one of {', '.join('--' + part for part in chosen)}")
    check_is_model(model)
    return partial(run_show, ShowOptions(model, chosen[0] if chosen else None, verbose))


def run_show(options: ShowOptions, context: Context) -> int:
    """Prints the overview or one part. Raises: ApiError (404: no such model) and `connect`'s."""
    body = {"model": options.model, "verbose": options.verbose}
    with explaining_missing(options.model):
        shown = context.connect().post("/api/show", body, Shown)
    if shown.problem:
        context.note(f"Warning: {shown.problem}")
    if options.part:
        context.emit(single(shown, options.part))
    else:
        context.emit(overview(shown, verbose=options.verbose))
    return 0


def single(shown: Shown, part: Part) -> str:
    """One part as the daemon gave it, ending with a newline unless it is empty."""
    text: str = getattr(shown, part)
    return text if not text or text.endswith("\n") else text + "\n"


def overview(shown: Shown, *, verbose: bool) -> str:
    """The blocks of the default view.

    Source: Ollama's order of blocks and rows; there is no block for the template.
    """
    blocks: list[tuple[str, list[tuple[str, ...]]]] = [
        ("Model", _model_rows(shown)),
        ("Capabilities", [(name,) for name in shown.capabilities]),
        ("Projector", _projector_rows(shown.projector_info)),
        ("Parameters", _parameter_rows(shown.parameters)),
    ]
    if verbose:
        info = sorted(shown.model_info.items())
        blocks.append(("Metadata", [(key, _short(value)) for key, value in info]))
        blocks.append(("Tensors", [_tensor_row(tensor) for tensor in shown.tensors]))
    blocks.append(("System", _first_lines(shown.system)))
    blocks.append(("License", _first_lines(shown.license)))
    return "".join(f"  {title}\n{table(rows, indent='    ')}\n" for title, rows in blocks if rows)


def _model_rows(shown: Shown) -> list[tuple[str, ...]]:
    info = shown.model_info
    architecture = str(info.get("general.architecture", ""))
    n_parameters = info.get("general.parameter_count")
    rows = (
        ("architecture", architecture),
        (
            "parameters",
            shown.details.parameter_size
            or (size_label(n_parameters) if isinstance(n_parameters, int) else ""),
        ),
        ("context length", info.get(f"{architecture}.context_length", "")),
        ("embedding length", info.get(f"{architecture}.embedding_length", "")),
        ("quantization", shown.details.quantization_level),
        ("template", shown.template_origin),
        ("requires", shown.requires),
    )
    return [(label, str(value)) for label, value in rows if value]


def _projector_rows(info: dict[str, Any]) -> list[tuple[str, ...]]:
    architecture = str(info.get("general.architecture", ""))
    n_parameters = info.get("general.parameter_count")

    def first(key: str) -> Any:
        keys = (f"{architecture}.{kind}.{key}" for kind in ("vision", "audio"))
        return next((info[key] for key in keys if key in info), "")

    rows = (
        ("architecture", architecture),
        ("parameters", size_label(n_parameters) if isinstance(n_parameters, int) else ""),
        ("embedding length", first("embedding_length")),
        ("dimensions", first("projection_dim")),
    )
    return [(label, str(value)) for label, value in rows if value]


def _parameter_rows(text: str) -> list[tuple[str, ...]]:
    # A value is shown as it came: spaces in a stop string count. Only \n separates lines, since
    # texts may hold the other characters that Python takes for ends of lines.
    return [tuple(line.split(None, 1)) for line in text.split("\n") if line.strip()]


def _tensor_row(tensor: Tensor) -> tuple[str, ...]:
    return tensor.name, tensor.type, f"[{' '.join(map(str, tensor.shape))}]"


def _short(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, float):
        return f"{value:g}"
    if isinstance(value, list):
        more = f" … {len(value) - _SHOWN_ITEMS} more" if len(value) > _SHOWN_ITEMS else ""
        return f"[{' '.join(_short(item) for item in value[:_SHOWN_ITEMS])}{more}]"
    return "-" if value is None else str(value).replace("\n", " ")


def _first_lines(text: str) -> list[tuple[str, ...]]:
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return [(line,) for line in _cut(lines)]


def _cut(lines: list[str]) -> Iterable[str]:
    return [*lines[:_SHOWN_LINES], "..."] if len(lines) > _SHOWN_LINES else lines
