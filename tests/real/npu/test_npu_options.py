"""Test that the configured options reach torch_npu and CANN below it, and that torch_npu resets
none of them. The Python code of other versions runs with the C library of the installed version.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from conftest import info

BESIDE = ["2.1.0.post13", "2.5.1", "2.7.1", "2.10.0", "2.14.0"]
ONE = """
init({options})
use_device()
with profile_step(2, role="actor"):
    with region("update"):
        work()
"""
# stands for another version: its Python code, on the C library of the installed version
AS_VERSION = """
import importlib.util, torch_npu, torch_npu.npu
folder = {folder!r}
def load(name, path, package):
    found = importlib.util.spec_from_file_location(name, path, submodule_search_locations=[os.path.dirname(path)] if package else None)
    module = importlib.util.module_from_spec(found)
    sys.modules[name] = module
    found.loader.exec_module(module)
    return module
import torch_npu.utils, torch_npu._init.common.warning_utils as moved
torch_npu.utils._should_print_warning = moved._should_print_warning
def with_domain(function):  # which the C library of old ones did not have yet
    return lambda what, domain="default": function(what, domain)
ranges = torch_npu._C._mstx
ranges._range_start_on_host, ranges._range_end = with_domain(ranges._range_start_on_host), with_domain(ranges._range_end)
mstx = load("torch_npu.npu.mstx", folder + "/npu/mstx.py", False)
torch_npu.npu.mstx = mstx.mstx
for name in [name for name in sys.modules if name.startswith("torch_npu.profiler")]:
    del sys.modules[name]
torch_npu.profiler = load("torch_npu.profiler", folder + "/profiler/__init__.py", True)
torch_npu.__version__ = {version!r}
"""


def run(npu, options="", **env):
    ran = npu.run(ONE.format(options=options), env=env).check()
    assert npu.window()["status"] == "complete", npu.window()["error"]
    return ran


class TestInstalled:
    def test_defaults(self, npu):
        """By default host and device record at the cheapest level, with only stepprof's ranges and
        without a warning.
        """
        ran = run(npu)
        config = info(npu.folder_of())
        assert sorted(config["common_config"]["activities"]) == [
            "ProfilerActivity.CPU",
            "ProfilerActivity.NPU",
        ]
        assert not any(config["common_config"][name] for name in ("record_shapes", "profile_memory", "with_stack", "with_modules", "with_flops"))  # fmt: skip
        experimental = config["experimental_config"]
        assert experimental["_profiler_level"] == "Level0"
        assert experimental["_mstx"]
        assert experimental["_mstx_domain_include"] == ["stepprof"]
        assert experimental["_export_type"] == ["text"]
        assert "npu.option_ignored" not in ran.stderr

    def test_everything(self, npu):
        ran = run(
            npu,
            """level="level2", aic_metrics="memory_ub", l2_cache=True, with_stack=True, record_shapes=True, profile_memory=True, with_modules=True, with_flops=True,
            record_op_args=True, op_attr=True, gc_detect_threshold=1, host_sys=["cpu", "mem"], sys_io=True, sys_interconnection=True, mstx_domain_include=["mine"],
            export_type=["text", "db"], data_simplification=False""",
        )
        config = info(npu.folder_of())
        common, experimental = config["common_config"], config["experimental_config"]
        assert all(common[name] for name in ("record_shapes", "profile_memory", "with_stack", "with_modules", "with_flops"))  # fmt: skip
        assert experimental["_profiler_level"] == "Level2"
        assert experimental["_aic_metrics"] == "ACL_AICORE_MEMORY_UB"
        for name in ("_l2_cache", "record_op_args", "_op_attr", "_sys_io", "_sys_interconnection"):
            assert experimental[name] is True
        assert sorted(experimental["_host_sys"]) == ["cpu", "mem"]
        assert sorted(experimental["_mstx_domain_include"]) == ["mine", "stepprof"]
        assert sorted(experimental["_export_type"]) == ["db", "text"]
        assert experimental["_data_simplification"] is False
        assert experimental["_gc_detect_threshold"] == 1
        assert len(npu.calls("aclprofSetConfig")) >= 3
        assert "npu.option_ignored" not in ran.stderr

    def test_ranges_of_others(self, npu):
        run(npu, 'mstx_domain_exclude=["communication"]')
        assert info(npu.folder_of())["experimental_config"]["_mstx_domain_exclude"] == ["communication"]
        assert "(update" in npu_ranges(npu)

    def test_without_ranges(self, npu):
        run(npu, "mstx=False")
        assert npu.calls("mstx") == []

    def test_the_host_alone(self, npu):
        ran = run(npu, 'activities=["cpu"], gc_detect_threshold=0')
        assert ran.stdout == ""
        assert "npu.option_ignored" not in ran.stderr
        assert npu.names() == []
        assert npu.calls("mstx") == []

    def test_the_device_alone(self, npu):
        run(npu, 'activities=["npu"], level="none"')
        assert not (npu.folder_of() / "FRAMEWORK").exists()


def npu_ranges(npu):
    """Return the ranges that were opened."""
    return [f"({call.detail.split(' ', 2)[2]}" for call in npu.calls("mstx") if "Start" in call.name]


class TestOthers:
    """stepprof reads the signatures of a version. One warning names each option that the version
    lacks, and the window is recorded.
    """

    @pytest.fixture(params=BESIDE)
    def version(self, request):
        """Return one version and the code that loads its Python sources. The test session unpacked
        them from its wheel.
        """
        folder = Path(os.environ["TORCH_NPU_VERSIONS"], request.param, "torch_npu")
        assert folder.is_dir()
        return request.param, AS_VERSION.format(folder=str(folder), version=request.param)

    def test_defaults(self, npu, version):
        number, load = version
        ran = npu.run(load + ONE.format(options="")).check()
        assert npu.window()["status"] == "complete", (npu.window()["error"], ran.stderr)
        assert "does not support" not in ran.stderr
        experimental = info(npu.folder_of())["experimental_config"]
        assert experimental["_msprof_tx"] or experimental.get("_mstx"), number
        assert {"(step 2 actor", "(update"} <= set(npu_ranges(npu))

    def test_missing_options_are_reported(self, npu, version):
        number, load = version
        options = 'sys_io=True, host_sys=["cpu"], level="level1"'
        ran = npu.run(
            load + ONE.format(options=options).replace("work()", "work()", 1), env={"STEPPROF_STEPS": "2"}
        ).check()
        assert npu.window()["status"] == "complete", (npu.window()["error"], ran.stderr)
        assert info(npu.folder_of())["experimental_config"]["_profiler_level"] == "Level1"
        lacking = [f"torch_npu {number} does not support {name}" for name in ("sys_io", "host_sys")]
        assert [ran.stderr.count(text) for text in lacking] == ([1, 1] if number == "2.5.1" else [0, 0])
