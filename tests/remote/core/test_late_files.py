"""Files of a capture whose stop failed."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from driven import make_window

from stepprof.remote.base import EngineWindow, Stopped
from stepprof.remote.core.late_files import keep, left_there
from stepprof.run.layout import RunDir
from stepprof.run.manifest_writer import Fragment, Origin
from stepprof.run.model import Artifact, Window
from stepprof.run.schema import EngineEntry


@pytest.fixture
def window(tmp_path: Path) -> EngineWindow:
    """Return a window of a run below the folder of the test."""
    return make_window(tmp_path / "runs" / "run")


@pytest.fixture
def fragment(window: EngineWindow) -> Fragment:
    """Return a fragment of this process with the window's engine, written ahead as lost."""
    run = RunDir(window.folder.parent, "run")
    made = Fragment(Origin(run, 0, 1), Window(2, "rollout"), lambda act: act(), engines=True)
    made.engines.append(EngineEntry(role="rollout", replica=0, pending=True, error="lost"))
    made.write_ahead()
    return made


def entries(window: EngineWindow) -> list[dict[str, Any]]:
    """Return the entries of a window's engines in the manifest."""
    (path,) = (window.folder / "manifest").iterdir()
    reported: list[dict[str, Any]] = json.loads(path.read_text())["engines"]
    return reported


class TestKeeping:
    def test_an_entry_of_this_process(self, window: EngineWindow, fragment: Fragment) -> None:
        """The entry in memory changes together with the file, so the next write does not undo the change."""
        keep(window, Stopped((Artifact("a", "trace", 1),), partial="half"), "why")
        assert fragment.engines[0].status == "partial"
        fragment.write()
        (entry,) = entries(window)
        assert (entry["status"], entry["error"], len(entry["artifacts"])) == ("partial", "why; half", 1)
        assert entry["end_unix_ns"] is not None

    def test_better_information_is_kept(self, window: EngineWindow, fragment: Fragment) -> None:
        """A failed entry keeps its reason if no file was found. Later files are added to those that are
        already listed.
        """
        fragment.engines[0].update(status="failed", error="the stop failed")
        keep(window, Stopped(), "why")
        assert fragment.engines[0].error == "the stop failed"
        for name in "ab":
            keep(window, Stopped((Artifact(name, "trace", 1),)), "why")
        assert [each["path"] for each in fragment.engines[0].artifacts] == ["a", "b"]

    def test_files_that_a_failed_stop_left(self, window: EngineWindow) -> None:
        """All files that are not hidden are listed."""
        for name in ("rank-0.trace.json.gz", "x-TP-0.trace.json.gz", ".rank-1.trace.json.gz"):
            (window.output / name).write_bytes(b"trace")
        assert len(left_there(window)) == 2
