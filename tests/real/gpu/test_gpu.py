"""Test captures on a real GPU: `python -m pytest tests/real/gpu` on a machine that has one. On
other machines each test is skipped with that reason.
"""

from __future__ import annotations

import gzip
import json
import pickle
import shutil
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import gpu
import pytest
from faulty import ended
from nsys.tools import build, closed, read_log

import stepprof
from stepprof.analysis.verify import verify_run
from stepprof.backends.nsys import nsys_command
from stepprof.cli.commands.show import render_step
from stepprof.formats.memory_snapshot import read_snapshot

pytestmark = [
    pytest.mark.torch,
    # warnings of torch about a card, a driver or a first call of cuBLAS in a thread are not
    # failures of stepprof
    pytest.mark.filterwarnings("default"),
    # the first use of a card loads gigabytes of kernels, and the first stack of C++ the symbols of torch
    pytest.mark.timeout(600),
]

MIB = 1 << 20


@pytest.fixture(autouse=True)
def torch() -> Any:
    """Return torch after it has initialised CUDA; skip the test if there is no device."""
    reason = gpu.obstacle()
    if reason is not None:
        pytest.skip(reason)
    import torch

    torch.cuda.init()
    torch.ones(1, device=gpu.DEVICE.name)
    torch.cuda.synchronize()
    yield torch
    assert not torch._C._cuda_isHistoryEnabled()


@pytest.fixture
def session(tmp_path: Path) -> Any:
    """Start a session that records steps 2 to 20 on rank 0."""

    def start(**config: object) -> stepprof.Session:
        values = {"steps": "2-20", "output_dir": str(tmp_path / "runs"), "min_free_memory": "none", **config}
        return stepprof.init(values, run_id="run", rank=0, world_size=1)

    yield start
    stepprof.shutdown()


def train(torch: Any, size: int = 512) -> float:
    """Run one step of a small model and return its loss."""
    layers = (torch.nn.Linear(size, size), torch.nn.ReLU(), torch.nn.Linear(size, size))
    model = torch.nn.Sequential(*layers).to(gpu.DEVICE.name)
    loss = model(torch.randn(64, size, device=gpu.DEVICE.name)).square().mean()
    loss.backward()
    torch.cuda.synchronize()
    return float(loss.detach())


def traces(run: Any, step: int = 2) -> list[dict[str, Any]]:
    folder = run.path / f"step-{step:06d}"
    return [json.loads(gzip.decompress(path.read_bytes())) for path in folder.rglob("*.trace.json.gz")]


def of_category(trace: dict[str, Any], category: str) -> list[dict[str, Any]]:
    return [event for event in trace["traceEvents"] if event.get("cat") == category]


def kernels(trace: dict[str, Any]) -> list[dict[str, Any]]:
    return of_category(trace, gpu.DEVICE.kernels)


class TestTorch:
    def test_kernels_are_in_the_trace(self, torch: Any, session: Any) -> None:
        """CUDA's activities are recorded by default, because the process uses CUDA. The region is
        on the lanes of the device, too.
        """
        run = session()
        with stepprof.profile_step(2, role="actor"), stepprof.region("update"):
            train(torch)
        (window,) = ended(run)
        assert (window["status"], window["error"]) == ("complete", None)
        (trace,) = traces(run)
        assert kernels(trace), "no kernels: `stepprof doctor` says what keeps CUPTI from recording here"
        assert "update" in {event["name"] for event in of_category(trace, gpu.DEVICE.ranges)}
        assert verify_run(run.path).ok

    def test_old_and_new_threads_are_recorded(self, torch: Any, session: Any) -> None:
        """The trace has operations and launches of every thread, however often a capture starts and
        stops.
        """
        run = session()
        done = threading.Event()

        def busy() -> None:
            a = torch.randn(256, 256, device=gpu.DEVICE.name)
            while not done.is_set():
                a = (a @ a).tanh()

        thread = threading.Thread(target=busy)
        thread.start()
        try:
            for step in range(2, 12):
                with stepprof.profile_step(step):
                    other = threading.Thread(target=train, args=(torch,))
                    other.start()
                    other.join()
        finally:
            done.set()
            thread.join()
        assert [window["status"] for window in ended(run)] == ["complete"] * 10
        for step in range(2, 12):
            (trace,) = traces(run, step)
            launches = {
                event["tid"] for event in trace["traceEvents"] if event.get("name") == gpu.DEVICE.launch
            }
            operations = {event["tid"] for event in of_category(trace, "cpu_op")}
            assert len(launches) >= 2
            assert len(operations) >= 2

    @pytest.mark.parametrize("export", ["auto", "inline", "fork"])
    def test_exports_in_a_process_with_a_context(self, torch: Any, session: Any, export: str) -> None:
        """Exports run in place, or in a child that reads only host memory. The parent keeps its
        CUDA context and gets the same results.
        """
        run = session(export=export)
        torch.manual_seed(0)
        expected = train(torch)
        for step in range(2, 12):
            torch.manual_seed(0)
            with stepprof.profile_step(step):
                assert train(torch) == expected
        torch.manual_seed(0)
        assert train(torch) == expected
        assert [window["status"] for window in ended(run)] == ["complete"] * 10
        assert all(kernels(trace) for step in range(2, 12) for trace in traces(run, step))


LATE = """
import torch, stepprof
session = stepprof.init({config!r}, run_id="run", rank=0)
for step in (1, 2, 3):
    device = "cpu" if step == 1 else {device!r}
    with stepprof.profile_step(step, role="actor"):
        (torch.randn(512, 512, device=device) @ torch.randn(512, 512, device=device)).sum().item()
stepprof.shutdown()
"""


class TestLate:
    def test_a_device_that_is_used_after_the_first_capture(self, torch: Any, tmp_path: Path) -> None:
        """The first capture records only the CPU, and the log reports that torch starts CUDA.
        Captures after the first use of the device have its kernels.
        """
        config = {"steps": "1-3", "output_dir": str(tmp_path / "runs"), "min_free_memory": "none"}
        script = tmp_path / "job.py"
        script.write_text(LATE.format(config=config, device=gpu.DEVICE.name))
        command = [sys.executable, "-W", "ignore", str(script)]
        done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
        assert done.returncode == 0, done.stderr
        reported = f"{done.stdout}{done.stderr}".count("torch's profiler starts CUDA in this process")
        assert reported == (gpu.DEVICE.name == "cuda")
        (path,) = (tmp_path / "runs/run/step-000003").rglob("*.trace.json.gz")
        assert kernels(json.loads(gzip.decompress(path.read_bytes())))


class TestMemory:
    def test_a_window(self, torch: Any, session: Any) -> None:
        """The peak equals the allocator's own, the snapshot names the code that allocated it, and
        the history is off afterwards.
        """
        run = session(backend="memory")
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
        with stepprof.profile_step(2, role="actor"):
            held = torch.empty(64 * MIB, dtype=torch.uint8, device=gpu.DEVICE.name)
            del held
        peak = torch.cuda.max_memory_allocated()
        (window,) = ended(run)
        assert (window["status"], window["error"]) == ("complete", None)
        snapshot = read_snapshot(run.path / "step-000002" / window["artifacts"][0]["path"])
        assert snapshot.finding is None
        (device,) = (each for each in snapshot.devices if each.entries)
        # the history has the requested bytes, and the allocator counts whole blocks
        assert abs(device.peak_bytes - peak) < 2 * MIB
        (place,) = (
            each
            for each in snapshot.top[device.device]
            if each.frames and each.frames[0].endswith("test_a_window")
        )
        assert place.bytes == 64 * MIB
        assert "held at the peak" in render_step(run.path, 2)
        assert verify_run(run.path).ok

    @pytest.mark.parametrize("stacks", ["python", "all"])
    def test_together_with_torch(self, torch: Any, session: Any, stacks: str) -> None:
        """Several steps in a row have the artifacts of both backends."""
        run = session(backend=["torch", "memory"], memory={"stacks": stacks, "max_entries": 1000})
        for step in (2, 3, 4):
            with stepprof.profile_step(step):
                train(torch)
        recorded = ended(run)
        assert [window["status"] for window in recorded] == ["complete"] * 3
        kinds = [artifact["kind"] for artifact in recorded[0]["artifacts"]]
        assert kinds == ["torch-trace", "memory-snapshot", "memory-summary"]

    def test_a_history_of_another_program_is_not_changed(self, torch: Any, session: Any) -> None:
        """If another program records a history, it is not changed, and the window is skipped."""
        run = session(backend="memory")
        torch.cuda.memory._record_memory_history(max_entries=10)
        try:
            with stepprof.profile_step(2):
                train(torch)
            assert torch._C._cuda_isHistoryEnabled()
        finally:
            torch.cuda.memory._record_memory_history(None)
        (window,) = ended(run)
        assert window["status"] == "skipped"

    @pytest.mark.parametrize("entries", [0, 1000])
    def test_out_of_memory(self, torch: Any, session: Any, entries: int) -> None:
        """Outside a recorded window, the job gets the error as usual, and a snapshot of that moment
        is kept. It has the history only if entries are configured.
        """
        run = session(backend="memory", memory={"on_oom": True, "on_oom_entries": entries})
        held = torch.empty(32 * MIB, dtype=torch.uint8, device=gpu.DEVICE.name)
        with pytest.raises(torch.cuda.OutOfMemoryError), stepprof.profile_step(1, role="actor"):
            torch.empty(1 << 45, dtype=torch.uint8, device=gpu.DEVICE.name)
        del held
        (window,) = ended(run)
        assert (window["step"], window["role"], window["status"]) == (1, "actor", "complete")
        path = run.path / "step-000001" / window["artifacts"][0]["path"]
        content = pickle.loads(path.read_bytes())
        assert content["stepprof"]["out_of_memory"]["asked_bytes"] >= 1 << 45  # the allocator rounds up
        assert read_snapshot(path).finding is None
        actions = [entry["action"] for trace in content["device_traces"] for entry in trace]
        assert ("oom" in actions) == bool(entries)


JOB = """
import stepprof, torch
stepprof.init({config!r}, run_id="run", rank=0)
for step in (1, 2, 3):
    with stepprof.profile_step(step, role="actor"), stepprof.region("update"):
        (torch.randn(512, 512, device={device!r}) @ torch.randn(512, 512, device={device!r})).sum().item()
stepprof.shutdown()
"""


class TestNsys:
    def run(self, folder: Path, **how: Any) -> str:
        """Run a job under a tool, check that the report of its window exists, and return its
        output.
        """
        config = {
            "backend": "nsys",
            "steps": "2",
            "output_dir": str(folder / "runs"),
            "min_free_memory": "none",
        }
        script = folder / "job.py"
        script.write_text(JOB.format(config=config, device=gpu.DEVICE.name))
        command = nsys_command(config, command=[sys.executable, str(script)], roles=["actor"], rank=0, **how)
        done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False, cwd=folder)
        assert done.returncode == 0, done.stderr
        reported = f"{done.stdout}\n{done.stderr}"
        assert list((folder / "runs/run/step-000002/actor").glob("*.nsys-rep")), reported
        return reported

    def test_a_window_under_nsys_has_a_report_in_its_step(self, torch: Any, tmp_path: Path) -> None:
        """The window is a range of nsys, and its report is in the folder of the step."""
        if shutil.which("nsys") is None:
            pytest.skip("nsys is not on PATH")
        self.run(tmp_path)

    def test_ranges_without_nsys_on_a_device(
        self, torch: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """The job runs under the stand-in of tests/helpers/nsys. cudaProfilerStart and Stop, called
        through torch, and NVTX's ranges use the device.
        """
        tools = build(tmp_path)
        monkeypatch.setenv("NVTX_LOG", str(tmp_path / "nvtx.log"))
        self.run(tmp_path, nsys=tools.nsys)
        ranges = closed(read_log(tmp_path / "nvtx.log"))
        assert ranges.pushed["update"] + ranges.started["update"] == 1
