"""The memory backend with the real torch on a CPU build. With a replacement for CUDA's allocator, the
calls of torch and their order are tested.
"""

from __future__ import annotations

import json
import os
import pickle
import re
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest
from cudamemory import Allocator
from faulty import ended, windows

pytest.importorskip("torch")

import torch

import stepprof
from stepprof.backends.base import Busy, Incomplete
from stepprof.backends.memory import api
from stepprof.backends.memory.api import history
from stepprof.backends.memory.backend import MemoryBackend
from stepprof.cli.main import main
from stepprof.config.options.memory import MemoryOptions
from stepprof.errors import BackendError, ConfigError
from stepprof.run.model import Artifact, Capture, Window

pytestmark = pytest.mark.torch

MIB = 1 << 20


@pytest.fixture
def place(tmp_path: Path) -> Capture:
    folder = tmp_path / "step-000002"
    (folder / "actor").mkdir(parents=True)
    return Capture(Window(2, "actor"), folder, "actor/rank-0", {"step": 2, "role": "actor", "rank": 0})


@pytest.fixture
def session(tmp_path: Path):
    def start(**config: object) -> stepprof.Session:
        values = {"backend": "memory", "steps": "2,3", "output_dir": str(tmp_path / "runs")}
        return stepprof.init({"min_free_memory": "none", **values, **config}, run_id="run", rank=0)

    yield start
    stepprof.shutdown()


def recorded(backend: MemoryBackend, place: Capture, body: Any) -> tuple[Artifact, ...]:
    backend.arm()
    backend.start(place)
    body()
    return backend.stop(place, ())()


def content(place: Capture, artifact: Artifact) -> Any:
    data = (place.folder / artifact.path).read_bytes()
    assert len(data) == artifact.bytes
    return pickle.loads(data) if artifact.path.endswith(".pickle") else json.loads(data)


class TestWithoutCuda:
    def test_a_cpu_build_reports_the_missing_cuda(self) -> None:
        """The reason for a CPU build suggests the torch backend. Arming raises BackendError."""
        reason = MemoryBackend().probe()
        assert reason is not None
        assert reason.startswith(f"this torch ({torch.__version__}) has no CUDA")
        assert 'did you mean backend = "torch" with torch.profile_memory = true?' in reason
        with pytest.raises(BackendError, match="has no CUDA"):
            MemoryBackend().arm()

    def test_a_session_goes_on(self, session, log) -> None:
        """Without CUDA, the windows of torch and memory are failed with that reason, and the bodies run.
        One line is logged.
        """
        run = session(backend=["torch", "memory"], memory={"on_oom": True})
        ran = []
        for step in (1, 2):
            with stepprof.profile_step(step):
                ran.append(step)
        (window,) = ended(run)
        assert ran == [1, 2]
        assert (window["backend"], window["status"]) == ("torch+memory", "failed")
        assert "torch+memory cannot record here: memory: this torch" in window["error"]
        assert [line["event"] for line in log].count("backend.unavailable") == 1

    def test_a_build_for_cuda_without_a_device(
        self, cuda: Allocator, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """If no device is visible, the reason names the variable CUDA_VISIBLE_DEVICES."""
        monkeypatch.setattr(torch.cuda, "device_count", lambda: 0)
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
        reason = MemoryBackend().probe()
        assert reason == (
            "no CUDA device is visible to this process (CUDA_VISIBLE_DEVICES=''): backend = \"memory\" records its allocator"
        )

    def test_an_allocator_without_a_history(self, cuda: Allocator, monkeypatch: pytest.MonkeyPatch) -> None:
        """The allocator cudaMallocAsync keeps no history, so the reason names it."""
        monkeypatch.setattr(torch._C, "_cuda_getAllocatorBackend", lambda: "cudaMallocAsync")
        assert "CUDA's allocator here is cudaMallocAsync" in str(MemoryBackend().probe())

    def test_another_allocator_is_refused(self, cuda: Allocator, monkeypatch: pytest.MonkeyPatch) -> None:
        """An allocator that other code has set is refused, and the reason names torch's function."""
        monkeypatch.setattr(torch._C, "_cuda_getAllocatorBackend", lambda: "pluggable")
        assert "do not replace it with torch.cuda.memory.change_current_allocator" in str(
            MemoryBackend().probe()
        )

    @pytest.mark.parametrize(
        ("reported", "file", "there"),
        [(2, None, True), (0, "nvidia0", False), (-1, "nvidia0", True), (-1, None, False)],
    )
    def test_devices_are_not_counted_by_cuda(
        self,
        cuda: Allocator,
        monkeypatch: pytest.MonkeyPatch,
        tmp_path: Path,
        reported: int,
        file: str | None,
        there: bool,
    ) -> None:
        """While the process does not use CUDA, NVML counts the devices. If NVML fails, as with MIG, the
        device files decide.
        """
        monkeypatch.setattr(torch.cuda, "_initialized", False)
        monkeypatch.setattr(torch.cuda, "device_count", lambda: pytest.fail("this count is CUDA's"))
        monkeypatch.setattr(torch.cuda, "_device_count_nvml", lambda: reported)
        monkeypatch.setattr(api, "_DEVICES", tmp_path)
        if file:
            (tmp_path / file).touch()
        assert (MemoryBackend().probe() is None) == there

    @pytest.mark.parametrize("backend", ["torch", "memory"])
    def test_forked_children_can_use_cuda(self, warm, backend: str) -> None:
        """A process that does not use CUDA makes no call that starts CUDA, because torch then refuses CUDA
        to forked children.
        """
        printed = warm.run(
            f"""
import torch, stepprof, torch._inductor.config

asked = []
def start_cuda(*_):
    asked.append("CUDA was started")
    return 1

torch._C._cuda_getDeviceCount = torch._C._cuda_init = start_cuda
torch._C._cuda_getAllocatorBackend = lambda: "native"
torch.version.cuda = "12.8"
torch.cuda._device_count_nvml = lambda: 1
supported = torch.autograd._supported_activities
torch.autograd._supported_activities = lambda: start_cuda() and supported()
assert torch.cuda._is_compiled()

memory = {{"on_oom": True, "on_oom_entries": 5}}
stepprof.init({{"backend": {backend!r}, "steps": "1-3", "min_free_memory": "none", "memory": memory}}, rank=0)
for step in range(1, 5):
    with stepprof.profile_step(step, role="actor"), stepprof.region("update"):
        torch.ones(4).add_(1)
stepprof.shutdown()
print(len(stepprof.state().recorded_steps), stepprof.state().last_error, asked, torch.cuda.is_initialized())
"""
        ).check()
        assert printed.stdout.endswith(" [] False\n")
        assert ("3 None" if backend == "torch" else "has not used CUDA yet") in printed.stdout

    def test_without_torch_the_reason_says_how_to_install_it(self, run_script) -> None:
        """Without torch, the reason has the command that installs it."""
        run_script(
            """
import sys
sys.modules["torch"] = None
from stepprof.backends.memory.backend import MemoryBackend
assert 'install the extra "torch" of stepprof' in MemoryBackend().probe()
"""
        ).check()

    def test_the_module_imports_no_torch(self) -> None:
        """Importing the module does not import torch, because it is imported long before the backend is
        used.
        """
        code = "import sys, stepprof.backends.memory.backend, stepprof.recording.oom_snapshots; sys.exit('torch' in sys.modules)"
        assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


class TestOneWindow:
    def test_leaves_a_snapshot_and_its_peaks(self, cuda: Allocator, place: Capture) -> None:
        """The pickle has torch's format and the metadata of the window. The JSON file states the peak and
        its time.
        """
        before = cuda.alloc(100 * MIB)

        def body() -> None:
            address = cuda.alloc(200 * MIB)
            cuda.free(address)
            cuda.alloc(50 * MIB)

        snapshot, summary = recorded(MemoryBackend(), place, body)
        assert (snapshot.path, snapshot.kind) == ("actor/rank-0.memory.pickle", "memory-snapshot")
        assert (summary.path, summary.kind) == ("actor/rank-0.memory.json", "memory-summary")
        table = content(place, snapshot)
        actions = [entry["action"] for entry in table["device_traces"][0]]
        assert actions == ["alloc", "free_requested", "free_completed", "alloc"]
        assert snapshot.events == 4
        assert table["device_traces"][0][0]["frames"][0]["name"] == "body"
        assert table["stepprof"] == {"step": 2, "role": "actor", "rank": 0, "context": "alloc"}
        assert {segment["address"] for segment in table["segments"]} >= {before}
        (device,) = content(place, summary)["devices"]
        assert device["history_peak_bytes"] == 300 * MIB
        assert device["history_peak_unix_us"] == table["device_traces"][0][0]["time_us"]
        assert device["max_allocated_bytes"] == 300 * MIB
        assert (device["allocated_bytes"], device["num_ooms"], device["history_entries"]) == (150 * MIB, 0, 4)
        assert sorted(path.name for path in (place.folder / "actor").iterdir()) == [
            "rank-0.memory.json",
            "rank-0.memory.pickle",
        ]

    def test_the_history_runs_inside_the_window_only(self, cuda: Allocator, place: Capture) -> None:
        """Arming does not switch the history on. The snapshot is taken before the history is switched off,
        which discards it.
        """
        backend = MemoryBackend()
        backend.arm()
        assert cuda.calls == []
        backend.start(place)
        assert cuda.calls == ["on"]
        export = backend.stop(place, ())
        assert cuda.calls == ["on", "snapshot", "off"]
        export()
        assert cuda.calls == ["on", "snapshot", "off"]

    @pytest.mark.parametrize(
        ("options", "asked"),
        [
            ({}, {"context": "alloc", "stacks": "python", "max_entries": 100_000}),
            (
                {"context": "none", "stacks": "all", "max_entries": 7},
                {"context": None, "stacks": "all", "max_entries": 7},
            ),
        ],
    )
    def test_the_options_reach_torch(
        self, cuda: Allocator, place: Capture, options: dict[str, Any], asked: dict[str, Any]
    ) -> None:
        """The options reach torch; the history always has a limit."""
        backend = MemoryBackend(MemoryOptions(**options))
        backend.start(place)
        backend.abort()
        assert cuda.switched[-1] == asked

    def test_the_latest_entries_are_kept(self, cuda: Allocator, place: Capture) -> None:
        """The history keeps only its latest entries, up to the limit. The peak does not depend on the
        limit.
        """

        def body() -> None:
            for _ in range(10):
                cuda.alloc(MIB)

        snapshot, summary = recorded(MemoryBackend(MemoryOptions(max_entries=3)), place, body)
        assert snapshot.events == 3
        assert content(place, summary)["devices"][0]["history_peak_bytes"] == 10 * MIB

    def test_a_torch_that_cannot_bound_it_is_refused(
        self, cuda: Allocator, place: Capture, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """An old torch whose history cannot be limited is refused, and its function is not called."""

        def older(enabled: bool, record_context: bool = True, trace_alloc_max_entries: int = 1) -> None:
            raise AssertionError("it was not to be called")

        monkeypatch.setattr(torch.cuda.memory, "_record_memory_history", older)
        with pytest.raises(BackendError, match="cannot limit its allocation history"):
            MemoryBackend().start(place)
        assert not history._holder

    def test_a_process_that_has_not_used_cuda(self, cuda: Allocator, place: Capture, monkeypatch) -> None:
        """If the process has not used CUDA, the start raises BackendError with that reason."""
        monkeypatch.setattr(torch.cuda, "_initialized", False)
        backend = MemoryBackend(MemoryOptions(stacks="all"))
        assert backend.probe() is None
        backend.arm()
        with pytest.raises(BackendError, match="has not used CUDA yet"):
            backend.start(place)

    def test_c_plus_plus_frames_are_made_ready_once(
        self, cuda: Allocator, place: Capture, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """torch loads its unwinder at the first history with C++ frames. The first arm does that once."""
        monkeypatch.setattr(MemoryBackend, "_is_warm", False)
        backend = MemoryBackend(MemoryOptions(stacks="all"))
        backend.arm()
        assert cuda.calls == ["on", "off"]
        backend.arm()
        assert cuda.calls == ["on", "off"]


class TestOthers:
    def test_another_codes_history_is_left_alone(self, cuda: Allocator, place: Capture) -> None:
        """A history of other code makes the backend busy and stays on."""
        torch.cuda.memory._record_memory_history(max_entries=5)
        backend = MemoryBackend()
        with pytest.raises(Busy, match="another allocation history"):
            backend.arm()
        with pytest.raises(Busy, match="another allocation history"):
            backend.start(place)
        backend.abort()
        assert cuda.on
        assert cuda.calls == ["on"]

    def test_a_history_switched_off_inside_the_window_is_reported(
        self, cuda: Allocator, place: Capture
    ) -> None:
        """If other code switches the history off, the allocations so far are kept, and the export is
        incomplete.
        """
        cuda.alloc(MIB)
        with pytest.raises(
            Incomplete, match="switched the allocation history off inside this window"
        ) as caught:
            recorded(MemoryBackend(), place, lambda: torch.cuda.memory._record_memory_history(None))
        assert len(content(place, caught.value.artifacts[0])["segments"]) == 1

    def test_only_one_of_two_memory_backends_records(self, cuda: Allocator, place: Capture) -> None:
        """While one memory backend records, a second one is busy, because torch has one history. The
        second one's abort leaves the history on.
        """
        first, second = MemoryBackend(), MemoryBackend(MemoryOptions(max_entries=5))
        first.start(place)
        with pytest.raises(Busy, match="another capture"):
            second.start(place)
        second.abort()
        assert cuda.on
        first.abort()
        assert not cuda.on

    def test_a_snapshot_that_fails_leaves_nothing_on(
        self, cuda: Allocator, place: Capture, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """If the snapshot fails, the history is switched off, the error is raised, and the next window
        records.
        """
        backend = MemoryBackend()
        with monkeypatch.context() as broken:
            backend.start(place)
            broken.setattr(torch.cuda.memory, "_snapshot", lambda: 1 / 0)
            with pytest.raises(BackendError, match="no snapshot of CUDA's allocator: ZeroDivisionError"):
                backend.stop(place, ())
        assert not cuda.on
        assert recorded(backend, place, lambda: cuda.alloc(MIB))[0].events == 1

    def test_together_with_torch(self, cuda: Allocator, session) -> None:
        """One capture of torch and memory has a trace, a snapshot and a summary."""
        run = session(backend=["torch", "memory"])
        with stepprof.profile_step(2, role="actor"), stepprof.region("forward"):
            cuda.alloc(MIB)
            torch.ones(4).add_(1)
        (window,) = ended(run)
        assert (window["backend"], window["status"], window["error"]) == ("torch+memory", "complete", None)
        kinds = [artifact["kind"] for artifact in window["artifacts"]]
        assert kinds == ["torch-trace", "memory-snapshot", "memory-summary"]
        assert cuda.calls == ["on", "snapshot", "off"]


class TestOutOfMemory:
    def test_a_snapshot_outside_every_window(self, cuda: Allocator, session, log) -> None:
        """An out-of-memory error in a step that is not selected reaches the user. Its snapshot is in the
        manifest and the log, under its step and role.
        """
        run = session(memory={"on_oom": True})
        cuda.alloc(1000 * MIB)
        with pytest.raises(torch.OutOfMemoryError), stepprof.profile_step(7, role="actor"):
            cuda.alloc(100 * MIB)
        (window,) = windows(run)
        assert (window["step"], window["role"], window["status"]) == (7, "actor", "complete")
        assert window["error"].startswith(
            f"out of memory on CUDA device 0: {100 * MIB:,} bytes requested, {24 * MIB:,} of {1024 * MIB:,} free"
        )
        snapshot, summary = window["artifacts"]
        table = pickle.loads((run.path / "step-000007" / snapshot["path"]).read_bytes())
        assert table["stepprof"]["out_of_memory"]["asked_bytes"] == 100 * MIB
        assert [segment["requested_size"] for segment in table["segments"]] == [1000 * MIB]
        reported = json.loads((run.path / "step-000007" / summary["path"]).read_text())
        assert reported["devices"][0]["num_ooms"] == 1
        (line,) = (line for line in log if line["event"] == "memory.exhausted")
        assert (line["step"], line["role"], line["snapshot"]) == (7, "actor", snapshot["path"])
        assert cuda.calls == ["snapshot"], "no history runs outside a window"

    def test_only_a_few_snapshots_are_taken_in_a_run(self, cuda: Allocator, session) -> None:
        """`on_oom_limit` limits the snapshots, so that a job with many errors does not fill the disk."""
        run = session(memory={"on_oom": True, "on_oom_limit": 2})
        for _ in range(5):
            with pytest.raises(torch.OutOfMemoryError), stepprof.profile_step(1):
                cuda.alloc(2000 * MIB)
        assert len(ended(run)) == 2

    def test_only_roles_and_ranks_that_enable_it_take_snapshots(self, cuda: Allocator, session) -> None:
        """If one role enables `on_oom`, windows of other roles and without a role take no snapshot."""
        run = session(roles={"actor": {"memory": {"on_oom": True}}, "ref": {"backend": "null"}})
        for role in ("ref", None, "actor"):
            with pytest.raises(torch.OutOfMemoryError), stepprof.profile_step(1, role=role):
                cuda.alloc(2000 * MIB)
        assert [window["role"] for window in ended(run)] == ["actor"]

    @pytest.mark.parametrize(
        "config", [{"ranks": "1"}, {"steps": "none"}, {"enabled": False}, {"memory": {}}]
    )
    def test_no_observer_without_on_oom(self, cuda: Allocator, session, config: dict[str, Any]) -> None:
        """If no role of this rank records out-of-memory errors, torch gets no observer."""
        session(**{"memory": {"on_oom": True}, **config})
        assert cuda.observers == []

    def test_on_oom_without_the_backend_is_reported(self, cuda: Allocator, session, log) -> None:
        """`on_oom` without the memory backend has no effect, which is logged."""
        session(backend="torch", memory={"on_oom": True})
        assert cuda.observers == []
        assert "memory.on_oom_ignored" in {line["event"] for line in log}

    def test_the_observer_is_attached_once_and_idle_after_the_end(self, cuda: Allocator, session) -> None:
        """torch cannot remove an observer, so the process attaches one, which takes no snapshot between
        sessions.
        """
        first = session(memory={"on_oom": True})
        stepprof.shutdown()
        with pytest.raises(torch.OutOfMemoryError):
            cuda.alloc(2000 * MIB)
        second = session(memory={"on_oom": True})
        with pytest.raises(torch.OutOfMemoryError):
            cuda.alloc(2000 * MIB)
        assert len(cuda.observers) == 1
        assert first.path == second.path
        assert [window["step"] for window in ended(second)] == [0]

    def test_before_cuda_is_used(self, cuda: Allocator, session, monkeypatch) -> None:
        """The observer and the history outside windows begin when the process first uses CUDA."""
        monkeypatch.setattr(torch.cuda, "_initialized", False)
        run = session(memory={"on_oom": True, "on_oom_entries": 50})
        assert (cuda.observers, cuda.calls) == ([], [])
        cuda.initialize()
        assert cuda.switched == [{"context": "alloc", "stacks": "python", "max_entries": 50}]
        cuda.alloc(MIB)
        with pytest.raises(torch.OutOfMemoryError), stepprof.profile_step(1):
            cuda.alloc(2000 * MIB)
        (window,) = ended(run)
        snapshot = window["artifacts"][0]
        table = pickle.loads((run.path / "step-000001" / snapshot["path"]).read_bytes())
        assert [entry["action"] for entry in table["device_traces"][0]] == ["alloc", "oom"]
        assert table["segments"][0]["frames"], "who allocated it is known"
        assert not cuda.on, "the run is over"

    def test_the_history_outside_windows_pauses_for_a_window(self, cuda: Allocator, session) -> None:
        """The window's snapshot has only the window's allocations. Afterwards the history outside windows
        continues.
        """
        run = session(memory={"on_oom": True, "on_oom_entries": 50, "max_entries": 9})
        cuda.alloc(MIB)
        with stepprof.profile_step(2):
            cuda.alloc(2 * MIB)
        assert cuda.on
        (window,) = ended(run)
        assert (window["status"], window["artifacts"][0]["events"]) == ("complete", 1)
        assert [switch["max_entries"] for switch in cuda.switched] == [50, 9, 50]
        assert cuda.calls[-1] == "off"

    def test_an_error_inside_a_window_gives_both_snapshots(self, cuda: Allocator, session) -> None:
        """An error inside a window gives a snapshot of that moment and the window's own. The window has
        the body's error.
        """
        run = session(memory={"on_oom": True})
        with pytest.raises(torch.OutOfMemoryError), stepprof.profile_step(2, role="actor"):
            cuda.alloc(2000 * MIB)
        window, moment = ended(run)
        assert window["body_error"].startswith("OutOfMemoryError: CUDA out of memory")
        assert window["status"] == moment["status"] == "complete"
        paths = [artifact["path"] for artifact in window["artifacts"] + moment["artifacts"]]
        assert len(set(paths)) == 4

    def test_a_failed_snapshot_does_not_reach_the_user(
        self, cuda: Allocator, session, log, monkeypatch
    ) -> None:
        """If the snapshot fails, the user gets torch's error, and the manifest and the log have the
        reason.
        """
        run = session(memory={"on_oom": True})
        monkeypatch.setattr(torch.cuda.memory, "_snapshot", lambda: 1 / 0)
        with pytest.raises(torch.OutOfMemoryError), stepprof.profile_step(1):
            cuda.alloc(2000 * MIB)
        (window,) = ended(run)
        assert window["status"] == "failed"
        assert "none could be taken: ZeroDivisionError" in window["error"]
        assert "memory.snapshot_failed" in {line["event"] for line in log}

    def test_a_torch_without_observers(self, cuda: Allocator, session, log, monkeypatch) -> None:
        """A torch without observers is reported, and windows record as usual."""
        monkeypatch.delattr(torch._C, "_cuda_attach_out_of_memory_observer")
        run = session(memory={"on_oom": True})
        with stepprof.profile_step(2):
            cuda.alloc(MIB)
        (window,) = ended(run)
        assert window["status"] == "complete"
        assert "memory.snapshot_failed" in {line["event"] for line in log}


class TestOptions:
    @pytest.mark.parametrize(
        ("options", "message"),
        [
            (
                {"on_oom_entries": 5},
                "memory.on_oom_entries = 5: has no effect without on_oom = true; did you mean 0?",
            ),
            ({"context": "allocs"}, 'memory.context = "allocs": not known; did you mean "alloc"?'),
            ({"stacks": "c++"}, 'memory.stacks = "c++": not known (one of: python, all)'),
            ({"on_oom_limit": 0}, "memory.on_oom_limit = 0: too small; did you mean 1?"),
            ({"with_stack": True}, "memory.with_stack = true: unknown key"),
        ],
    )
    def test_invalid_options_are_refused(self, options: dict[str, Any], message: str) -> None:
        """The error names the key and the value, and lists or suggests valid ones."""
        with pytest.raises(ConfigError, match=re.escape(message)):
            stepprof.Config(memory=options)


class TestReading:
    def test_every_reader_of_a_run_accepts_it(
        self, cuda: Allocator, session, tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        """`check`, `show`, `merge` and `report` read a step with a trace and a snapshot. `check` and
        `show` also read one with only an out-of-memory snapshot.
        """
        run = session(backend=["torch", "memory"], memory={"on_oom": True})
        with pytest.raises(torch.OutOfMemoryError), stepprof.profile_step(1, role="actor"):
            cuda.alloc(2000 * MIB)
        with stepprof.profile_step(2, role="actor"), stepprof.region("forward"):
            cuda.alloc(MIB)
            torch.ones(4).add_(1)
        stepprof.shutdown()
        for command in (
            ["check"],
            ["show", "--step", "1"],
            ["show", "--step", "2"],
            ["merge", "--step", "2"],
            ["report", "--step", "2"],
        ):
            assert main([command[0], str(run.path), *command[1:]]) == 0, command
        out = capsys.readouterr().out
        assert "out of memory on CUDA device 0" in out
        assert "test_backend.py" in out


class TestElsewhere:
    def test_an_error_on_another_thread_belongs_to_the_open_window(self, cuda: Allocator, session) -> None:
        """An out-of-memory error on a thread without a context belongs to the open window."""
        run = session(memory={"on_oom": True})
        caught: list[BaseException] = []

        def work() -> None:
            try:
                cuda.alloc(2000 * MIB)
            except torch.OutOfMemoryError as error:
                caught.append(error)

        with stepprof.profile_step(5, role="critic"):
            thread = threading.Thread(target=work)
            thread.start()
            thread.join()
        assert len(caught) == 1
        assert [(window["step"], window["role"]) for window in ended(run)] == [(5, "critic")]

    @pytest.mark.skipif(not hasattr(os, "fork"), reason="this system cannot fork")
    @pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
    def test_a_forked_process(self, cuda: Allocator, session) -> None:
        """A forked child has no history, and its out-of-memory errors do not appear in the parent's run."""
        run = session(memory={"on_oom": True})
        pid = os.fork()
        if pid == 0:
            try:
                cuda.alloc(2000 * MIB)
            except torch.OutOfMemoryError:
                os._exit(0 if history._holder is None else 1)
            os._exit(2)
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
        assert ended(run) == []

    def test_two_errors_at_once_take_one_snapshot(self, cuda: Allocator, session) -> None:
        """While one thread takes a snapshot, a second error takes none and does not wait."""
        run = session(memory={"on_oom": True})
        (observer,) = cuda.observers
        inside = threading.Event()
        go_on = threading.Event()
        snapshot = cuda.snapshot

        def slow(pool: object) -> dict[str, Any]:
            inside.set()
            go_on.wait(20)
            return snapshot(pool)

        torch._C._cuda_memorySnapshot = slow
        thread = threading.Thread(target=observer, args=(0, 1, 2, 1))
        thread.start()
        inside.wait(20)
        observer(0, 1, 2, 1)
        go_on.set()
        thread.join()
        assert len(ended(run)) == 1
