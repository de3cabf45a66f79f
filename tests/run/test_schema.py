"""The entries of a manifest: they are written with every key, and read with any content."""

from __future__ import annotations

import pytest

from stepprof.host.process_identity import writer_identity
from stepprof.run.fragments import read_after
from stepprof.run.schema import AFTER, CompletionEntry, EngineEntry, PrunedEntry, UploadEntry, WindowEntry

KINDS = (WindowEntry, EngineEntry, UploadEntry, CompletionEntry, PrunedEntry)


@pytest.mark.parametrize("kind", KINDS)
class TestEntry:
    def test_entries_round_trip(self, kind) -> None:
        """An entry that is written and read is unchanged and has no problem."""
        entry = kind(**({"rank": 3, "region": "update"} if kind is WindowEntry else {}))
        read, problems = kind.from_dict(entry.to_dict())
        assert (vars(read), problems) == (vars(entry), [])

    def test_keys_of_a_newer_version(self, kind) -> None:
        """Unknown keys are kept."""
        read, _ = kind.from_dict({"of_a_newer_version": [1]})
        assert read.to_dict()["of_a_newer_version"] == [1]

    def test_values_of_a_wrong_type(self, kind) -> None:
        """A value of a wrong type is a problem that names the key, and is replaced by the default."""
        blank = kind().to_dict()
        for key in blank.keys() - {"artifacts", "pending"}:
            read, problems = kind.from_dict({**blank, "rank": 0, "status": "lost", key: {"x": object}})
            if key == "capture":
                continue  # a mapping is valid for this key
            assert [key in problem for problem in problems] == [True], key
            assert read.to_dict()[key] == blank[key]

    def test_an_update(self, kind) -> None:
        """An update with an unknown field raises a TypeError, and no field changes."""
        entry = kind()
        with pytest.raises(TypeError, match="has no sttus"):
            entry.update(other={"x": 1}, sttus="failed")
        assert vars(entry) == vars(kind())


class TestLists:
    def test_each_list_of_a_recording_has_its_entries(self) -> None:
        """The lists are `uploads`, `completions` and `pruned`. Two entries do not share a list."""
        assert set(AFTER) == {"uploads", "completions", "pruned"}
        assert PrunedEntry().paths is not PrunedEntry().paths
        assert WindowEntry().artifacts is not WindowEntry().artifacts

    def test_optional_keys(self) -> None:
        """The entry of a window has the key `region` only if a region was captured."""
        assert "region" not in WindowEntry().to_dict()
        assert WindowEntry(region="update").to_dict()["region"] == "update"

    def test_damaged_entries_are_corrected_and_reported(self) -> None:
        """Values of a wrong type are replaced and reported. A lost command of a
        living process is read as running.
        """
        entry = {"path": 3, "url": [], "bytes": "x", "status": "uploaded", "more": 1}
        known, problems = read_after("uploads", entry, None)
        assert (known["path"], known["url"], known["bytes"], known["more"], len(problems)) == (
            "",
            None,
            None,
            1,
            3,
        )
        known, problems = read_after("pruned", {"paths": [1], "kept": "x"}, None)
        assert (known["paths"], known["kept"], len(problems)) == ([], [], 2)
        known, _ = read_after("completions", {"status": "lost", "error": "x"}, writer_identity())
        assert (known["status"], known["error"]) == ("running", None)
