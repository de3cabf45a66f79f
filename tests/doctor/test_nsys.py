"""The findings of `stepprof doctor` about Nsight Systems."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from nsys.tools import build

from stepprof.backends.nsys import nsys_command
from stepprof.backends.nsys.launch import profile_help
from stepprof.doctor.nsys import nsys_findings


@pytest.fixture(scope="module")
def tools(tmp_path_factory):
    return build(tmp_path_factory.mktemp("tools"))


@pytest.fixture(autouse=True)
def asked_anew():
    """Clear the cached help of nsys, which a process requests once."""
    profile_help.cache_clear()
    yield
    profile_help.cache_clear()


def found(**environ):
    return {finding.name: finding for finding in nsys_findings(environ)}


class TestReports:
    def test_a_new_nsys_leaves_the_environment_out(self, tools):
        """A new nsys omits the environment from its reports, whatever it contains."""
        finding = found(PATH=tools.path(), HF_TOKEN="x")["nsys reports"]
        assert finding.level == "ok"
        assert "at the end of its window; the environment is left out" in finding.detail

    def test_an_old_nsys_gives_a_warning_about_secrets(self, tools, monkeypatch):
        """An old nsys writes the environment into its reports. The warning has the names of
        secrets, but not their values.
        """
        monkeypatch.setenv("NSYS_STAND_IN_IS_OLD", "1")
        finding = found(PATH=tools.path(), HF_TOKEN="hf_x")["nsys reports"]
        assert finding.level == "warning"
        assert finding.detail.endswith("the reports would contain environment variables: HF_TOKEN")
        assert "hf_x" not in finding.detail + finding.remedy
        assert found(PATH=tools.path())["nsys reports"].level == "ok"


class TestWindow:
    def test_not_running_under_nsys_is_no_problem(self):
        """A process that does not run under nsys is no problem."""
        finding = found(PATH="")["nsys window"]
        assert finding.level == "ok"
        assert "not running under nsys" in finding.detail
        assert "nvtx " in finding.detail
        assert "libcudart" in finding.detail

    def test_a_job_of_the_command_shows_its_windows_and_folder(self, tools, tmp_path):
        """The finding has the number of windows and the folder of the reports."""
        config = {"steps": "2, 4", "backend": "nsys", "output_dir": str(tmp_path)}
        command = nsys_command(config, nsys=tools.nsys)
        environ = dict([next(a for a in command if a.startswith("--env-var")).split("=", 1)[1].split("=", 1)])
        finding = found(PATH="", **environ)["nsys window"]
        assert finding.level == "ok"
        assert f"under nsys, 2 windows, reports in {Path(tmp_path, 'nsys')}" in finding.detail

    def test_nsys_started_by_another_command(self):
        """If another command started nsys, the remedy is to set `report_dir`."""
        finding = found(PATH="", NSYS_PROFILING_SESSION_ID="1")["nsys window"]
        assert finding.level == "warning"
        assert "report_dir" in finding.remedy

    def test_without_nvtx_regions_are_missing(self, monkeypatch, tmp_path):
        """Without nvtx, the recorded windows would have no regions."""
        from importlib import metadata

        def version(name):
            raise metadata.PackageNotFoundError(name)

        monkeypatch.setattr(metadata, "version", version)
        environ = {"STEPPROF_NSYS": f"output={tmp_path}/r_{{pid}};ranges=any"}
        finding = found(PATH=os.devnull, **environ)["nsys window"]
        assert (finding.level, finding.remedy) == (
            "warning",
            'install the extra "nsys" of stepprof (docs/adopting.md#install)',
        )
