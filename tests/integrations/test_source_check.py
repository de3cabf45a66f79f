"""`stepprof doctor` shows whether each adapter would attach here, without importing the framework."""

from __future__ import annotations

import dataclasses
import json
import sys

import pytest

from stepprof.cli.commands import doctor
from stepprof.cli.main import main
from stepprof.doctor.finding import Finding
from stepprof.integrations.adapter import Adapter
from stepprof.integrations.source_check import check

SOURCE = """
from dataclasses import dataclass
from .inner import Timer as Clock

class Trainer:
    @property
    def step(self): ...
    def fit(self, data, *, epochs=1): ...

@dataclass
class Options:
    profiler: str = ""

raise RuntimeError("it must not be imported")
"""


@pytest.fixture
def adapter(tmp_path, monkeypatch):
    """Return an adapter of a package that is on the path and raises if it is imported."""
    package = tmp_path / "unimportable"
    package.mkdir()
    (package / "__init__.py").write_text(SOURCE)
    (package / "inner.py").write_text("class Timer:\n    def start(self, name): ...\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    needs = {
        "unimportable:Trainer.fit": ("data", "epochs"),
        "unimportable:Trainer.step": (),
        "unimportable:Options.__init__": ("profiler",),
        "unimportable:Clock.start": ("name",),
        "unimportable.inner:Timer": (),
    }
    return Adapter("fake", "unimportable.inner", lambda _: None, needs, ("structlog",), ">=1")


class TestCheck:
    def test_everything_is_there(self, adapter) -> None:
        """Methods, properties, fields of a dataclass, and names imported from another module are found
        without importing the package.
        """
        line = check(adapter)
        assert (line.status, line.reason) == ("attaches", None)
        assert "unimportable" not in sys.modules

    @pytest.mark.parametrize(
        ("need", "parameters", "named"),
        [
            ("unimportable:Trainer.run", (), "unimportable:Trainer.run"),
            ("unimportable:Trainer.fit", ("batches",), "unimportable:Trainer.fit(batches)"),
            ("unimportable:Options.__init__", ("profile",), "unimportable:Options.__init__(profile)"),
            ("unimportable.gone:Timer", (), "unimportable.gone:Timer"),
        ],
    )
    def test_a_name_is_missing(self, adapter, need, parameters, named) -> None:
        """The reason names the missing module, function or parameter."""
        line = check(dataclasses.replace(adapter, needs={need: parameters}))
        assert (line.status, line.reason) == ("name_missing", f"not found: {named}")

    def test_another_version_is_tried_all_the_same(self, adapter) -> None:
        """An installed version outside the tested range has the status `untested`."""
        assert check(dataclasses.replace(adapter, tested="<1")).status == "untested"

    @pytest.mark.parametrize("change", [{"distributions": ("no-such",)}, {"trigger": "no_such.module"}])
    def test_a_missing_distribution_or_module_is_reported(self, adapter, change) -> None:
        """If the distribution or the module is missing, the status is `not_installed`."""
        assert check(dataclasses.replace(adapter, **change)).status == "not_installed"


class TestDoctor:
    def test_adapters_are_listed(self, adapter, tmp_path, monkeypatch, capsys) -> None:
        """`stepprof doctor` lists each adapter whose framework is installed."""
        monkeypatch.setattr(doctor, "torch_findings", lambda environ, timeout: [Finding("torch", "ok", "2")])
        monkeypatch.setattr(
            doctor, "adapters", lambda: [adapter, dataclasses.replace(adapter, trigger="gone.x")]
        )
        main(["doctor", "--output-dir", str(tmp_path), "--json"])
        (line,) = json.loads(capsys.readouterr().out)["adapters"]
        assert (line["name"], line["status"]) == ("fake", "attaches")
        main(["doctor", "--output-dir", str(tmp_path)])
        assert "attaches" in capsys.readouterr().out
