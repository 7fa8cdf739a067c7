"""An empty store, and a daemon with an account of what lies in its folder."""

from pathlib import Path

import pytest

from modelstore.store import Store


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(tmp_path / "store")


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """The folder of the models of `start_daemon`."""
    return tmp_path / "models"
