"""The committed page says what this run has found; it runs last in its folder."""

import pytest
from compatibility import PAGE, Compatibility

# With fewer, some tests were left out or skipped.
_N_CLIENTS = 12


def test_the_page_is_what_the_clients_show(compatibility: Compatibility) -> None:
    if len({client for _, client in compatibility.cells}) < _N_CLIENTS or not compatibility.notes:
        pytest.skip("not all clients were run")
    hint = "LOCALRUN_TEST_WRITE=1 python -m pytest tests/clients  writes it anew"
    compatibility.check_or_write(PAGE, hint)
