"""Numbers as models are labelled with them. Pure; shared by the store and the command line."""


def size_label(n_parameters: int) -> str:
    """A parameter count: `134.52M`, `7B`, `1.5B`. Source: Ollama `format.HumanNumber`."""
    if n_parameters >= 1_000_000_000:
        billions = n_parameters / 1e9
        return f"{billions:.0f}B" if billions.is_integer() else f"{billions:.1f}B"
    if n_parameters >= 1_000_000:
        millions = n_parameters / 1e6
        return f"{millions:.0f}M" if millions.is_integer() else f"{millions:.2f}M"
    return f"{n_parameters / 1e3:.0f}K" if n_parameters >= 1_000 else str(n_parameters)
