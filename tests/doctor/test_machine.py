"""The command `stepprof doctor`: each finding with its remedy, also for a torch that fails, crashes
or hangs.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest

from stepprof.cli.main import main
from stepprof.doctor import finding as finding_module
from stepprof.doctor import machine, torch_child
from stepprof.doctor import torch as torchfindings
from stepprof.doctor.machine import machine_findings
from stepprof.doctor.torch import torch_findings

EXTENSION = "[torch.backends]\n{name} = {name}:_autoload\n"


def package(folder, name, text, entry_points=None):
    """Write a package that shadows the installed one, like a broken installation, and return the
    environment for it.
    """
    (folder / name).mkdir(parents=True)
    (folder / name / "__init__.py").write_text(text)
    if entry_points:
        info = folder / f"{name}-1.0.dist-info"
        info.mkdir()
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
        (info / "entry_points.txt").write_text(entry_points)
    return {**os.environ, "PYTHONPATH": str(folder)}


def by_name(findings):
    return {finding.name: finding for finding in findings}


def tried(environ, timeout=90):
    return by_name(torch_findings(environ, timeout))


def described(**stages):
    """Return the findings for these outcomes of the probe."""
    return by_name(torchfindings._described(torchfindings._Run(stages, None, None, "")))


class TestTorchFindings:
    @pytest.mark.torch
    def test_torch_npu_without_cann(self, tmp_path):
        """torch_npu without CANN breaks `import torch`. The finding says so, and torch is checked
        without it.
        """
        pytest.importorskip("torch")
        broken = 'raise ImportError("libhccl.so: cannot open shared object file")\n'
        found = tried(package(tmp_path, "torch_npu", broken, EXTENSION.format(name="torch_npu")))
        assert found["torch_npu"].level == "problem"
        assert "libhccl.so" in found["torch_npu"].detail
        assert "set_env.sh" in found["torch_npu"].remedy
        assert found["torch"].level == found["cpu capture"].level == "ok"

    def test_a_broken_extension_is_named_and_skipped(self, tmp_path):
        """The finding names the broken extension, and torch is tried again without extensions."""
        broken = (
            "import os\n"
            "if os.environ.get('TORCH_DEVICE_BACKEND_AUTOLOAD') != '0':\n"
            "    raise RuntimeError('Failed to load the backend extension: other.') from OSError('no device')\n"
            "raise ImportError('without it')\n"
        )
        found = tried(package(tmp_path, "torch", broken))
        assert "other. <- OSError: no device" in found["torch extension"].detail
        assert "TORCH_DEVICE_BACKEND_AUTOLOAD=0" in found["torch extension"].remedy
        assert "without it" in found["torch"].detail

    def test_a_torch_that_cannot_be_imported(self, tmp_path):
        """The finding has the import error and its cause."""
        found = tried(package(tmp_path, "torch", "raise ImportError('libtorch') from OSError('libc10')\n"))
        assert found["torch"].level == "problem"
        assert "ImportError: libtorch <- OSError: libc10" in found["torch"].detail

    def test_a_torch_that_crashes(self, tmp_path):
        """A crash of the native library ends the probe's process and is a finding."""
        found = tried(package(tmp_path, "torch", "import os, signal; os.kill(os.getpid(), signal.SIGSEGV)\n"))
        assert found["torch"].detail == "a process that was importing torch was killed by SIGSEGV"

    def test_a_torch_that_ends_the_process(self, tmp_path):
        """The finding has the exit status and the last output."""
        found = tried(package(tmp_path, "torch", "import os; os.write(2, b'x\\nbye'); os._exit(7)\n"))
        assert found["torch"].detail == "a process that was importing torch ended with exit status 7: bye"

    def test_a_torch_that_hangs(self, tmp_path):
        """The time limit also holds for processes that the probe has started. Findings from before
        the hang are kept.
        """
        hang = "import subprocess, sys, time; subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(60)']); time.sleep(60)\n"
        found = tried(package(tmp_path, "torch", hang), timeout=2)
        assert found["torch"].detail == "a process that was importing torch did not end within 2 s"
        assert "isal" in found

    def test_without_process_groups_only_the_probe_is_ended(self, tmp_path, monkeypatch):
        """On a system without process groups, only the probe itself is ended."""
        monkeypatch.delattr(os, "killpg")
        found = tried(package(tmp_path, "torch", "import time; time.sleep(60)\n"), timeout=2)
        assert "did not end within 2 s" in found["torch"].detail

    def test_noise_on_stdout_is_not_taken_for_an_answer(self, tmp_path):
        """Output of imported modules is not mistaken for the probe's answer."""
        found = tried(package(tmp_path, "torch", "print('hello'); print([1]); raise ImportError('no')\n"))
        assert "ImportError: no" in found["torch"].detail

    def test_no_torch(self):
        """A missing torch is a warning and not a problem, because spans are recorded without it."""
        found = described(torch={"installed": False}, isal={"installed": False}, npu={"installed": False})
        assert found["torch"].level == found["isal"].level == "warning"
        assert 'the extra "torch"' in found["torch"].remedy
        assert "torch_npu" not in found

    @pytest.mark.parametrize(
        ("stages", "name", "level", "words"),
        [
            (
                {"torch": {"installed": True, "version": "2", "cuda_build": "12", "path": "p"}},
                "torch",
                "ok",
                "built for 12",
            ),
            ({"options": {"error": "AttributeError: x"}}, "torch options", "warning", "AttributeError"),
            (
                {"options": {"profile_all_threads": False, "trace_only": False}},
                "all threads",
                "warning",
                "only the thread",
            ),
            (
                {"options": {"profile_all_threads": True, "trace_only": False}},
                "trace_only",
                "ok",
                "not supported",
            ),
            ({"devices": {"error": "RuntimeError: driver"}}, "accelerators", "problem", "driver"),
            (
                {"devices": {"devices": {"cuda": ["A", "A"]}, "activities": ["CPU", "CUDA"]}},
                "accelerators",
                "ok",
                "cuda: 2 x A",
            ),
            (
                {"devices": {"devices": {"cuda": ["A"]}, "activities": ["CPU"]}},
                "kernels",
                "problem",
                "cannot record",
            ),
            ({"cpu_capture": {"error": "E: x"}}, "cpu capture", "problem", "fails: E: x"),
            ({"cpu_capture": {"events": 0}}, "cpu capture", "problem", "empty"),
            ({"device_capture": {"error": "E: x"}}, "kernel capture", "problem", "fails: E: x"),
            ({"device_capture": {"device": "cuda", "events": 0}}, "kernel capture", "problem", "no kernel"),
            ({"device_capture": {"device": "cuda", "events": 3}}, "kernel capture", "ok", "3 kernels"),
            ({"npu": {"error": "E: x"}}, "torch_npu", "problem", "E: x"),
            (
                {"npu": {"installed": True, "version": "1", "available": False}},
                "torch_npu",
                "warning",
                "no NPU",
            ),
            ({"npu": {"installed": True, "version": "1", "available": True}}, "torch_npu", "ok", "1"),
            ({"isal": {"error": "E: x"}}, "isal", "warning", "E: x"),
            ({"isal": {"installed": True}}, "isal", "ok", "igzip"),
        ],
    )
    def test_every_outcome_has_a_level_and_a_remedy(self, stages, name, level, words):
        """Each outcome has a level, and a remedy unless it is ok."""
        finding = described(**stages)[name]
        assert finding.level == level
        assert words in finding.detail
        assert bool(finding.remedy) == (level != "ok")

    def test_a_signal_without_a_name(self):
        """A real-time signal has only a number."""
        assert torchfindings._describe_status(-50) == "was killed by signal 50"


# A stand-in with the parts of torch that the probe uses on a machine with GPUs and an NPU.
ACCELERATED_TORCH = """
import contextlib, json, sys
from types import ModuleType, SimpleNamespace

class N(SimpleNamespace):
    __hash__ = object.__hash__

__version__, version = "9.9", N(cuda="13.0")
cuda = N(is_available=lambda: True, device_count=lambda: 2, get_device_name=lambda index: f"GPU {index}")
mps = N(is_available=lambda: False)

class Tensor:
    __matmul__ = lambda self, other: self
    sum = lambda self: self
    item = lambda self: 1.0

class Profile(contextlib.nullcontext):
    def __init__(self, activities, experimental_config):
        super().__init__()
        self.activities = activities

    def export_chrome_trace(self, path):
        names = {"CPU": "cpu_op", "CUDA": "kernel"}
        with open(path, "w") as file:
            json.dump({"traceEvents": [{"cat": names[activity.name]} for activity in self.activities]}, file)

def config(profile_all_threads=False):
    return None

ones = lambda *shape, device: Tensor()
profiler = sys.modules["torch.profiler"] = ModuleType("torch.profiler")
profiler.ProfilerActivity = N(CPU=N(name="CPU"), CUDA=N(name="CUDA"))
profiler.supported_activities = lambda: {profiler.ProfilerActivity.CPU, profiler.ProfilerActivity.CUDA}
profiler._ExperimentalConfig = config
profiler.profile = Profile
"""


class TestTorchProbe:
    def stages(self, environ):
        """Run the probe in its own process and return the outcome of each stage that it reached."""
        done = subprocess.run(
            [sys.executable, "-m", torch_child.__name__],
            capture_output=True,
            text=True,
            check=True,
            timeout=90,
            env={**os.environ, **environ},
        )
        lines = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
        assert [next(iter(line)) for line in lines] == ["begin", "stage"] * (len(lines) // 2)
        return {line.pop("stage"): line for line in lines if "stage" in line}

    @pytest.mark.torch
    def test_the_real_torch(self):
        """Every stage has an outcome with the installed torch."""
        pytest.importorskip("torch")
        stages = self.stages({})
        assert len(stages) == 8
        assert stages["cpu_capture"]["events"] > 0
        assert stages["npu"] == {"installed": False}

    def test_without_torch_no_further_stage_runs(self, tmp_path):
        """If torch cannot be imported, no further stage runs."""
        environ = package(tmp_path, "torch", "raise ImportError('no') from OSError('c')\n")
        stages = self.stages(environ)
        assert stages["torch"] == {"error": "ImportError: no <- OSError: c"}
        assert "options" not in stages

    def test_an_empty_installation_runs_no_further_stage(self, tmp_path):
        """If torch is not installed, the probe says so and no further stage runs."""
        (tmp_path / "sitecustomize.py").write_text(
            "import importlib.util\n"
            "real = importlib.util.find_spec\n"
            "importlib.util.find_spec = lambda name, *a: None if name in ('torch', 'isal') else real(name, *a)\n"
        )
        stages = self.stages({"PYTHONPATH": str(tmp_path)})
        assert stages == {"isal": {"installed": False}, "torch": {"installed": False}}

    def test_accelerators(self, tmp_path):
        """Two GPUs and an NPU are found and named, and one kernel is recorded."""
        environ = package(tmp_path, "torch", ACCELERATED_TORCH)
        npu = (
            "from types import SimpleNamespace as N\n__version__ = '9'\nnpu = N(is_available=lambda: True)\n"
        )
        package(tmp_path, "torch_npu", npu)
        stages = self.stages(environ)
        assert stages["torch"]["cuda_build"] == "13.0"
        assert stages["options"] == {"profile_all_threads": True, "trace_only": False}
        assert stages["devices"] == {"devices": {"cuda": ["GPU 0", "GPU 1"]}, "activities": ["CPU", "CUDA"]}
        assert stages["cpu_capture"] == {"events": 1}
        assert stages["device_capture"] == {"device": "cuda", "events": 1}
        assert stages["npu"] == {"installed": True, "version": "9", "available": True}


class TestMachineFindings:
    def found(self, tmp_path, **environ):
        return by_name(machine_findings(tmp_path / "runs", {"PATH": "", **environ}))

    def test_this_machine(self, tmp_path):
        """Every finding that is not ok has a remedy. The check writes no file."""
        findings = machine_findings(tmp_path / "runs", dict(os.environ))
        assert all(finding.remedy for finding in findings if finding.level != "ok")
        assert not (tmp_path / "runs").exists()
        assert list(tmp_path.iterdir()) == []

    @pytest.mark.parametrize(
        ("environ", "level", "words"),
        [
            ({}, "ok", "no environment variable"),
            (
                {"NVTX_INJECTION64_PATH": "/usr/lib/libcupti.so.12"},
                "problem",
                "NVTX_INJECTION64_PATH=/usr/lib/libcupti.so.12",
            ),
            ({"LD_PRELOAD": "/x/libcupti.so"}, "problem", "LD_PRELOAD"),
            ({"NVTX_INJECTION64_PATH": "/x/libother.so"}, "warning", "libother"),
            ({"CUDA_INJECTION64_PATH": "/x/libToolsInjection64.so"}, "warning", "CUDA_INJECTION64_PATH"),
            ({"LD_PRELOAD": "/x/librocprof.so"}, "warning", "librocprof"),
            ({"LD_PRELOAD": "/x/libjemalloc.so"}, "ok", "no environment variable"),
            ({"NSYS_PROFILING_SESSION_ID": "1"}, "warning", "under nsys"),
        ],
    )
    def test_other_cupti_subscribers_are_reported(self, tmp_path, environ, level, words):
        """CUPTI allows one subscriber per process."""
        finding = self.found(tmp_path, **environ)["cupti"]
        assert finding.level == level
        assert words in finding.detail

    @pytest.mark.parametrize(
        ("script", "level", "words"),
        [
            ("echo NVIDIA Nsight Systems version 2026.1", "ok", "2026.1"),
            ("exit 3", "warning", "exit status 3"),
            ("exit 0", "warning", "exit status 0"),
            (None, "warning", "does not run"),
        ],
    )
    def test_nsys_on_path(self, tmp_path, script, level, words):
        """nsys is run for its version. An nsys that does not answer is a warning."""
        folder = tmp_path / "bin"
        folder.mkdir()
        executable = folder / "nsys"
        executable.write_text(f"#!/bin/sh\n{script}\n" if script else "\x7fELF broken")
        executable.chmod(0o755)
        finding = self.found(tmp_path, PATH=str(folder))["nsys"]
        assert finding.level == level
        assert words in finding.detail

    def test_an_output_dir_that_cannot_be_written(self, tmp_path):
        """A file exists in place of the output folder."""
        (tmp_path / "runs").touch()
        finding = self.found(tmp_path)["output_dir"]
        assert finding.level == "problem"
        assert "cannot be written" in finding.detail

    @pytest.mark.parametrize(
        ("free", "kind", "level"),
        [
            (2**20, "ext4", "problem"),
            (2**30, "ext4", "warning"),
            (2**40, "tmpfs", "warning"),
            (2**40, "", "ok"),
        ],
    )
    def test_free_space(self, tmp_path, monkeypatch, free, kind, level):
        """Traces are large, and a folder in memory takes memory from the training."""
        monkeypatch.setattr(
            machine.shutil, "disk_usage", lambda _: machine.shutil._ntuple_diskusage(2**41, 0, free)
        )
        monkeypatch.setattr(machine, "_filesystem", lambda _: kind)
        assert self.found(tmp_path)["output_dir"].level == level

    @pytest.mark.parametrize(("total", "level"), [(64 * 2**20, "warning"), (2**34, "ok")])
    def test_shared_memory(self, tmp_path, monkeypatch, total, level):
        """Docker's default of 64 MiB may end a job with a bus error."""
        monkeypatch.setattr(
            machine.shutil, "disk_usage", lambda _: machine.shutil._ntuple_diskusage(total, 0, total)
        )
        finding = self.found(tmp_path)["/dev/shm"]
        assert finding.level == level
        assert ("--shm-size" in finding.remedy) == (level == "warning")

    @pytest.mark.parametrize(
        ("found", "level"), [(None, None), ((2**29, 2**34), "warning"), ((2**33, 2**34), "ok")]
    )
    def test_memory(self, tmp_path, monkeypatch, found, level):
        """torch keeps recorded events in memory until it writes the trace."""
        monkeypatch.setattr(machine, "available_and_total", lambda: found)
        finding = self.found(tmp_path).get("memory")
        assert (finding and finding.level) == level

    @pytest.mark.parametrize(
        ("path", "text", "name", "level"),
        [
            ("/proc/sys/kernel/yama/ptrace_scope", "3\n", "ptrace", "warning"),
            ("/proc/sys/kernel/yama/ptrace_scope", "1\n", "ptrace", "ok"),
            ("/proc/driver/nvidia/params", "RmProfilingAdminOnly: 1\n", "gpu counters", "warning"),
            (
                "/sys/devices/system/clocksource/clocksource0/current_clocksource",
                "hpet\n",
                "clock",
                "warning",
            ),
            ("/proc/sys/kernel/perf_event_paranoid", "4\n", "nsys sampling", "warning"),
        ],
    )
    def test_kernel_settings_are_reported(self, tmp_path, monkeypatch, path, text, name, level):
        """The settings are those of another machine."""
        read = finding_module.read
        monkeypatch.setattr(finding_module, "read", lambda asked: text if asked == path else read(asked))
        monkeypatch.setattr(machine.os, "geteuid", lambda: 1000)
        (tmp_path / "bin").mkdir()
        (tmp_path / "bin" / "nsys").write_text("#!/bin/sh\necho 1\n")
        (tmp_path / "bin" / "nsys").chmod(0o755)
        finding = self.found(tmp_path, PATH=str(tmp_path / "bin"))[name]
        assert finding.level == level
        assert bool(finding.remedy) == (level == "warning")

    def test_without_proc_nothing_is_claimed(self, tmp_path, monkeypatch):
        """Without /proc, /sys and /dev/shm, there are no findings about them."""
        monkeypatch.setattr(finding_module, "read", lambda _: "")
        monkeypatch.setattr(machine, "_SHARED_MEMORY", tmp_path / "none")
        found = self.found(tmp_path)
        assert found["clock"].level == "ok"
        assert not {"/dev/shm", "ptrace", "gpu counters"} & set(found)
        assert machine._filesystem(tmp_path) == ""

    def test_python(self, tmp_path, monkeypatch):
        """An untested version of Python and a running debugger are reported."""
        monkeypatch.setattr(machine.sys, "gettrace", lambda: None)
        assert self.found(tmp_path)["python"].level == "ok"
        monkeypatch.setattr(machine.sys, "gettrace", lambda: print)
        assert "tracer" in self.found(tmp_path)["python"].detail
        monkeypatch.setattr(machine.sys, "version_info", (3, 14))
        assert self.found(tmp_path)["python"].level == "warning"


class TestDoctor:
    @pytest.fixture
    def quick(self, monkeypatch, tmp_path):
        """Install a torch whose import fails at once, so that the command is quick."""
        environ = package(tmp_path / "site", "torch", "raise ImportError('no \\x1b[31m torch')\n")
        monkeypatch.setenv("PYTHONPATH", environ["PYTHONPATH"])
        monkeypatch.delenv("LD_PRELOAD", raising=False)

    def test_text(self, quick, capsys, tmp_path):
        """The text has problems in capitals, each with its remedy, and a count at the end. The exit
        status is 1.
        """
        assert main(["doctor", "--output-dir", str(tmp_path)]) == 1
        out = capsys.readouterr().out
        assert "PROBLEM  torch" in out
        assert "-> reinstall torch" in out
        assert "1 problem, " in out.splitlines()[-1]
        assert "\x1b" not in out

    def test_json(self, quick, capsys, tmp_path):
        """The JSON has the same findings for programs."""
        assert main(["doctor", "--json", "--output-dir", str(tmp_path)]) == 1
        content = json.loads(capsys.readouterr().out)
        assert (content["schema_version"], content["ok"]) == (1, False)
        assert set(content["findings"][0]) == {"name", "level", "detail", "remedy", "applies"}

    @pytest.mark.torch
    def test_a_machine_without_problems(self, capsys, tmp_path):
        """The installed torch records a small capture. Without problems the exit status is 0."""
        pytest.importorskip("torch")
        assert main(["doctor", "--output-dir", str(tmp_path)]) == 0
        out = capsys.readouterr().out
        assert "ok       cpu capture" in out
        assert "0 problems" in out.splitlines()[-1]
