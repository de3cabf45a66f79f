"""The findings of doctor about an Ascend environment. It detects torch_npu by its folder and
imports nothing.
"""

from __future__ import annotations

import pytest

from stepprof.doctor.npu import npu_findings


@pytest.fixture
def installed(tmp_path, monkeypatch):
    """Install a package torch_npu whose import would fail."""
    (tmp_path / "torch_npu").mkdir()
    (tmp_path / "torch_npu" / "__init__.py").write_text("raise SystemExit")
    monkeypatch.syspath_prepend(tmp_path)


def found(environ):
    return {finding.name: (finding.level, finding.detail) for finding in npu_findings(environ)}


def test_all_is_well(installed):
    assert {name: level for name, (level, _) in found({}).items()} == {
        "npu environment": "ok",
        "npu leases": "ok",
    }


@pytest.mark.parametrize("variable", ["PROFILER_SAMPLECONFIG", "PROFILING_MODE"])
def test_msprof(installed, variable):
    level, detail = found({variable: "dynamic"})["npu environment"]
    assert level == "problem"
    assert f"{variable}=dynamic: msprof records" in detail


def test_a_profiler_of_its_own(installed):
    level, detail = found({"MSMONITOR_USE_DAEMON": "1"})["npu environment"]
    assert level == "warning"
    assert "its own profiler" in detail
    assert found({"MSMONITOR_USE_DAEMON": "0"})["npu environment"][0] == "ok"


def test_without_torch_npu(monkeypatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    assert npu_findings({"PROFILING_MODE": "dynamic"}) == []
