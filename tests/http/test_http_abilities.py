"""What models can do is remembered over restarts, and never for other rules or after damage."""

from pathlib import Path

import pytest

from localrun.http import abilities
from localrun.http.abilities import Abilities


def test_what_was_saved_is_known_after_a_restart(tmp_path: Path) -> None:
    path = tmp_path / "cache" / "abilities.json"
    known = Abilities(path)
    assert known.get("a") is None
    known.put("a", ["completion", "tools"])
    known.save()
    written = path.stat().st_mtime_ns
    known.save()
    assert path.stat().st_mtime_ns == written, "nothing new, nothing to write"
    assert Abilities(path).get("a") == ["completion", "tools"]


def test_other_rules_forget_everything(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    known = Abilities(tmp_path / "abilities.json")
    known.put("a", ["completion"])
    known.save()
    monkeypatch.setattr(abilities, "_rules", lambda: "others")
    assert Abilities(tmp_path / "abilities.json").get("a") is None


@pytest.mark.parametrize("damage", [b"", b"{", b"\xff\xfe", b'{"rules": 3, "known": {}}', b"[]"])
def test_a_damaged_file_counts_as_empty_and_is_replaced(tmp_path: Path, damage: bytes) -> None:
    path = tmp_path / "abilities.json"
    path.write_bytes(damage)
    known = Abilities(path)
    assert known.get("a") is None
    known.put("a", ["completion"])
    known.save()
    assert Abilities(path).get("a") == ["completion"]


def test_a_file_that_cannot_be_written_costs_nothing_else(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    known = Abilities(tmp_path / "file" / "abilities.json")
    known.put("a", ["completion"])
    known.save()
    assert known.get("a") == ["completion"]


def test_the_oldest_entries_go_when_there_are_too_many(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(abilities, "_N_KEPT", 2)
    known = Abilities(tmp_path / "abilities.json")
    for digest in "abc":
        known.put(digest, ["completion"])
    assert [known.get(digest) is None for digest in "abc"] == [True, False, False]
