"""What a model may be quantized to, what from, and how much room that takes. Pure.

Does not quantize: that is a job of the engine's. The names are llama.cpp's.
Source: Ollama `server/quantization.go` (error texts, `Q4_K` for `Q4_K_M`); it offers fewer types.
"""

from modelstore.errors import InvalidCreate, shown
from modelstore.header import Header

# Bits of one weight, block scales and the wider types of some tensors included: real files of 7B
# models come out at or below these. A little high on purpose, since a disk must not run full.
_BITS = {
    "F32": 32.0,
    "F16": 16.0,
    "BF16": 16.0,
    "Q8_0": 8.5,
    "Q6_K": 6.6,
    "Q5_K_M": 5.8,
    "Q5_K_S": 5.6,
    "Q5_1": 6.1,
    "Q5_0": 5.6,
    "Q4_K_M": 5.0,
    "Q4_K_S": 4.7,
    "Q4_1": 5.1,
    "Q4_0": 4.7,
}
TYPES = tuple(_BITS)
_ALIASES = {"Q4_K": "Q4_K_M", "Q5_K": "Q5_K_M"}
_SOURCE_TYPES = ("F32", "F16", "BF16")

# Where rows are no multiple of 256, llama.cpp takes a wider type than the one that was asked for;
# in small models embeddings, which it keeps wider too, are most of the weights.
_WIDEST_BITS = 8.5
# The keys that a quantizer adds, and padding between tensors.
_ROOM_BYTES = 64 << 10
_EMBEDDINGS = ("token_embd.weight", "output.weight")


def parse_type(text: str) -> str:
    """The name of a type in any case. Raises: InvalidCreate."""
    name = text.upper()
    name = _ALIASES.get(name, name)
    if name not in TYPES:
        raise InvalidCreate(
            f"unsupported quantization type {shown(text)} - supported types are {', '.join(TYPES)}"
        )
    return name


def source_type(header: Header) -> str:
    """What the weights are in. Raises: InvalidCreate for those that are quantized already."""
    types = {tensor.type_name for tensor in header.tensors}
    if not types <= set(_SOURCE_TYPES):
        raise InvalidCreate("quantization is only supported for F16, BF16 and F32 models")
    # Vectors are F32 in every file, so the others tell.
    return next((name for name in ("BF16", "F16") if name in types), "F32")


def expected_bytes(header: Header, target: str) -> int:
    """About the size of the quantized file, rather more than less."""
    bits = _BITS[target]
    wide = max(bits, _WIDEST_BITS)
    n_bits = 0.0
    for tensor in header.tensors:
        is_vector = len(tensor.shape) < 2
        is_wide = tensor.name in _EMBEDDINGS or (tensor.shape and tensor.shape[0] % 256)
        n_bits += tensor.n_elements * (32.0 if is_vector else wide if is_wide else bits)
    return header.data_offset + int(n_bits / 8) + _ROOM_BYTES
