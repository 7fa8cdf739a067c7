"""LoRA adapters: whether a file is one that fits a model. Pure: works on headers.

Source: llama.cpp `src/llama-adapter.cpp` (keys, names of tensors, which shapes must agree).
"""

from modelstore.errors import InvalidCreate, shown
from modelstore.header import Header

_SUFFIXES = (".lora_a", ".lora_b")
# llama.cpp passes these over; every other tensor makes it refuse the file.
_IGNORED = "_norm.weight"


def check_adapter(adapter: Header, model: Header) -> None:
    """Raises: InvalidCreate for a file that is no adapter, or one that was made for another model.

    What it leaves to the engine are the shapes, since some tensors are stored transposed.
    """
    if adapter.role != "adapter":
        raise InvalidCreate("the file given as adapter is not a GGUF adapter")
    kind = adapter.text("adapter.type")
    if kind != "lora":
        said = f"of type `{shown(kind)}`" if kind else "of no type"
        raise InvalidCreate(f"the adapter is {said}; only LoRA adapters are supported")
    if adapter.architecture != model.architecture:
        raise InvalidCreate(
            f"the adapter is for the architecture `{shown(adapter.architecture)}`, the model has "
            f"`{shown(model.architecture)}`"
        )
    known = {tensor.name for tensor in model.tensors}
    for tensor in adapter.tensors:
        base, dot, part = tensor.name.rpartition(".")
        if tensor.name.endswith(_IGNORED):
            continue
        if dot + part not in _SUFFIXES:
            raise InvalidCreate(f"the tensor `{shown(tensor.name)}` is not one of a LoRA adapter")
        if base not in known:
            raise InvalidCreate(
                f"the adapter changes the tensor `{shown(base)}`, which the model does not have: "
                "it was made for another one"
            )
