"""The torch backend with the real torch.profiler. Scenarios that may end a process run in a separate one,
which must still be able to record after each.
"""

from __future__ import annotations

import gzip
import json
import os
import subprocess
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from pytest_mock import MockerFixture
from structlog.testing import capture_logs

pytest.importorskip("torch")

import torch

from stepprof.backends.base import Busy, ExportError
from stepprof.backends.torch import backend as backend_module
from stepprof.backends.torch.api import device_in_use
from stepprof.backends.torch.backend import TorchBackend
from stepprof.config.options.torch import TorchOptions
from stepprof.errors import BackendError
from stepprof.recording.export.executor import Exporter
from stepprof.recording.export.job import ExportResult
from stepprof.run.model import Annotation, Artifact, Capture, Window

pytestmark = pytest.mark.torch

PRELUDE = """
import gc, gzip, json, os, sys, threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
import torch
from stepprof.backends.base import Busy, ExportError
from stepprof.backends.torch.backend import TorchBackend
from stepprof.errors import BackendError
from stepprof.config.options.torch import TorchOptions
from stepprof.run.model import Capture, Window

ones = torch.ones(4)
elsewhere = ThreadPoolExecutor(1)
folder = Path("step-000002")
(folder / "actor").mkdir(parents=True, exist_ok=True)
taken = iter(range(1000))

def capture():
    return Capture(Window(2, "actor"), folder, f"actor/rank-{next(taken)}", {"step": 2, "role": "actor"})

def on_other_thread(function, *args):
    return elsewhere.submit(function, *args).result()

def here(function, *args):
    return function(*args)

def ops(artifacts):
    trace = json.loads(gzip.decompress((folder / artifacts[0].path).read_bytes()))
    return sum(event["name"] == "aten::add_" for event in trace["traceEvents"])

def records(backend, count=3):
    place = capture()
    backend.start(place)
    for _ in range(count):
        ones.add_(1)
    return ops(backend.stop(place, ())()) == count

def refusal(function, *args):
    try:
        function(*args)
    except BackendError as error:
        return f"{type(error).__name__}: {error}"
    return None

def exported(profiler, path="theirs.json"):
    profiler.export_chrome_trace(path)
    json.loads(Path(path).read_text())
    Path(path).unlink()
    return True
"""

OPTIONS = {"all": "TorchOptions()", "bound": "TorchOptions(all_threads=False, trace_only=False)"}


def _cpu_seconds(act: Any) -> float:
    before = time.thread_time()
    act()
    return time.thread_time() - before


@pytest.fixture(scope="module", autouse=True)
def warmed_up() -> None:
    """Import torch's slow modules once."""
    TorchBackend().warm_up()


@pytest.fixture
def place(tmp_path: Path) -> Capture:
    folder = tmp_path / "step-000002"
    (folder / "actor").mkdir(parents=True)
    return at(folder)


def at(folder: Path, stem: str = "actor/rank-0") -> Capture:
    metadata = {"step": 2, "role": "actor", "rank": 0, "world_size": 1, "host": 'h"o\\st'}
    return Capture(Window(2, "actor"), folder, stem, metadata)


def recorded(
    backend: TorchBackend, place: Capture, body: Callable[[], object], *annotations: Annotation
) -> tuple[Artifact, ...]:
    backend.start(place)
    body()
    return backend.stop(place, annotations)()


def trace_of(place: Capture, artifact: Artifact) -> Any:
    data = (place.folder / artifact.path).read_bytes()
    assert len(data) == artifact.bytes
    trace = json.loads(gzip.decompress(data))
    assert len(trace["traceEvents"]) == artifact.events
    return trace


def left(place: Capture) -> list[str]:
    return sorted(path.name for path in (place.folder / "actor").iterdir())


def named(trace: Mapping[str, Any], name: str) -> list[dict[str, Any]]:
    return [event for event in trace["traceEvents"] if event.get("name") == name]


def work(count: int = 3) -> None:
    for _ in range(count):
        torch.ones(4).add_(1)


class TestOneCapture:
    def test_leaves_one_verified_artifact(self, place: Capture) -> None:
        """The trace has the expected name, is compressed and complete, and contains its metadata. No other
        file is left.
        """
        (artifact,) = recorded(TorchBackend(), place, work)
        assert (artifact.path, artifact.kind) == ("actor/rank-0.trace.json.gz", "torch-trace")
        trace = trace_of(place, artifact)
        assert len(named(trace, "aten::add_")) == 3
        assert trace["stepprof"] == place.metadata
        assert trace["traceName"] == "step-000002/actor/rank-0.trace.json.gz"
        assert left(place) == ["rank-0.trace.json.gz"]

    def test_annotations_are_on_the_trace_s_clock(self, place: Capture) -> None:
        """An annotation around an op encloses the op in the trace, within 100 µs."""
        import time

        backend = TorchBackend()
        backend.start(place)
        start = time.time_ns()
        torch.ones(4).add_(1)
        end = time.time_ns()
        note = Annotation("around", "region", start, end, threading.get_native_id(), {"batch": 64})
        (artifact,) = backend.stop(place, [note])()
        trace = trace_of(place, artifact)
        begin, finish = named(trace, "around")
        (op,) = named(trace, "aten::add_")
        assert begin["ts"] - 100 <= op["ts"] <= op["ts"] + op["dur"] <= finish["ts"] + 100
        assert (begin["pid"], begin["tid"]) == (op["pid"], op["tid"])
        assert begin["args"]["batch"] == 64

    def test_marks_are_annotations_with_any_name(self, place: Capture) -> None:
        """A range keeps its name and is an annotation, even if torch would change the name or write an
        invalid file.
        """
        names = ["update", 'q"uote', "back\\slash", "new\nline", "é漢"]
        backend = TorchBackend()

        def body() -> None:
            for name in [*names, "update"]:
                context = backend.mark(name)
                assert context is not None
                with context:
                    work(1)

        assert backend.mark("too early") is None
        (artifact,) = recorded(backend, place, body)
        trace = trace_of(place, artifact)
        assert [len(named(trace, name)) for name in names] == [2, 1, 1, 1, 1]
        assert {named(trace, name)[0]["cat"] for name in names} == {"user_annotation"}

    def test_a_hostile_range_name_does_not_break_the_file(self, place: Capture) -> None:
        """torch does not escape a quotation mark in a range's name, but the artifact is valid."""

        def body() -> None:
            with torch.profiler.record_function('say "hi"'):
                work(1)

        (artifact,) = recorded(TorchBackend(), place, body)
        assert len(named(trace_of(place, artifact), 'say "hi"')) == 1

    def test_never_overwrites(self, place: Capture) -> None:
        """A second capture of the same name gets a suffix."""
        backend = TorchBackend()
        paths = [recorded(backend, place, work)[0].path for _ in range(2)]
        assert paths == ["actor/rank-0.trace.json.gz", "actor/rank-0.2.trace.json.gz"]

    @pytest.mark.parametrize("name", ['q"uote', "back\\slash", "new\nline", "é漢"])
    def test_folders_with_any_name(self, tmp_path: Path, name: str) -> None:
        """Kineto changes some paths, but the artifact is in the given folder."""
        folder = tmp_path / name / "step-000002"
        (folder / "actor").mkdir(parents=True)
        place = at(folder)
        (artifact,) = recorded(TorchBackend(), place, work)
        assert len(named(trace_of(place, artifact), "aten::add_")) == 3

    def test_exports_of_several_captures_in_any_order(self, place: Capture) -> None:
        """Exports may run in any order and during the next capture; each has the events of its own
        capture.
        """
        backend, jobs = TorchBackend(), []
        for count in (2, 5):
            backend.start(place)
            work(count)
            jobs.append(backend.stop(place, ()))
        backend.start(place)
        counts = [len(named(trace_of(place, job()[0]), "aten::add_")) for job in reversed(jobs)]
        (last,) = backend.stop(place, ())()
        assert counts == [5, 2]
        assert named(trace_of(place, last), "aten::add_") == []

    def test_a_forked_child_writes_the_artifact(self, place: Capture) -> None:
        """A forked child writes a complete artifact while torch threads of the parent are busy."""
        done = threading.Event()

        def busy() -> None:
            while not done.is_set():
                torch.ones(64, 64) @ torch.ones(64, 64)

        threads = [threading.Thread(target=busy) for _ in range(3)]
        for thread in threads:
            thread.start()
        results: list[ExportResult] = []
        exporter, backend = Exporter(), TorchBackend()
        try:
            for number in range(4):
                here = at(place.folder, f"actor/rank-{number}")
                backend.start(here)
                work()
                exporter.submit("actor/0", backend.stop(here, ()), backend.export_mode(), results.append)
            assert exporter.wait(60)
        finally:
            done.set()
            for thread in threads:
                thread.join()
        assert [result.error for result in results] == [None] * 4
        assert all(len(named(trace_of(place, result.artifacts[0]), "aten::add_")) == 3 for result in results)
        assert len(left(place)) == 4


class TestOptions:
    @pytest.mark.parametrize(
        ("options", "category", "argument"),
        [
            ({"profile_memory": True}, "cpu_instant_event", "Bytes"),
            ({"with_stack": True}, "python_function", "Python id"),
            ({"record_shapes": True}, "cpu_op", "Input Dims"),
            ({"with_flops": True}, "cpu_op", "Input Dims"),
            ({"with_modules": True}, "cpu_op", "External id"),
        ],
    )
    def test_each_option_reaches_torch(
        self, place: Capture, options: dict[str, bool], category: str, argument: str
    ) -> None:
        """The trace contains the events or arguments that the option promises."""
        (artifact,) = recorded(TorchBackend(TorchOptions(**options)), place, work)
        events = trace_of(place, artifact)["traceEvents"]
        assert any(argument in event.get("args", {}) for event in events if event.get("cat") == category)

    def test_all_threads_or_one(self, place: Capture) -> None:
        """By default every thread is in the trace, also one that started earlier. A bound capture contains
        only the thread that began it.
        """
        go, done = threading.Event(), threading.Event()

        def other() -> None:
            go.wait()
            work(4)
            done.set()

        def body() -> None:
            go.set()
            done.wait()
            work(1)

        counts = []
        for all_threads in (True, False):
            go.clear(), done.clear()
            thread = threading.Thread(target=other)
            thread.start()
            backend = TorchBackend(TorchOptions(all_threads=all_threads))
            assert backend.thread_bound is not all_threads
            (artifact,) = recorded(backend, place, body)
            thread.join()
            counts.append(len(named(trace_of(place, artifact), "aten::add_")))
        assert counts == [5, 1]

    def test_memory_binds_to_the_thread(self) -> None:
        """A capture with memory events is bound to a thread, because torch records none for all threads."""
        assert TorchBackend(TorchOptions(profile_memory=True)).thread_bound
        assert not TorchBackend(TorchOptions()).thread_bound

    def test_an_unavailable_activity_is_named(self) -> None:
        """torch would silently record without an unavailable activity. The reason names it and the
        available ones.
        """
        backend = TorchBackend(TorchOptions(activities=["cpu", "hpu"]))
        assert "hpu cannot be recorded by torch" in str(backend.probe())
        with pytest.raises(BackendError, match="only cpu"):
            backend.arm()

    def test_activities_by_name(self, place: Capture) -> None:
        """An available activity can be selected by its name."""
        backend = TorchBackend(TorchOptions(activities=["cpu"]))
        assert backend.probe() is None
        (artifact,) = recorded(backend, place, work)
        assert len(named(trace_of(place, artifact), "aten::add_")) == 3


class TestRefusals:
    def test_stop_without_start(self, place: Capture) -> None:
        """A stop without a capture raises BackendError, before and after a capture."""
        backend = TorchBackend()
        with pytest.raises(BackendError, match="idle"):
            backend.stop(place, ())
        recorded(backend, place, work)
        with pytest.raises(BackendError, match="idle"):
            backend.stop(place, ())

    def test_start_twice(self, place: Capture) -> None:
        """A second start is refused, for this backend and for another one of the process. The running
        capture continues.
        """
        backend, other = TorchBackend(), TorchBackend()
        backend.start(place)
        with pytest.raises(BackendError, match="recording already"):
            backend.start(place)
        for attempt in (lambda: other.start(place), other.arm):
            with pytest.raises(Busy, match="another stepprof backend"):
                attempt()
        work()
        (artifact,) = backend.stop(place, ())()
        assert len(named(trace_of(place, artifact), "aten::add_")) == 3

    def test_a_bound_capture_is_stopped_by_its_thread_alone(self, place: Capture) -> None:
        """Another thread cannot stop a bound capture; the error names both threads. The owner can still
        stop it.
        """
        backend = TorchBackend(TorchOptions(all_threads=False))
        backend.start(place)
        work()
        errors: list[BaseException] = []

        def stop() -> None:
            try:
                backend.stop(place, ())
            except BackendError as error:
                errors.append(error)
            backend.abort()

        thread = threading.Thread(target=stop, name="stranger")
        thread.start()
        thread.join()
        assert "MainThread" in str(errors[0])
        assert "stranger" in str(errors[0])
        (artifact,) = backend.stop(place, ())()
        assert len(named(trace_of(place, artifact), "aten::add_")) == 3

    def test_abort_is_idempotent(self, place: Capture) -> None:
        """An abort is allowed while idle, while recording and twice. The next capture records."""
        backend = TorchBackend()
        backend.abort()
        backend.start(place)
        backend.abort()
        backend.abort()
        (artifact,) = recorded(backend, place, work)
        assert len(named(trace_of(place, artifact), "aten::add_")) == 3


class TestExportFailures:
    def test_a_vanished_folder_is_named_in_the_error(self, place: Capture) -> None:
        """Kineto reports no error for a missing folder. The export error names the folder and the cause,
        and the next capture records.
        """
        backend = TorchBackend()
        backend.start(place)
        job = backend.stop(place, ())
        (place.folder / "actor").rmdir()
        with pytest.raises(ExportError, match=r"step-000002/actor: No such file or directory"):
            job()
        (place.folder / "actor").mkdir()
        (artifact,) = recorded(backend, place, work)
        assert len(named(trace_of(place, artifact), "aten::add_")) == 3

    def test_a_second_export_is_an_error(self, place: Capture) -> None:
        """torch exports a session once. A second export raises, and the first artifact is unchanged."""
        backend = TorchBackend()
        backend.start(place)
        job = backend.stop(place, ())
        (artifact,) = job()
        with pytest.raises(Exception, match="already saved"):
            job()
        assert left(place) == ["rank-0.trace.json.gz"]
        trace_of(place, artifact)

    @pytest.fixture
    def tiny_disk(self, tmp_path: Path) -> Iterator[Path]:
        """Mount a file system of 256 kB."""
        disk = tmp_path / "disk"
        disk.mkdir()
        mounted = subprocess.run(
            ["mount", "-t", "tmpfs", "-o", "size=256k", "tmpfs", str(disk)], capture_output=True, check=False
        )
        if mounted.returncode:
            pytest.skip("may not mount a file system")
        yield disk
        subprocess.run(["umount", str(disk)], check=True)

    @pytest.mark.parametrize("mode", ["inline", "fork"])
    def test_a_full_disk_leaves_no_half_written_file(self, tiny_disk: Path, mode: str) -> None:
        """The error has the system's reason, no incomplete file stays, and the next capture records."""
        folder = tiny_disk / "step-000002"
        (folder / "actor").mkdir(parents=True)
        place, backend, exporter = at(folder), TorchBackend(), Exporter()
        results: list[ExportResult] = []
        for count in (2000, 3):
            backend.start(place)
            work(count)
            exporter.submit("actor/0", backend.stop(place, ()), mode, results.append)
            assert exporter.wait(60)
        assert "no space left" in str(results[0].error).lower()
        assert str(folder / "actor") in str(results[0].error)
        assert results[1].error is None
        assert left(place) == sorted(Path(a.path).name for result in results for a in result.artifacts)

    def test_a_read_only_disk(self, tiny_disk: Path) -> None:
        """The export error names a file system that has become read-only."""
        folder = tiny_disk / "step-000002"
        (folder / "actor").mkdir(parents=True)
        backend = TorchBackend()
        backend.start(at(folder))
        job = backend.stop(at(folder), ())
        subprocess.run(["mount", "-o", "remount,ro", str(tiny_disk)], check=True)
        with pytest.raises(ExportError, match="Read-only file system"):
            job()

    def test_an_incomplete_file_is_kept_and_reported(
        self, place: Capture, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """If torch's file is cut off, it is kept, and the error has its artifact."""
        backend = TorchBackend()
        backend.start(place)
        work()
        export = torch.autograd.profiler.profile.export_chrome_trace

        def cut_short(self: Any, path: str, *args: Any) -> None:
            export(self, path, *args)
            os.truncate(path, Path(path).stat().st_size - 300)

        monkeypatch.setattr(torch.autograd.profiler.profile, "export_chrome_trace", cut_short)
        with pytest.raises(ExportError, match="incomplete") as caught:
            backend.stop(place, ())()
        (artifact,) = caught.value.artifacts
        assert (place.folder / artifact.path).stat().st_size == artifact.bytes


class TestTorchFails:
    """torch's exceptions are reported, and the backend can record again."""

    @pytest.mark.parametrize("step", ["prepare_trace", "start_trace"])
    @pytest.mark.parametrize("error", [RuntimeError("CUPTI"), KeyboardInterrupt()])
    def test_torch_fails_at_the_start(
        self, place: Capture, monkeypatch: pytest.MonkeyPatch, step: str, error: BaseException
    ) -> None:
        """If the start raises or is interrupted, the session is cancelled, and the next capture records."""
        backend = TorchBackend()

        def fail(_: object) -> None:
            raise error

        with monkeypatch.context() as patch:
            patch.setattr(torch.profiler._KinetoProfile, step, fail)
            with pytest.raises(BackendError if isinstance(error, Exception) else KeyboardInterrupt):
                backend.start(place)
        (artifact,) = recorded(backend, place, work)
        assert len(named(trace_of(place, artifact), "aten::add_")) == 3

    def test_torch_fails_at_the_warm_up(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """A failed warm-up raises BackendError, and the next warm-up can succeed."""
        monkeypatch.setattr(TorchBackend, "_is_warm", False)
        backend = TorchBackend()

        def fail(_: object) -> None:
            raise RuntimeError("CUPTI")

        with monkeypatch.context() as patch:
            patch.setattr(torch.profiler._KinetoProfile, "start_trace", fail)
            with pytest.raises(BackendError, match="did not start: RuntimeError: CUPTI"):
                backend.warm_up()
        assert not TorchBackend._is_warm
        backend.warm_up()
        assert TorchBackend._is_warm

    def test_arming_without_a_device_looks_at_nothing_that_takes_long(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Arming takes less than a quarter of the time of a walk over all objects, because the training
        thread waits for it.
        """
        monkeypatch.setattr(TorchBackend, "_is_warm", False)
        backend = TorchBackend()
        assert backend.probe() is None
        assert backend._api is not None
        walk = min(_cpu_seconds(backend._api.foreign) for _ in range(3))
        assert min(_cpu_seconds(backend.arm) for _ in range(3)) < walk / 4
        assert not TorchBackend._is_warm

    @pytest.mark.parametrize("by", ["stop", "abort"])
    def test_torch_fails_at_the_stop(self, place: Capture, monkeypatch: pytest.MonkeyPatch, by: str) -> None:
        """If torch raises at the end of its stop, `stop` raises BackendError and `abort` does not raise.
        The next capture records.
        """
        backend = TorchBackend()
        stop = torch.profiler._KinetoProfile.stop_trace

        def fail(self: Any) -> None:
            stop(self)
            raise RuntimeError("device lost")

        backend.start(place)
        with monkeypatch.context() as patch:
            patch.setattr(torch.profiler._KinetoProfile, "stop_trace", fail)
            if by == "abort":
                backend.abort()
            else:
                with pytest.raises(BackendError, match="did not stop: RuntimeError: device lost"):
                    backend.stop(place, ())
        (artifact,) = recorded(backend, place, work)
        assert len(named(trace_of(place, artifact), "aten::add_")) == 3

    def test_nothing_is_written(self, place: Capture, mocker: MockerFixture) -> None:
        """If Kineto writes no file and reports no error, the export error names the folder."""
        backend = TorchBackend()
        backend.start(place)
        job = backend.stop(place, ())
        mocker.patch.object(torch.autograd.profiler.profile, "export_chrome_trace", return_value=None)
        with pytest.raises(ExportError, match="actor: the trace is empty"):
            job()
        assert left(place) == []


class TestDevices:
    """The activities for devices, tested without a device."""

    def test_only_devices_in_use_are_recorded(self, mocker: MockerFixture) -> None:
        """By default a device that the process does not use is not recorded. It is recorded if the
        configuration names it.
        """
        activity = torch.profiler.ProfilerActivity
        api = backend_module.TorchApi()
        mocker.patch.object(
            torch.profiler, "supported_activities", return_value={activity.CPU, activity.CUDA}
        )
        assert api.activities(None) == ({activity.CPU}, None)
        mocker.patch.object(torch.cuda, "is_available", return_value=True)
        assert api.activities(None) == ({activity.CPU}, None)
        assert api.activities(["cuda"]) == ({activity.CUDA}, None)
        mocker.patch.object(torch.cuda, "is_initialized", return_value=True)
        assert api.activities(None) == ({activity.CPU, activity.CUDA}, None)

    def test_a_device_without_a_module(self, mocker: MockerFixture) -> None:
        """An activity whose device has no module in torch is recorded only if the configuration names it."""
        activity = torch.profiler.ProfilerActivity
        api = backend_module.TorchApi()
        supported = {activity.CPU, activity.PrivateUse1}
        mocker.patch.object(torch.profiler, "supported_activities", return_value=supported)
        assert api.activities(None) == ({activity.CPU}, None)
        assert api.activities(["cpu", "privateuse1"]) == ({activity.CPU, activity.PrivateUse1}, None)

    @pytest.mark.parametrize(("initialized", "mode"), [(True, "inline"), (False, "fork"), (None, "inline")])
    def test_any_accelerator_counts(
        self, monkeypatch: pytest.MonkeyPatch, initialized: bool | None, mode: str
    ) -> None:
        """An accelerator that only `torch.accelerator` knows counts. If it does not say whether it is in
        use, it counts as used.
        """

        class Module:
            if initialized is not None:

                @staticmethod
                def is_initialized() -> bool | None:
                    return initialized

        class Kind:
            type = "novel"

        monkeypatch.setattr(torch, "novel", Module, raising=False)
        monkeypatch.setattr(torch.accelerator, "is_available", lambda: True)
        monkeypatch.setattr(torch.accelerator, "current_accelerator", Kind)
        assert TorchBackend().export_mode() == mode

    def test_without_proc_torchs_answer_decides(self, mocker: MockerFixture) -> None:
        """If the open files of the process cannot be listed, torch's own answer decides."""
        listing = mocker.patch.object(Path, "iterdir", side_effect=FileNotFoundError("/proc"))
        assert not device_in_use()
        listing.assert_called()

    def test_starting_a_device_is_reported_once(
        self, place: Capture, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """With a driver, torch's preparation starts CUDA, which forked children then cannot use. One line
        is logged; without a driver none is.
        """
        driver = tmp_path / "nvidiactl"
        monkeypatch.setattr("stepprof.backends.torch.api._DRIVERS", (str(driver),))
        monkeypatch.setattr(torch.version, "cuda", "13.0")
        backend = TorchBackend()
        with capture_logs() as lines:
            backend.start(place)
            backend.stop(place, [])
            driver.touch()
            for _ in range(2):
                backend.start(place)
                backend.stop(place, [])
        assert [line["event"] for line in lines] == ["torch.cuda_started"]
        assert "start such children with spawn" in lines[0]["reason"]

    def test_captures_with_a_device_use_slow_ranges(self, place: Capture) -> None:
        """In a capture with a device, a range is an annotation with its name unchanged."""
        backend = TorchBackend()
        backend.start(place)
        backend._on_device = True
        context = backend.mark('q"x')
        assert context is not None
        with context:
            work(1)
        (artifact,) = backend.stop(place, ())()
        assert [event["cat"] for event in named(trace_of(place, artifact), 'q"x')] == ["user_annotation"]


class TestForeignProfilers:
    @pytest.mark.parametrize("options", ["all", "bound"])
    def test_a_profiler_started_before_ours(self, warm: Any, options: str) -> None:
        """While another torch profiler runs or is prepared in any thread, the backend is busy. The other
        profiler's trace is valid.
        """
        ran = warm.run(
            PRELUDE
            + f"""
backend = TorchBackend({OPTIONS[options]})
backend.arm()
kinds = {{
    "profile": lambda: torch.profiler.profile(),
    "kineto": lambda: torch.profiler._KinetoProfile(),
    "scheduled": lambda: torch.profiler.profile(schedule=torch.profiler.schedule(wait=0, warmup=1, active=1)),
}}
for where in (here, on_other_thread):
    for kind, make in kinds.items():
        theirs = make()
        where(theirs.start)
        assert "Busy" in refusal(backend.warm_up), kind
        if kind != "scheduled":  # one that is only prepared is found by what a start looks at
            assert "is running" in refusal(backend.arm), kind
        assert "Busy" in refusal(backend.start, capture()), kind
        ones.add_(1)
        if kind == "scheduled":
            where(theirs.step)
            assert "Busy" in refusal(backend.start, capture())
        where(theirs.stop)
        assert exported(theirs), kind
        del theirs
        assert records(backend), kind
    theirs = torch.autograd.profiler.profile()
    where(theirs.__enter__)
    assert "is running" in refusal(backend.start, capture())
    where(theirs.__exit__, None, None, None)
    assert exported(theirs)
    theirs = torch.profiler._KinetoProfile()
    where(theirs.prepare_trace)
    assert "is prepared" in refusal(backend.start, capture())
    where(theirs.start_trace); where(theirs.stop_trace)
    assert exported(theirs)
    assert records(backend)
dropped = torch.profiler.profile(schedule=torch.profiler.schedule(wait=0, warmup=1, active=1))
dropped.start()
del dropped
assert records(backend)
print("end")
"""
        ).check()
        assert ran.stdout == "end\n"

    def test_a_profiler_started_inside_ours(self, warm: Any) -> None:
        """If another profiler starts inside our capture, its trace is valid and our stop fails. The next
        capture records.
        """
        ran = warm.run(
            PRELUDE
            + """
backend = TorchBackend()
backend.arm()
for where in (here, on_other_thread):
    # starts and ends inside
    place = capture(); backend.start(place); ones.add_(1)
    theirs = torch.profiler.profile(); where(theirs.start); ones.add_(1); where(theirs.stop)
    assert "ended inside" in refusal(backend.stop, place, ())
    assert exported(theirs)
    assert records(backend)
    # overlaps: still running at our end
    place = capture(); backend.start(place); ones.add_(1)
    theirs = torch.profiler.profile(); where(theirs.start); ones.add_(1)
    assert "is running" in refusal(backend.stop, place, ())
    assert "Busy" in refusal(backend.start, place)
    where(theirs.stop)
    assert exported(theirs)
    assert records(backend)
    # only prepared at our end, started afterwards
    place = capture(); backend.start(place); ones.add_(1)
    theirs = torch.profiler._KinetoProfile(); where(theirs.prepare_trace); ones.add_(1)
    assert "is prepared" in refusal(backend.stop, place, ())
    where(theirs.start_trace); ones.add_(1); where(theirs.stop_trace)
    assert exported(theirs)
    assert records(backend)
    # the same three, with an abort at our end
    for steps in (("start", "stop"), ("start",), ("prepare_trace",)):
        place = capture(); backend.start(place); ones.add_(1)
        theirs = torch.profiler._KinetoProfile()
        for step in steps: where(getattr(theirs, step))
        backend.abort()
        if steps == ("prepare_trace",): where(theirs.start_trace)
        if steps != ("start", "stop"): where(theirs.stop)
        assert exported(theirs)
        del theirs
        assert records(backend)
print("end")
"""
        ).check()
        assert ran.stdout == "end\n"

    def test_a_profiler_started_inside_a_bound_capture(self, warm: Any) -> None:
        """The same holds for a bound capture. After a profiler on another thread, this thread is busy, and
        the process does not crash.
        """
        ran = warm.run(
            PRELUDE
            + """
backend = TorchBackend(TorchOptions(all_threads=False))
backend.arm()
place = capture(); backend.start(place); ones.add_(1)
theirs = torch.profiler.profile(); theirs.start(); ones.add_(1); theirs.stop()
assert "ended inside" in refusal(backend.stop, place, ())
assert exported(theirs)
assert records(backend)
place = capture(); backend.start(place); ones.add_(1)
theirs = torch.profiler.profile(); theirs.start(); ones.add_(1)
assert "is running" in refusal(backend.stop, place, ())
theirs.stop()
assert exported(theirs)
assert records(backend)
place = capture(); backend.start(place); ones.add_(1)
theirs = torch.profiler.profile(); on_other_thread(theirs.start); on_other_thread(theirs.stop)
assert "ended inside" in refusal(backend.stop, place, ())
assert exported(theirs)
print("again", refusal(records, backend))
"""
        ).check()
        assert "again Busy" in ran.stdout


class TestThreadsAndEnds:
    def test_any_thread_may_start_stop_and_export(self, place: Capture) -> None:
        """A capture of all threads can be started, stopped and exported by different threads, five times
        in a row.
        """
        backend = TorchBackend()
        found: list[int] = []

        def run(function: Callable[[], object]) -> object:
            result: list[object] = []
            thread = threading.Thread(target=lambda: result.append(function()))
            thread.start()
            thread.join()
            return result[0]

        for _ in range(5):
            run(lambda: backend.start(place))
            work()
            job: Any = run(lambda: backend.stop(place, ()))
            artifacts: Any = run(job)
            found.append(len(named(trace_of(place, artifacts[0]), "aten::add_")))
        assert found == [3] * 5

    def test_the_owner_of_a_bound_capture_is_gone(self, warm: Any) -> None:
        """If the thread of a capture has ended, another thread can abort it, and the process records
        again.
        """
        ran = warm.run(
            PRELUDE
            + """
backend = TorchBackend(TorchOptions(profile_memory=True))
backend.arm()
thread = threading.Thread(target=lambda: backend.start(capture()))
thread.start(); thread.join()
assert "belongs to" in refusal(backend.stop, capture(), ())
backend.abort(); backend.abort()
assert records(backend)
print("end")
"""
        ).check()
        assert ran.stdout == "end\n"

    def test_a_fork_of_the_program_has_no_capture(self, place: Capture) -> None:
        """In a forked child, a stop is refused and an abort does nothing. The parent's capture continues."""
        backend = TorchBackend()
        backend.start(place)
        work()
        pid = os.fork()
        if pid == 0:
            code = 1
            try:
                try:
                    backend.stop(place, ())
                except BackendError:
                    backend.abort()
                    backend.abort()
                    code = 0
            finally:
                os._exit(code)
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
        (artifact,) = backend.stop(place, ())()
        assert len(named(trace_of(place, artifact), "aten::add_")) == 3


class TestProbe:
    @pytest.mark.parametrize(
        ("failure", "remedy"),
        [
            ("ImportError('no torch')", 'install the extra "torch"'),
            ("RuntimeError('CANN')", "TORCH_DEVICE_BACKEND_AUTOLOAD=0"),
            ("OSError('libhccl.so')", "TORCH_DEVICE_BACKEND_AUTOLOAD=0"),
        ],
    )
    def test_torch_cannot_be_imported(
        self, run_script: Callable[..., Any], failure: str, remedy: str
    ) -> None:
        """If torch is missing, or an extension breaks it, the reason names the remedy."""
        ran = run_script(
            f"""
            import sys

            class Broken:
                def find_spec(self, name, *_):
                    if name == "torch":
                        raise {failure}

            sys.meta_path.insert(0, Broken())
            from stepprof.backends.torch.backend import TorchBackend
            print(TorchBackend().probe())
            """
        ).check()
        assert remedy in ran.stdout

    def test_an_older_torch(self, warm: Any) -> None:
        """Without the newer parts of torch, captures are bound to their thread and ranges still work.
        Without Kineto the backend cannot record.
        """
        ran = warm.run(
            PRELUDE
            + """
import torch._C._profiler as parts
real = parts._ExperimentalConfig
def older(**options):
    if options: raise TypeError("incompatible constructor arguments")
    return real()
parts._ExperimentalConfig = older
del parts._RecordFunctionFast
backend = TorchBackend()
assert not backend.thread_bound and backend.probe() is None and backend.thread_bound
place = capture()
backend.start(place)
with backend.mark('q"x'): ones.add_(1)
artifacts = backend.stop(place, ())()
trace = json.loads(gzip.decompress((folder / artifacts[0].path).read_bytes()))
assert [event["cat"] for event in trace["traceEvents"] if event["name"] == 'q"x'] == ["user_annotation"]
assert records(backend)
parts._ExperimentalConfig = None
oldest = TorchBackend()
assert oldest.probe() is None and oldest.thread_bound and records(oldest)
torch.autograd.kineto_available = lambda: False
print(TorchBackend().probe())
"""
        ).check()
        assert "without Kineto" in ran.stdout


class TestExportMode:
    def test_a_child_without_a_device(self) -> None:
        """A process that uses no accelerator exports in a forked child."""
        assert not device_in_use()
        assert TorchBackend().export_mode() == "fork"

    @pytest.mark.parametrize("name", ["cuda", "xpu"])
    def test_a_process_with_a_device_exports_in_place(
        self, monkeypatch: pytest.MonkeyPatch, name: str
    ) -> None:
        """A process with a device context exports in place."""
        monkeypatch.setattr(getattr(torch, name), "is_initialized", lambda: True)
        assert TorchBackend().export_mode() == "inline"

    def test_without_fork_the_export_is_in_place(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """A system that cannot fork exports in place."""
        monkeypatch.delattr(os, "fork")
        assert TorchBackend().export_mode() == "inline"

    def test_sees_a_device_that_torch_does_not_know_of(
        self, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
    ) -> None:
        """An open device file counts as a device in use, whichever code opened it."""
        from stepprof.backends.torch import api as torch_api

        device = tmp_path / "nvidia-uvm"
        device.touch()
        monkeypatch.setattr(torch_api, "_DEVICE_FILES", (str(device),))
        assert not device_in_use()
        with device.open():
            assert device_in_use()

    def test_bytes_are_unknown(self) -> None:
        """The size is unknown, because torch does not report how much it holds."""
        assert TorchBackend().bytes_so_far() is None
        assert backend_module.TorchBackend.name == "torch"
