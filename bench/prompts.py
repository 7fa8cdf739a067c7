"""Prompts of about 60 words: different from the first words on, and with long answers."""

import random

_WHO = "sailor clockmaker botanist courier astronomer baker librarian shepherd glassblower pilot"
_WHERE = "Lisbon Reykjavik Nairobi Kyoto Quito Tallinn Palermo Bergen Jaipur Hobart Dakar Cusco"
_WHAT = "lantern compass map violin telescope seed letter bell key mirror manuscript coin"
_WHEN = "winter spring harvest monsoon midsummer autumn"


def prompts(n: int, seed: str) -> list[str]:
    """`n` different prompts of about 60 words; the same for the same `seed`."""
    chosen = random.Random(seed)
    return [_prompt(chosen) for _ in range(n)]


def _prompt(chosen: random.Random) -> str:
    who, other = chosen.sample(_WHO.split(), 2)
    start, goal = chosen.sample(_WHERE.split(), 2)
    thing, gift = chosen.sample(_WHAT.split(), 2)
    when, year = chosen.choice(_WHEN.split()), chosen.randrange(1500, 2000)
    return (
        f"{year}, {start}: a {who} finds a broken {thing} in the {when} and has to carry it to a "
        f"{other} in {goal}, who offers a {gift} for it. Write a very long and detailed story of "
        "this journey, with the weather, the roads, the people on the way, what they say to each "
        f"other, and how the {who} changes. Begin with the first morning and leave nothing out."
    )
