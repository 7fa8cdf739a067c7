"""How hard a transfer tries: sizes, tries and pauses. Pure."""

from dataclasses import dataclass

from modelstore.errors import BadReply, HostUnreachable, ServerRefused, StoreError

# Timeouts and overload pass; other refusals are meant.
_PASSING_STATUSES = frozenset([408, 425, 429])


@dataclass(frozen=True, slots=True)
class Effort:
    """`n_tries` counts failures in a row of one part; the pauses between them double.

    Source: Ollama's downloads (six tries, powers of two seconds).
    """

    n_tries: int = 6
    first_pause_s: float = 1.0
    # Hosts limit the pace of one connection; more than some are seen as an attack.
    n_streams: int = 8
    # Small enough that the hash follows closely while what it reads is still cached.
    part_bytes: int = 16 << 20
    # What a crash may cost; an fsync takes a moment in which nothing is written.
    checkpoint_s: float = 2.0
    # A part that has brought so much since the last failure starts counting anew.
    forgiving_bytes: int = 1 << 20
    # When the hash was wrong, the file is fetched again in so many pieces, until it is right.
    n_repair_pieces: int = 32
    least_repair_bytes: int = 64 << 10

    def tries_after(self, error: StoreError) -> int:
        """How many failures in a row, this one among them, end a transfer."""
        # A page in place of the file, or one of another size, seldom becomes the right one.
        return min(self.n_tries, 2) if isinstance(error, BadReply) else self.n_tries

    def pause_s(self, n_failures: int) -> float:
        """The pause after the `n_failures`th failure in a row, which is at least the first."""
        return self.first_pause_s * float(2 ** (n_failures - 1))


def may_pass(error: StoreError) -> bool:
    """Tells whether trying again can help."""
    if isinstance(error, ServerRefused):
        return error.status >= 500 or error.status in _PASSING_STATUSES
    return isinstance(error, HostUnreachable | BadReply)
