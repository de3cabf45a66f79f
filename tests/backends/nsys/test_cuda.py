"""cudaProfilerStart and cudaProfilerStop of the libcudart that is found. Each test uses its own process,
because a wrong library ends it.
"""

from __future__ import annotations

import shutil
from importlib.util import find_spec
from pathlib import Path

import pytest
from nsys.tools import build

SCRIPT = """
import sys
from stepprof.backends.nsys.cuda import CudaProfiler
{before}
profiler = CudaProfiler()
print(profiler.missing())
for call in (profiler.start, profiler.stop):
    try:
        call()
    except Exception as error:
        print(type(error).__name__, error)
print(sorted(name for name in sys.modules if name in ("torch", "nvtx", "numpy")))
"""


@pytest.fixture(scope="module")
def tools(tmp_path_factory):
    return build(tmp_path_factory.mktemp("tools"))


@pytest.fixture
def called(tools, tmp_path, run_script):
    """Make both calls; return the printed output and the calls that the test's libcudart has logged."""

    def called(before="", **env):
        log = tmp_path / "cudart"
        ran = run_script(SCRIPT.format(before=before), env={"CUDART_LOG": str(log), **env}).check()
        noted = [line.split()[0] for line in log.read_text().splitlines()] if log.exists() else []
        return ran.stdout.splitlines(), noted

    return called


BOTH = ["cudaProfilerStart", "cudaProfilerStop"]


class TestWhereItIsFound:
    def test_a_loaded_library_comes_first(self, called, tools):
        """A libcudart that the process has already loaded is called first, whatever its name and place."""
        assert called(LD_PRELOAD=tools.cudart) == (["None", "[]"], BOTH)

    def test_the_library_in_a_wheel_is_found(self, called, tools, tmp_path):
        """The library in the package nvidia-cuda-runtime is found and called."""
        folder = tmp_path / "site" / "nvidia" / "cu13" / "lib"
        folder.mkdir(parents=True)
        shutil.copy(tools.cudart, folder / "libcudart.so.13")
        before = f"from stepprof.backends.nsys.cuda import libraries\nsys.path.insert(0, {str(folder.parents[2])!r})\nprint(next(libraries({{}})))"
        lines, noted = called(before)
        assert lines[0] == str(folder / "libcudart.so.13")
        assert noted == BOTH

    def test_cuda_home_comes_after_the_loader(self, called, tools, tmp_path):
        """If the loader finds no library, that of CUDA_HOME is called."""
        (tmp_path / "cuda" / "lib64").mkdir(parents=True)
        shutil.copy(tools.cudart, tmp_path / "cuda" / "lib64" / "libcudart.so.99")
        hidden = "sys.modules['nvidia'] = None\nfrom stepprof.backends.nsys import cuda as nsys_cuda\nnsys_cuda._LOADER_NAMES, nsys_cuda._USUAL_HOME = (), ''"
        assert called(hidden, CUDA_HOME=str(tmp_path / "cuda")) == (["None", "[]"], BOTH)

    def test_no_libcudart_is_found(self, called):
        """The message lists the searched names and the package to install."""
        hidden = "sys.modules['nvidia'] = None\nfrom stepprof.backends.nsys import cuda as nsys_cuda\nnsys_cuda._LOADER_NAMES, nsys_cuda._USUAL_HOME = ('libcudart.so.0',), ''"
        lines, _ = called(hidden, CUDA_HOME="/nowhere")
        assert "no libcudart was found (looked for: libcudart.so.0" in lines[0]
        assert "nvidia-cuda-runtime" in lines[0]
        assert lines[1].startswith("BackendError")

    def test_torch_that_uses_cuda(self, called):
        """If torch uses CUDA, torch's own calls are made. An error code raises BackendError."""
        torch = """
import types
sys.modules["torch"] = torch = types.ModuleType("torch")
torch.cuda = types.SimpleNamespace(is_initialized=lambda: {0}, cudart=lambda: types.SimpleNamespace(
    cudaProfilerStart=lambda: print("start") or 0, cudaProfilerStop=lambda: print("stop") or 1))
"""
        lines, noted = called(torch.format(True))
        assert (lines[:4], noted) == (
            ["None", "start", "stop", "BackendError cudaProfilerStop answered 1"],
            [],
        )

    def test_torch_without_cuda(self, called, tools):
        """If torch has no CUDA, libcudart itself is called."""
        torch = "import types\nsys.modules['torch'] = types.ModuleType('torch')"
        assert called(torch, LD_PRELOAD=tools.cudart)[1] == BOTH


class TestReal:
    def test_libcudart_without_a_driver(self, called):
        """The real libcudart of its wheel returns an error without a driver, and the process does not
        crash.
        """
        assert find_spec("nvidia.cuda_runtime"), (
            "pip install -e '.[core-tests]' brings nvidia-cuda-runtime-cu12"
        )
        lines, _ = called()
        assert lines[0] == "None"
        if Path("/dev/nvidiactl").exists():
            assert lines[1:] == ["[]"]
        else:
            assert "cudaProfilerStart answered 35 (CUDA driver version is insufficient" in lines[1]
            assert "cudaProfilerStop answered 35" in lines[2]
