"""The request for each version of SGLang, according to the signature of its start, and the requests that
are refused before they are sent.
"""

from __future__ import annotations

import asyncio
import dataclasses
import gzip
import inspect
import json
import os
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from stepprof.backends.nsys.process import VARIABLE
from stepprof.backends.nsys.reports import ranges
from stepprof.config.options.engine import EngineOptions
from stepprof.remote.base import EngineFailure, EngineWindow, Stopped
from stepprof.remote.loop import remote_loop
from stepprof.remote.sglang import request as sglang_request
from stepprof.remote.sglang.driver import SglangDriver, SglangKind
from stepprof.remote.sglang.files import bring, discard
from stepprof.remote.sglang.object_link import ObjectLink
from stepprof.remote.sglang.outcome import STAGES_SECONDS
from stepprof.remote.sglang.request import Facts, Request
from stepprof.run.model import Window

# The parameters of `TokenizerManager.start_profile` in the wheels of these versions on PyPI. From 0.5.15 on it takes a request object.
OLDEST = ("output_dir", "num_steps", "activities")
STAGED = (*OLDEST, "with_stack", "record_shapes", "profile_by_stage")
STEPPED = ("output_dir", "start_step", *STAGED[1:])
MERGED = (*STEPPED, "merge_profiles", "profile_prefix", "profile_stages")
SIGNATURES = {
    "0.4.6": OLDEST,
    "0.4.7": STAGED,
    "0.4.10": STEPPED,
    "0.5.3": STEPPED,
    "0.5.6": MERGED,
    "0.5.14": MERGED,
}
NEWEST = (
    *MERGED,
    "profile_id",
    "detailed_annotations",
)


class Manager:
    """Replace the tokenizer manager of a version that cannot be installed together with the newest one. It
    has the same signature, and records its arguments.
    """

    def __init__(self, version: str, **args: Any) -> None:
        parameters = [
            inspect.Parameter(name, inspect.Parameter.POSITIONAL_OR_KEYWORD, default=None)
            for name in SIGNATURES[version]
        ]
        signature = inspect.Signature(parameters)
        self.calls: list[tuple[str, Any]] = []
        self.asked: list[dict[str, Any]] = []
        self.records = False
        self.server_args = SimpleNamespace(device="cpu", sleep_on_idle=True, tp_size=1, **args)

        async def start_profile(**given: Any) -> None:
            signature.bind(**given)
            if given.get("start_step"):  # begins no capture; refused while it records
                self.asked.append(given)
                if self.records:
                    raise RuntimeError("in other words")
                return
            self.calls.append(("start", given))

        start_profile.__signature__ = signature  # type: ignore[attr-defined]
        self.start_profile = start_profile
        if version == "0.4.6":
            self.stop_profile: Any = lambda: self.calls.append(("stop", None))
            self.asyncio_tasks: set[Any] = set()
        else:
            self.stop_profile = self._stop
            self.event_loop: asyncio.AbstractEventLoop | None = None

    leaves: str | None = None
    """The file that a stop writes into the folder of its start."""

    async def _stop(self) -> None:
        if self.leaves:
            path = Path(self.calls[-1][1]["output_dir"]) / self.leaves
            path.parent.mkdir(exist_ok=True)
            event = {"ph": "X", "name": "op", "pid": 1, "tid": 1, "ts": 1.0, "dur": 1.0}
            path.write_bytes(gzip.compress(json.dumps({"traceEvents": [event]}, indent=1).encode()))
        self.calls.append(("stop", None))


def make_window(folder: Path, options: EngineOptions, step: int = 2) -> EngineWindow:
    """Return a window of a step."""
    return EngineWindow(Window(step, "rollout"), 0, folder, "rollout/replica-0", options)


def facts(version: str = "0.5.23", fields: tuple[str, ...] = NEWEST, **more: Any) -> Facts:
    """Return what an engine on a CPU reports of itself."""
    return Facts(
        **{
            "name": "engine",
            "version": version,
            "device": "cpu",
            "sleep_on_idle": True,
            "fields": frozenset(fields),
            **more,
        }
    )


def request(options: EngineOptions, asked: Facts) -> Request:
    """Return the request for a window with these options."""
    return Request.of(make_window(Path("/run/step-000002"), options), asked, Path("/run/out"))


def refusal(options: EngineOptions, asked: Facts) -> str:
    """Return the reason why a request with these options is refused."""
    with pytest.raises(EngineFailure) as caught:
        request(options, asked)
    assert caught.value.health == "unconfigured"
    return str(caught.value)


class TestVersions:
    @pytest.mark.parametrize("version", [version for version in SIGNATURES if version != "0.4.6"])
    @pytest.mark.parametrize("bound", ["none", None, 4])
    def test_keywords_that_it_takes(
        self,
        version: str,
        bound: int | str | None,
        tmp_path: Path,
        other_loop: asyncio.AbstractEventLoop,
        monkeypatch: pytest.MonkeyPatch,
    ) -> None:
        """The request gives a value for every keyword that the engine accepts, and no other keyword. The
        bound makes N steps N.
        """
        monkeypatch.setitem(sys.modules, "sglang", SimpleNamespace(__version__=version))
        manager = Manager(version)
        manager.event_loop = other_loop
        driver = SglangDriver.of_engine(manager)
        window = make_window(tmp_path, EngineOptions(max_iterations=bound))
        assert driver.loop is other_loop

        async def begin() -> None:
            await driver.arm(window)
            await driver.start(window)
            await driver.abort()

        remote_loop().submit(begin()).result(10)
        expected = {
            "output_dir": str(window.output),
            "activities": ["CPU"],
            "with_stack": False,
            "record_shapes": False,
            "profile_by_stage": False,
            **({} if bound == "none" else {"num_steps": (bound or 32) + 1}),
        }
        assert manager.calls == [("start", expected), ("stop", None)]
        assert [asked["start_step"] > 2**40 for asked in manager.asked] == [True] * (
            "start_step" in SIGNATURES[version]
        )

    def test_a_recording_engine_is_left_alone(
        self, tmp_path: Path, other_loop: asyncio.AbstractEventLoop, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """A start that begins nothing shows that the engine records: it is busy and gets no other call.
        When it is free, the same driver records.
        """
        monkeypatch.setitem(sys.modules, "sglang", SimpleNamespace(__version__="0.5.14"))
        manager = Manager("0.5.14")
        manager.event_loop, manager.records = other_loop, True
        driver = SglangDriver.of_engine(manager)
        window = make_window(tmp_path, EngineOptions())
        remote_loop().submit(driver.arm(window)).result(10)
        with pytest.raises(EngineFailure, match="it is left alone") as caught:
            remote_loop().submit(driver.start(window)).result(10)
        assert (caught.value.health, caught.value.owes_stop, manager.calls) == ("busy", False, [])
        manager.records = False
        remote_loop().submit(driver.start(window)).result(10)
        remote_loop().submit(driver.abort()).result(10)
        assert [verb for verb, _ in manager.calls] == ["start", "stop"]

    def test_a_stage_that_was_not_reached_is_disarmed(
        self, tmp_path: Path, other_loop: asyncio.AbstractEventLoop, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """SGLang would still capture a stage that was not reached. A short capture without stages cancels
        it and leaves no file.
        """
        monkeypatch.setitem(sys.modules, "sglang", SimpleNamespace(__version__="0.5.3"))
        manager = Manager("0.5.3")
        manager.event_loop = other_loop
        manager.leaves = "x-TP-0-EXTEND.trace.json.gz"
        driver = SglangDriver.of_engine(manager)
        window = make_window(tmp_path, EngineOptions(by_stage=True, max_iterations=2))

        async def begin() -> Stopped:
            await driver.arm(window)
            await driver.start(window)
            return await driver.stop(window)

        stopped = remote_loop().submit(begin()).result(10)
        assert [artifact.path for artifact in stopped.artifacts] == [
            "rollout/replica-0/rank-0.prefill.trace.json.gz"
        ]
        assert [verb for verb, _ in manager.calls] == ["start", "stop", "start", "stop"]
        cleared = manager.calls[2][1]
        assert (cleared["profile_by_stage"], "num_steps" in cleared) == (False, False)
        assert [path.name for path in window.output.iterdir()] == ["rank-0.prefill.trace.json.gz"]

    def test_oldest(
        self, tmp_path: Path, other_loop: asyncio.AbstractEventLoop, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """With SGLang 0.4.6, the driver finds the loop by its tasks and calls a synchronous stop. Stacks
        have to be accepted.
        """
        monkeypatch.setitem(sys.modules, "sglang", SimpleNamespace(__version__="0.4.6"))
        manager = Manager("0.4.6")

        async def task() -> None:
            manager.asyncio_tasks.add(asyncio.current_task())

        asyncio.run_coroutine_threadsafe(task(), other_loop).result(10)
        driver = SglangDriver.of_engine(manager)
        window = make_window(tmp_path, EngineOptions(with_stack=True))

        async def begin() -> None:
            await driver.arm(window)
            await driver.start(window)
            await driver.abort()

        remote_loop().submit(begin()).result(10)
        started = {"output_dir": str(window.output), "activities": ["CPU"]}
        assert manager.calls == [("start", started), ("stop", None)]

    def test_the_oldest_version_refuses_unsupported_options(self) -> None:
        """SGLang 0.4.6 always records stacks, and knows neither stages nor a limit. Each of these options
        has its message.
        """
        old = facts("0.4.6", OLDEST, answers=False)
        assert "with_stack = true" in refusal(EngineOptions(), old)
        assert "cannot record by stage" in refusal(
            EngineOptions(by_stage=True, max_iterations=2, with_stack=True), old
        )
        assert "omit max_iterations" in refusal(EngineOptions(max_iterations=2, with_stack=True), old)
        assert "num_steps" not in request(EngineOptions(with_stack=True), old).fields

    @pytest.mark.parametrize(
        ("version", "sent"),
        [("0.5.15", 5), ("0.5.15.post1", 5), ("0.5.16", 4), ("0.5.23", 4), ("0.6.0rc1", 4), ("dev", 4)],
    )
    def test_the_limit_is_corrected_for_old_versions(self, version: str, sent: int) -> None:
        """Up to 0.5.15, SGLang records one step less than requested, so one more is requested."""
        made = request(EngineOptions(max_iterations=4), facts(version))
        assert made.fields["num_steps"] == sent
        assert made.bound == 4

    def test_bound_of_a_stage_was_always_exact(self) -> None:
        """By stage, an old version records the requested number of steps, so the limit is sent unchanged."""
        made = request(EngineOptions(max_iterations=4, by_stage=True), facts("0.5.3"))
        assert made.fields["num_steps"] == 4

    @pytest.mark.parametrize(
        ("version", "sent"),
        [("0.4.7", True), ("0.5.13", True), ("0.5.14", False), ("0.5.23", False), ("", False)],
    )
    def test_sglangs_own_stages_are_used_only_where_harmless(self, version: str, sent: bool) -> None:
        """From 0.5.14 on, recording by stage ends SGLang's scheduler. There the whole is recorded and cut
        afterwards.
        """
        made = request(EngineOptions(max_iterations=4, by_stage=True), facts(version))
        assert made.fields["profile_by_stage"] is sent
        assert (made.by_stage, made.cut) == (sent, not sent)


class TestRequests:
    def test_by_stage_always_has_a_bound(self) -> None:
        """Recording by stage gets a default limit of 32. An old version refuses it without a limit,
        because the first batch would end the engine.
        """
        made = request(EngineOptions(by_stage=True), facts())
        assert (made.fields["num_steps"], made.bound) == (32, 32)
        unbounded = EngineOptions(by_stage=True, max_iterations="none")
        assert 'max_iterations = "none" with by_stage' in refusal(unbounded, facts("0.5.3"))
        assert "num_steps" not in request(unbounded, facts("0.5.23")).fields

    @pytest.mark.parametrize(
        ("device", "wanted", "sent"),
        [
            ("cpu", None, ["CPU"]),
            ("cpu", (), ["CPU"]),
            ("cpu", ("cpu",), ["CPU"]),
            ("cuda", None, ["CPU", "GPU"]),
            ("cuda", (), ["CPU", "GPU"]),
            ("cuda", ("cuda",), ["GPU"]),
            ("cuda", ("cpu", "cuda"), ["CPU", "GPU"]),
            ("cuda:1", ("cuda",), ["GPU"]),
            ("npu", None, ["CPU", "GPU"]),
            ("npu", ("privateuse1",), ["GPU"]),
            ("npu", ("cuda",), ["GPU"]),
            ("xpu", None, ["CPU", "XPU"]),
            ("hpu", None, ["CPU"]),
            (None, None, ["CPU"]),
        ],
    )
    def test_activities_are_those_of_the_device(
        self, device: str | None, wanted: tuple[str, ...] | None, sent: list[str]
    ) -> None:
        """By default all activities of the device are requested. SGLang names those of an Ascend device
        GPU, because torch_npu replaces CUDA.
        """
        options = EngineOptions()
        object.__setattr__(options, "activities", wanted)
        asked = Facts.of("engine", {"device": device, "sleep_on_idle": True}, "0.5.23", frozenset(NEWEST))
        assert request(options, asked).fields["activities"] == sent

    @pytest.mark.parametrize(
        ("device", "wanted"),
        [
            ("cpu", "cuda"),
            ("cpu", "privateuse1"),
            ("cuda", "privateuse1"),
            ("xpu", "cuda"),
            ("cuda", "mtia"),
            (None, "cuda"),
        ],
    )
    def test_an_unavailable_activity_is_refused(self, device: str | None, wanted: str) -> None:
        """An activity that the device does not have is refused, because it would end the engine or record
        nothing.
        """
        assert wanted in refusal(EngineOptions(activities=[wanted]), facts(device=device))

    def test_delay_is_refused(self) -> None:
        """A delay is refused, because SGLang's `start_step` is not a delay."""
        assert "delay_iterations" in refusal(EngineOptions(delay_iterations=1), facts())

    def test_shapes_that_it_cannot_record(self, log: Any) -> None:
        """If SGLang cannot record shapes, the option is left out of the request and one line is logged."""
        sglang_request._warn_of_shapes.cache_clear()
        made = request(
            EngineOptions(record_shapes=True, with_stack=True), facts("0.4.6", OLDEST, answers=False)
        )
        assert set(made.fields) == {"output_dir", "activities"}
        assert [line["event"] for line in log] == ["engine.limited"]

    def test_idle_polling_is_warned_about_once(self, log: Any) -> None:
        """An engine that polls while it is idle causes one warning with the remedy. An engine that sleeps
        causes none.
        """
        sglang_request._warn_of_spinning.cache_clear()
        request(EngineOptions(), facts())
        assert [line for line in log if line["event"] == "engine.idle_polling"] == []
        for _ in range(3):
            request(EngineOptions(), facts(sleep_on_idle=False))
        (line,) = (line for line in log if line["event"] == "engine.idle_polling")
        assert "sleep_on_idle=True" in line["cure"]

    def test_workers_of_parallel_engines(self) -> None:
        """The number of workers is tensor times pipeline times data. With attention replicas, the tensor's
        ranks are shared.
        """
        args = {"tp_size": 4, "pp_size": 2, "dp_size": 2}
        plain = Facts.of("engine", args, "", frozenset())
        assert (plain.workers, plain.ranks, plain.replicas) == (16, 8, 2)
        shared = Facts.of("engine", {**args, "enable_dp_attention": True}, "", frozenset())
        assert (shared.workers, shared.ranks, shared.replicas) == (8, 8, 1)

    @pytest.mark.parametrize("key", ["tp_size", "pp_size", "dp_size"])
    def test_more_processes_than_an_engine_can_have(self, key) -> None:
        """An engine that reports too many processes is refused, because its ranks would be listed one by
        one.
        """
        with pytest.raises(EngineFailure, match="more than 65536 processes") as refused:
            Facts.of("engine", {"tp_size": 2, key: 10**18}, "", frozenset())
        assert refused.value.health == "unconfigured"

    @pytest.mark.parametrize(
        "version", ["9" * 5000 + ".1.1", "0.5." + "1" * 5000, "\n[forged]", "\u0664.1.1"]
    )
    def test_an_invalid_version(self, version) -> None:
        """An invalid version counts as a new one, and is shown shortened and on one line."""
        facts = Facts.of("engine", {}, version, frozenset())
        assert facts.is_since((0, 5, 14))
        assert len(facts.version) < 70
        assert facts.version.isprintable()


CUDA = {"device": "cuda"}


class TestBackends:
    """The activities that the role's backend requests."""

    @pytest.mark.parametrize(
        ("backend", "activities"),
        [
            (None, ["CPU", "GPU"]),
            ("torch", ["CPU", "GPU"]),
            ("npu", ["CPU", "GPU"]),
            ("nsys", ["CUDA_PROFILER"]),
            ("memory", ["MEM"]),
            (["torch", "memory"], ["CPU", "GPU", "MEM"]),
        ],
    )
    def test_each_has_its_activities(self, backend: Any, activities: list[str]) -> None:
        """Each backend has its own activities. With nsys no other activity may use CUPTI."""
        assert request(EngineOptions(backend=backend), facts(**CUDA)).fields["activities"] == activities

    @pytest.mark.parametrize(
        ("backend", "asked", "why"),
        [
            ("memory", {}, "runs on cpu, where its start would kill it"),
            ("nsys", {"device": None}, "runs on a device that it does not name"),
            (
                "memory",
                {**CUDA, "tp": 2, "ranks": 2, "replicas": 2},
                "has 4 processes, and the names of its snapshots distinguish only 2",
            ),
        ],
    )
    def test_options_that_would_kill_it_are_refused(
        self, backend: str, asked: dict[str, Any], why: str
    ) -> None:
        """A backend that would end the engine is refused, and the message names the setting to keep."""
        reported = refusal(EngineOptions(backend=backend), facts(**asked))
        assert reported.startswith(f'engine: engine.backend = "{backend}": it {why}')
        assert 'leave it at engine.backend = "torch"' in reported

    def test_by_stage_requires_torch(self) -> None:
        """The memory backend refuses stages, because SGLang would end the allocator's history with the
        first stage.
        """
        options = EngineOptions(backend="memory", by_stage=True)
        assert "cannot record it by stage; leave by_stage out" in refusal(options, facts(**CUDA))

    @pytest.mark.parametrize("variable", ["PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_ALLOC_CONF"])
    def test_an_allocator_without_a_history(self, monkeypatch: pytest.MonkeyPatch, variable: str) -> None:
        """The memory backend refuses an allocator without a history, because torch would raise and end the
        scheduler.
        """
        monkeypatch.setenv(variable, "backend:cudaMallocAsync")
        assert "keeps no history" in refusal(EngineOptions(backend="memory"), facts(**CUDA))

    def test_snapshots_are_named_by_rank(self, tmp_path: Path) -> None:
        """SGLang names a snapshot by its time; the artifact is named by its rank. A missing snapshot is
        reported.
        """
        out = tmp_path / "shared"
        out.mkdir()
        (out / "1763781500.5-TP-0-memory.pickle").write_bytes(b"snapshot")
        window = make_window(tmp_path / "step-000002", EngineOptions(backend="memory"))
        asked = request(window.options, facts(tp=2, ranks=2, **CUDA))
        brought = bring(out, window, facts(tp=2, ranks=2, **CUDA), asked)
        (artifact,) = brought.artifacts
        assert (artifact.path, artifact.kind) == ("rollout/replica-0/rank-0.memory.pickle", "memory-snapshot")
        assert (window.folder / artifact.path).read_bytes() == b"snapshot"
        assert brought.problems == ["no memory snapshot of the engine's rank 1"]
        assert list(out.iterdir()) == []

    def test_an_abort_removes_snapshots(self, tmp_path: Path) -> None:
        """`discard`, which an abort calls, removes the snapshots."""
        (tmp_path / "1763781500.5-TP-0-memory.pickle").write_bytes(b"snapshot")
        discard(tmp_path)
        assert list(tmp_path.iterdir()) == []


class NsysLink(ObjectLink):
    """An SGLang engine whose schedulers run under the nsys of this process. Its answer to a stop is set by
    the test.
    """

    def __init__(self, answer: bool | None = True, *, unused: bool = False, **more: Any) -> None:
        super().__init__(SimpleNamespace(), "engine")
        self.calls: list[str] = []
        self.answer, self.unused, self.more = answer, unused, more

    async def facts(self, window: EngineWindow) -> Facts:
        return facts(**{**CUDA, **self.more})

    async def records(self, fields: Any) -> None:
        return None

    async def start(self, fields: Any) -> None:
        self.calls.append(f"start {fields['activities']}")

    async def stop(self) -> bool | None:
        self.calls.append("stop")
        return self.answer

    def withdraw(self) -> bool:
        return self.unused


class TestNsys:
    """The role's backend is nsys: the engine marks its range with the activity CUDA_PROFILER."""

    @pytest.fixture(autouse=True)
    def under_nsys(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
        """Pretend that nsys started this process and writes its reports into a folder of the test."""
        ranges.reset()
        (tmp_path / "nsys").mkdir()
        monkeypatch.setenv(VARIABLE, f"output={tmp_path}/nsys/r_{{pid}};ranges=any;mode=async")
        yield
        ranges.reset()

    def end(self, link: NsysLink, tmp_path: Path, **options: Any) -> Stopped:
        """Record one window; return the result of the stop."""
        window = make_window(tmp_path / "step-000002", EngineOptions(backend="nsys", **options))
        window.output.mkdir(parents=True, exist_ok=True)
        capture = SglangDriver(link)

        async def run() -> Stopped:
            await capture.arm(window)
            await capture.start(window)
            return await capture.stop(window)

        return asyncio.run(asyncio.wait_for(run(), 15))

    def brought(self, stopped: Stopped, tmp_path: Path, number: int = 1) -> list[str]:
        """Write the report of nsys; return the paths of the late artifacts."""
        (tmp_path / "nsys" / f"r_{os.getpid()}.{number}.nsys-rep").write_bytes(b"report")
        assert stopped.later is not None
        later = asyncio.run(asyncio.wait_for(stopped.later.wait(), 15))
        return [artifact.path for artifact in later.artifacts]

    @pytest.mark.parametrize("pipeline", [1, 2])
    def test_a_window_of_it(self, tmp_path: Path, pipeline: int) -> None:
        """The engine is started and stopped, and its report arrives later. The stop does not wait for a
        trace, nor for that of a later pipeline stage.
        """
        link = NsysLink(ranks=pipeline)
        began = time.monotonic()
        stopped = self.end(link, tmp_path)
        assert time.monotonic() - began < STAGES_SECONDS / 2
        assert link.calls == ["start ['CUDA_PROFILER']", "stop"]
        assert (stopped.artifacts, stopped.partial, stopped.capped_by) == ((), None, None)
        assert self.brought(stopped, tmp_path) == ["rollout/replica-0/engine.nsys-rep"]

    def test_a_capture_that_ended_at_its_limit(self, tmp_path: Path) -> None:
        """If the engine ended the capture at its own limit, the report is used, even if nsys wrote it
        before the stop.
        """
        (tmp_path / "nsys" / f"r_{os.getpid()}.1.nsys-rep").write_bytes(b"early")
        stopped = self.end(NsysLink(None), tmp_path, max_iterations=3)
        assert (stopped.capped_by, stopped.partial) == ("engine", None)
        assert self.brought(stopped, tmp_path)

    def test_a_capture_that_another_client_ended(self, tmp_path: Path) -> None:
        """If another client stopped the capture, the result is partial and says so. Its report is used."""
        stopped = self.end(NsysLink(answer=False), tmp_path)
        assert stopped.partial == "another client stopped it before the window ended"
        assert self.brought(stopped, tmp_path)

    def test_an_engine_that_was_not_used(self, tmp_path: Path) -> None:
        """If nothing was sent to the engine, the stop is a failure, and the next window has the first
        range.
        """
        with pytest.raises(EngineFailure, match="nothing was sent to it"):
            self.end(NsysLink(unused=True), tmp_path)
        assert self.brought(self.end(NsysLink(), tmp_path), tmp_path)

    def test_an_aborted_window_still_counts_as_a_range(self, tmp_path: Path) -> None:
        """An abort ends the range, which counts: the next window has the second range."""
        link, window = NsysLink(), make_window(tmp_path / "aborted", EngineOptions(backend="nsys"))
        capture = SglangDriver(link)

        async def run() -> None:
            await capture.arm(window)
            await capture.start(window)
            await capture.abort()

        asyncio.run(run())
        assert link.calls[-1] == "stop"
        assert self.brought(self.end(NsysLink(), tmp_path), tmp_path, 2)

    def test_inside_a_window_of_this_process(self, tmp_path: Path) -> None:
        """No start is sent, because the engine's stop would end the range of the surrounding window. The
        result refers to that window.
        """
        ranges.begin((2, "step/rank-0"), own=True)
        link = NsysLink()
        stopped = self.end(link, tmp_path)
        assert (link.calls, stopped.joined) == ([], (2, "step/rank-0"))


class TestObjects:
    def test_an_engine_is_recognised_by_its_class_names(self) -> None:
        """An instance of SGLang's class, or of a class derived from it, is recognised without importing
        SGLang.
        """
        manager = type("TokenizerManager", (), {"__module__": "sglang.srt.managers.tokenizer_manager"})
        derived = type("Mine", (manager,), {})
        kind = SglangKind()
        assert kind.recognises(manager())
        assert kind.recognises(derived())
        assert not kind.recognises(manager)
        assert not kind.recognises(type("Engine", (), {})())
        assert not kind.recognises("http://localhost:30000")

    def test_an_engine_without_a_tokenizer_manager_is_refused(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """SGLang's Rust server and gRPC modes have no tokenizer manager. The failure suggests to attach
        the URL.
        """
        monkeypatch.setitem(sys.modules, "sglang", SimpleNamespace(__version__="0.5.23"))
        driver = SglangDriver.of_engine(SimpleNamespace(tokenizer_manager=SimpleNamespace(server_args=None)))
        with pytest.raises(EngineFailure, match="attach the URL"):
            remote_loop().submit(driver.arm(make_window(tmp_path, EngineOptions()))).result(10)

    def test_loop_that_has_ended(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        """An engine whose event loop is closed cannot be called; its health is `dead`."""
        monkeypatch.setitem(sys.modules, "sglang", SimpleNamespace(__version__="0.5.14"))
        manager = Manager("0.5.14")
        ended = asyncio.new_event_loop()
        ended.close()
        manager.event_loop = ended
        driver = SglangDriver.of_engine(manager)
        with pytest.raises(EngineFailure, match="closed") as caught:
            remote_loop().submit(driver.arm(make_window(tmp_path, EngineOptions()))).result(10)
        assert caught.value.health == "dead"

    def test_process_that_has_died(
        self, tmp_path: Path, other_loop: asyncio.AbstractEventLoop, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """SGLang's watchdog shows that a process of the engine has died. The pending stop fails, and the
        engine gets no further call.
        """
        monkeypatch.setitem(sys.modules, "sglang", SimpleNamespace(__version__="0.5.14"))
        manager: Any = Manager("0.5.14")
        process = SimpleNamespace(name="scheduler_0", pid=7, exitcode=None)
        manager._subprocess_watchdog = SimpleNamespace(_processes=[process])
        manager.event_loop = other_loop
        driver, window = SglangDriver.of_engine(manager), make_window(tmp_path, EngineOptions())

        async def never() -> None:
            process.exitcode = -9
            await asyncio.sleep(60)

        manager.stop_profile = never

        async def begin() -> None:
            await driver.arm(window)
            await driver.start(window)
            await driver.stop(window)

        with pytest.raises(EngineFailure, match=r"has died \(scheduler_0, pid 7, exit code -9\)") as caught:
            remote_loop().submit(begin()).result(10)
        assert caught.value.health == "dead"
        with pytest.raises(EngineFailure, match="has died"):
            remote_loop().submit(driver.arm(window)).result(10)

    def test_an_engine_that_is_never_used_is_sent_nothing(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """An engine whose event loop never ran gets no call, and the stop says that it was not used."""
        monkeypatch.setitem(sys.modules, "sglang", SimpleNamespace(__version__="0.5.14"))
        manager = Manager("0.5.14")
        driver, window = SglangDriver.of_engine(manager), make_window(tmp_path, EngineOptions())

        async def begin() -> None:
            await driver.arm(window)
            await driver.start(window)
            await driver.stop(window)

        with pytest.raises(EngineFailure, match="was not used") as caught:
            remote_loop().submit(begin()).result(10)
        assert caught.value.health == "ok"
        assert manager.calls == []

    def test_a_loop_that_is_not_running(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        """stepprof runs an idle loop for the answer to a start. An abort waits until the loop's owner runs
        it.
        """
        monkeypatch.setitem(sys.modules, "sglang", SimpleNamespace(__version__="0.5.14"))
        manager = Manager("0.5.14")
        manager.event_loop = asyncio.new_event_loop()
        driver, window = SglangDriver.of_engine(manager), make_window(tmp_path, EngineOptions())

        async def begin() -> None:
            await driver.arm(window)
            await driver.start(window)

        remote_loop().submit(begin()).result(10)
        assert not manager.event_loop.is_running()
        aborting = remote_loop().submit(driver.abort())
        while not aborting.done():
            manager.event_loop.run_until_complete(asyncio.sleep(0.01))
        assert (len(manager.asked), [verb for verb, _ in manager.calls]) == (1, ["start", "stop"])
        assert not manager.event_loop.is_running()
        manager.event_loop.run_until_complete(asyncio.sleep(0))
        manager.event_loop.close()

    def test_the_loop_is_free_when_the_caller_continues(self) -> None:
        """While a stop is unanswered, `release` returns the loop to its owner, who can run it."""
        manager = Manager("0.5.14")
        manager.event_loop = loop = asyncio.new_event_loop()
        manager.stop_profile = lambda: asyncio.sleep(60)
        link = ObjectLink(manager, "engine")
        link.allow(60)
        stopping = remote_loop().submit(link.stop())
        deadline = time.monotonic() + 10
        while not loop.is_running() and time.monotonic() < deadline:
            time.sleep(0.001)
        assert loop.is_running()
        remote_loop().submit(link.release()).result(10)
        assert not loop.is_running()
        loop.run_until_complete(asyncio.sleep(0.05))
        assert not stopping.done()
        stopping.cancel()
        for task in asyncio.all_tasks(loop):
            task.cancel()
        loop.run_until_complete(asyncio.sleep(0.01))
        loop.close()

    def test_a_capture_left_by_another_driver_is_ended_on_an_idle_loop(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """The start of the second driver first stops the first driver's capture. stepprof runs the idle
        loop for both calls.
        """
        monkeypatch.setitem(sys.modules, "sglang", SimpleNamespace(__version__="0.5.14"))
        manager = Manager("0.5.14")
        manager.event_loop = asyncio.new_event_loop()
        first, second = SglangDriver.of_engine(manager), SglangDriver.of_engine(manager)

        async def begin(driver: SglangDriver, step: int) -> None:
            window = make_window(tmp_path, EngineOptions(), step=step)
            await driver.arm(window)
            await driver.start(window)

        remote_loop().submit(begin(first, 2)).result(10)
        first.retire()
        remote_loop().submit(begin(second, 3)).result(10)
        assert [verb for verb, _ in manager.calls] == ["start", "stop", "start"]
        assert not manager.event_loop.is_running()
        second.retire()
        manager.event_loop.close()

    def test_options_are_read_only(self) -> None:
        """The facts of an engine cannot be changed."""
        with pytest.raises(dataclasses.FrozenInstanceError):
            facts().version = "1"  # type: ignore[misc]
