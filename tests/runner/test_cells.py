"""The ids of the split layout: running sequences stand side by side."""

import pytest

from localrun.runner.engine.cells import densest_id


@pytest.mark.parametrize(
    ("running", "ages", "expected"),
    [
        pytest.param([], {0: 0, 1: 0, 2: 0}, 0, id="the lowest of empty ones"),
        pytest.param([], {0: 5, 1: 3, 2: 4}, 1, id="the donor that is longest out of use"),
        pytest.param([], {0: 5, 1: 3, 2: 0}, 2, id="an empty one before any donor"),
        pytest.param([0, 1], {2: 0, 3: 0}, 2, id="behind those that run"),
        pytest.param([2, 3], {0: 0, 1: 0}, 1, id="in front of them"),
        pytest.param([0, 3], {1: 7, 2: 5, 4: 0}, 2, id="a gap first, even if a donor must go"),
        pytest.param([0, 3], {1: 0, 2: 5, 4: 0}, 1, id="in a gap an empty one"),
        pytest.param([2], {1: 4, 3: 3}, 3, id="of two neighbours the older donor"),
        pytest.param([2], {1: 4, 3: 4}, 1, id="of equals the lower"),
        pytest.param([0], {1: 9, 5: 0}, 1, id="a neighbour before one far away"),
    ],
)
def test_the_id_that_leaves_no_gap(running: list[int], ages: dict[int, int], expected: int) -> None:
    assert densest_id(running, ages) == expected
    assert densest_id(reversed(running), dict(reversed(ages.items()))) == expected
