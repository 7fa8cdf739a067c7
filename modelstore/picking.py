"""Which files of a disk make a model: from one file, from one part of a split model, or a folder.

Looks at names and kinds only; what is in the files is others' business. Used on both sides: by the
daemon for a folder that it is told, and by the command line for files that it uploads.
Source: Ollama `cmd/cmd.go` (which files of a folder count, in which order; `insecure path`).
"""

from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

from modelstore.errors import IncompleteSplit, InvalidCreate, SourceNotAllowed, shown
from modelstore.splits import part_names

# The first pattern that finds something decides, so that a folder with two formats gives one model.
_WEIGHTS = ("model*.safetensors", "consolidated*.safetensors", "*.gguf", "*.safetensors")
# What comes along with safetensors: configuration, tokenizer, how outputs are pooled.
_COMPANIONS = ("*.json", "*/*.json", "chat_template.jinja", "tokenizer.model", "merges.txt")
_OTHERS = ("pytorch_model*.bin", "consolidated*.pth", "*.bin")

# A model has some hundred parts at most; a home folder given by mistake has more files than that.
_MAX_FILES = 2000


def pick(path: Path) -> dict[str, Path]:
    """The files that belong to the model at `path`, by their names relative to it, in order.

    Raises: SourceNotAllowed, InvalidCreate (a folder without a model), IncompleteSplit.
    """
    if path.is_dir():
        return _from_folder(path)
    if path.suffix == ".safetensors":
        raise InvalidCreate(
            f"`{shown(path.name)}` is one file of a model; give the folder that also has its "
            "config.json and tokenizer.json"
        )
    names = part_names(path.name)
    _check_complete(names, lambda name: path.with_name(name).exists())
    return {name: path.with_name(name) for name in names}


def _check_complete(names: tuple[str, ...], exists: Callable[[str], bool]) -> None:
    missing = [name for name in names if len(names) > 1 and not exists(name)]
    if missing:
        raise IncompleteSplit(shown(missing[0]), len(missing), len(names))


def _from_folder(folder: Path) -> dict[str, Path]:
    weights = next(filter(None, (sorted(folder.glob(pattern)) for pattern in _WEIGHTS)), None)
    if weights is None:
        if any(True for pattern in _OTHERS for _ in folder.glob(pattern)):
            raise InvalidCreate(
                f"the folder `{folder.name}` has PyTorch files only; safetensors and GGUF are "
                "supported"
            )
        raise InvalidCreate(f"the folder `{folder.name}` has neither GGUF nor safetensors files")
    found = {_relative(path, folder): path for path in weights}
    for name in list(found):
        _check_complete(part_names(name), found.__contains__)
    if weights[0].suffix == ".safetensors":
        companions = (path for pattern in _COMPANIONS for path in sorted(folder.glob(pattern)))
        found |= {_relative(path, folder): path for path in _files(companions)}
    if len(found) > _MAX_FILES:
        raise InvalidCreate(f"the folder `{folder.name}` has more than {_MAX_FILES} files")
    inside = folder.resolve()
    for name, path in found.items():
        if not path.resolve().is_relative_to(inside):
            raise SourceNotAllowed(f"insecure path: `{shown(name)}` leads out of its folder")
    return found


def _files(paths: Iterable[Path]) -> Iterator[Path]:
    return (path for path in paths if path.is_file())


def _relative(path: Path, folder: Path) -> str:
    return path.relative_to(folder).as_posix()
