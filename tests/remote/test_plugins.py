"""The plug-in of docs/engines.md, exactly as on that page, is installed, attached, recorded and read."""

from __future__ import annotations

import json
import re
import sys
import time
from pathlib import Path

import pytest
from simulated import read_entries

import stepprof
from stepprof.analysis.verify import verify_run
from stepprof.cli.commands.show import render_step
from stepprof.errors import ConfigError

PAGE = Path(__file__).parents[2] / "docs" / "engines.md"

LIBRARY = '''
import json, time
class Engine:
    """An engine of a library that stepprof knows nothing of."""
    can_trace, path, level, broken = True, None, None, False
    def trace_start(self, path, level):
        self.path, self.level = path, level
    def trace_stop(self):
        path, self.path = self.path, None
        if path and not self.broken:
            time.sleep(0.05)
            with open(path, "w") as file:
                json.dump({"baseTimeNanoseconds": 1_700_000_000_000_000_000, "traceEvents": [{"name": "decode", "ph": "X", "ts": 1, "dur": 2, "pid": 1, "tid": 1}] * 5}, file)
'''


def block(language: str, first: str) -> str:
    """Return the example on the page that begins with `first`."""
    (found,) = [
        text
        for text in re.findall(rf"```{language}\n(.*?)```", PAGE.read_text(), re.DOTALL)
        if text.startswith(first)
    ]
    return found


@pytest.fixture
def engine(tmp_path, monkeypatch):
    """Return an engine of that library, with the plug-in installed."""
    (tmp_path / "toyengine.py").write_text(LIBRARY)
    (tmp_path / "stepprof_toy.py").write_text(block("python", '"""stepprof_toy.py'))
    (group, name, target) = re.search(
        r'entry-points\."(.+)"\]\n(\w+) = "(.+)"', block("toml", "# pyproject.toml")
    ).groups()
    info = tmp_path / "stepprof_toy-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: stepprof-toy\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(f"[{group}]\n{name} = {target}\n")
    monkeypatch.syspath_prepend(tmp_path)
    import toyengine

    yield toyengine.Engine()
    for module in ("toyengine", "stepprof_toy"):
        sys.modules.pop(module, None)


@pytest.fixture
def recorded(start):
    """Return a function that records one window of a role with an engine, and returns the session and the
    entry.
    """

    def recorded(engine, **options):
        session = start(steps="2", backend="null", roles={"rollout": {"ranks": "all"}})
        stepprof.attach(engine, role="rollout", **options)
        with stepprof.profile_step(2, role="rollout"):
            pass
        deadline = time.monotonic() + 5
        while True:
            session.background.round()
            entries = read_entries(session)
            if entries and entries[0].status != "lost":
                return session, entries[0]
            assert time.monotonic() < deadline
            time.sleep(0.02)

    return recorded


class TestPlugin:
    def test_a_plugin_engine_records(self, engine, recorded):
        """The file of the library becomes an artifact that contains its metadata, and the run passes
        `check`.
        """
        session, entry = recorded(engine, name="first", level=3)
        assert (entry.status, entry.error, entry.kind, entry.name) == ("complete", None, "toy", "first")
        assert [artifact["events"] for artifact in entry.artifacts] == [5]
        assert engine.level == 3
        stepprof.shutdown()
        result = verify_run(session.path)
        assert (result.problems, result.notes, result.engines, result.artifacts) == ([], [], 1, 1)
        assert "rollout/replica-0/rank-0.trace.json.gz" in render_step(session.path, 2)

    def test_an_engine_that_cannot(self, engine, recorded):
        """If the engine cannot trace, arming it fails, and the entry has the plug-in's own message."""
        engine.can_trace = False
        _, entry = recorded(engine)
        assert (entry.status, entry.health) == ("failed", "unconfigured")
        assert "build it with Engine(trace=True)" in entry.error

    def test_a_stop_without_files_is_a_failure(self, engine, recorded):
        """If the stop returns but the expected file does not exist, the entry is failed."""
        engine.broken = True
        _, entry = recorded(engine)
        assert entry.status == "failed"
        assert "raw.json does not exist" in entry.error
        assert json.dumps(vars(entry))

    def test_an_unknown_option(self, engine, recorded):
        """The error for an unknown option names the nearest valid one."""
        with pytest.raises(ConfigError, match="did you mean level"):
            recorded(engine, levl=3)
