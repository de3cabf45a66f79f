"""The contract of a backend: its defaults, and how a class that breaks the contract is refused."""

from __future__ import annotations

import re
from contextlib import contextmanager
from pathlib import Path

import pytest
import structlog

import stepprof
from stepprof.backends import make_backend
from stepprof.backends.base import Backend
from stepprof.config.config import Config
from stepprof.errors import BackendError, ConfigError
from stepprof.run.model import Capture, Window

PLUGIN = """
from stepprof.backends.base import Backend

class Whole(Backend):
    name = "whole"

    def __init__(self, options):
        pass

    def probe(self):
        return None

    def arm(self):
        pass

    def start(self, capture):
        pass

    def stop(self, capture, annotations):
        return tuple

    def abort(self):
        pass

class Partly(Whole):
    stop = Backend.stop
    abort = Backend.abort

class Duck:
    name = "duck"

def makes_a_duck(options):
    return Duck()

def makes_a_whole(options):
    return Whole(options)
"""
NAMES = {
    "whole": "Whole",
    "partly": "Partly",
    "duck": "Duck",
    "maker": "makes_a_whole",
    "badmaker": "makes_a_duck",
    "absent": "no_such_name",
}


@pytest.fixture(autouse=True)
def plugins(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Install a package with a backend that fulfils the contract, and with backends that do not."""
    folder = tmp_path / "plugin"
    info = folder / "contract_plugin-1.0.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: contract-plugin\nVersion: 1.0\n")
    points = "".join(f"{name} = contract_plugin:{value}\n" for name, value in NAMES.items())
    (info / "entry_points.txt").write_text(f"[stepprof.backends]\n{points}")
    (folder / "contract_plugin.py").write_text(PLUGIN)
    monkeypatch.syspath_prepend(folder)


@pytest.fixture
def begin(tmp_path: Path):
    """Return a function that starts a session with one of the plug-ins."""

    def begin(name: str, **config: object) -> stepprof.Session:
        return stepprof.init({"backend": name, "steps": "1", "output_dir": str(tmp_path / "runs"), **config})

    yield begin
    stepprof.shutdown()


def made(name: str) -> Backend:
    return make_backend(Config(backend=name).policy(None))


class TestContract:
    @pytest.mark.parametrize(
        ("name", "problem"),
        [
            ("duck", "contract_plugin.Duck must derive from stepprof.backends.base.Backend"),
            ("partly", "contract_plugin.Partly must define abort, stop"),
        ],
    )
    def test_a_class_that_breaks_it_is_refused_by_init(self, begin, tmp_path: Path, name, problem) -> None:
        """`init` refuses the class; the error names the class and what is missing, and no file is written."""
        with pytest.raises(ConfigError, match=re.escape(f'backend = "{name}": {problem}')):
            begin(name)
        assert not (tmp_path / "runs").exists()

    def test_a_broken_plugin_is_refused_in_the_table_of_a_role(self, begin) -> None:
        """`init` also refuses a broken plug-in that only one role uses."""
        with pytest.raises(ConfigError, match="must derive from"):
            begin("null", roles={"actor": {"backend": "duck"}})

    def test_a_function_that_returns_something_else(self, begin) -> None:
        """The function is called when the backend is made, after the checks of `init`. If its result is no
        Backend, the reason is logged.
        """
        with structlog.testing.capture_logs() as lines:
            begin("badmaker")
        (line,) = [line for line in lines if line.get("backend") == "badmaker"]
        assert "must return a stepprof.backends.base.Backend" in line["reason"]

    def test_a_plugin_that_cannot_be_imported_is_unavailable(self, begin) -> None:
        """If a plug-in cannot be imported, `init` does not raise, and the state has the error."""
        begin("absent")
        assert "no_such_name" in str(stepprof.state().last_error)

    @pytest.mark.parametrize("name", ["whole", "maker"])
    def test_a_class_or_a_function_may_be_named(self, begin, name) -> None:
        """An entry point may name a class or a function; both make a backend that records."""
        assert made(name).name == "whole"
        session = begin(name)
        with stepprof.profile_step(1):
            pass
        stepprof.shutdown()
        assert [w["status"] for path in session.path.glob("*/manifest/*.json") for w in _windows(path)] == [
            "complete"
        ]

    def test_an_incomplete_class_cannot_be_instantiated(self) -> None:
        """An incomplete class cannot be made, because a request may name a backend that `init` has not
        checked.
        """
        with pytest.raises(BackendError, match="must define abort, stop"):
            made("partly")


class TestDefaults:
    def test_attributes(self) -> None:
        """By default any thread may stop the backend, it waits for no other process, and it marks regions."""
        backend = made("whole")
        assert (backend.thread_bound, backend.waits, backend.marks) == (False, False, True)

    def test_no_ranges_and_no_size(self) -> None:
        """By default the backend has no ranges, knows no size, and exports in place."""
        backend = made("whole")
        assert backend.mark("r") is backend.mark_lane("r") is backend.mark_window(Window(1, None)) is None
        assert backend.bytes_so_far() is None
        assert backend.export_mode() == "inline"

    def test_open_ranges_are_exited_in_order(self) -> None:
        """By default every open range may be exited, and all are exited in the given order."""
        exited: list[str] = []

        @contextmanager
        def opened(name: str):
            yield
            exited.append(name)

        backend, marks = made("whole"), [opened("inner"), opened("outer")]
        for mark in marks:
            mark.__enter__()
        assert all(map(backend.may_leave, marks))
        backend.leave(marks)
        assert exited == ["inner", "outer"]

    def test_the_null_backend_has_no_artifacts(self, tmp_path: Path) -> None:
        """The null backend can always record, and its export is empty."""
        backend = made("null")
        place = Capture(Window(1, None), tmp_path, "rank-0", {})
        assert backend.probe() is None
        backend.arm()
        backend.start(place)
        assert backend.stop(place, [])() == ()
        backend.abort()


def _windows(path: Path) -> list[dict]:
    import json

    return json.loads(path.read_text())["windows"]
