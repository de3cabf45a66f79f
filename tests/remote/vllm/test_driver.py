"""The parts of the vLLM driver that need no vLLM: file names of every version, trace folders, and engines
that do not run here. `tests/real/vllm` tests everything that runs on a CPU with the real vLLM.
"""

from __future__ import annotations

import asyncio
import gzip
import json
import os
import socket
import subprocess
import sys
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import pytest

import stepprof
from stepprof.backends.nsys.reports import ReportLost
from stepprof.config.options.engine import EngineOptions
from stepprof.errors import ConfigError
from stepprof.remote.base import EngineFailure, EngineWindow
from stepprof.remote.loop import remote_loop
from stepprof.remote.vllm.arguments import Settings, environment, lay_out
from stepprof.remote.vllm.capabilities import differences, outcome, start_arguments
from stepprof.remote.vllm.driver import VllmDriver, VllmKind, engine_args
from stepprof.remote.vllm.files import Brought, Workers, bring
from stepprof.remote.vllm.folder import TraceFolder, count_steps, new_prefix
from stepprof.run.model import Window

STAMP = "1795182684740183604"


def make_window(folder: Path, workers: frozenset[int] | None = None, **options: Any) -> EngineWindow:
    """Return the window of a step."""
    trace_dir, step = options.pop("trace_dir", None), options.pop("step", 2)
    place = folder / f"step-{step:06d}"
    (place / "rollout" / "replica-0").mkdir(parents=True, exist_ok=True)
    return EngineWindow(
        window=Window(step, "rollout"),
        replica=0,
        folder=place,
        stem="rollout/replica-0",
        options=EngineOptions(**options),
        metadata={"step": step},
        workers=workers,
        trace_dir=trace_dir,
    )


def write_trace(
    path: Path, pid: int = 100, rank: int | None = None, steps: int = 1, host: str = "elsewhere"
) -> None:
    """Write a trace as torch does, with a number of forward steps."""
    content: dict[str, Any] = {"schemaVersion": 1}
    if rank is not None:
        content["distributedInfo"] = {"backend": "gloo", "rank": rank, "world_size": 2}
    content["host_name"] = host
    content["traceEvents"] = [
        {"ph": "M", "name": "process_name", "pid": pid, "tid": 0, "ts": 1, "args": {"name": "python"}},
        *(
            {"ph": "X", "cat": "cpu_op", "name": "execute_context_0(0)_generation_1(1)", "pid": pid, "tid": 1}
            | {"ts": 10 * n, "dur": 5}
            for n in range(steps)
        ),
    ]
    text = json.dumps(content, indent=1).encode()
    path.write_bytes(gzip.compress(text) if path.suffix == ".gz" else text)


def brought_as(
    folder: Path,
    names: dict[str, dict[str, Any]],
    workers: Workers | None = None,
    asked: frozenset[int] | None = None,
) -> list[str]:
    """Return the names of the artifacts of a window in which an engine writes these files."""
    link = lay_out(folder / "traces")
    place = TraceFolder(link, "object:1", lambda: True)
    place.prepare()
    made = make_window(folder, asked)
    session = place.begin(made)
    place.lead(session)
    for name, what in names.items():
        write_trace(link / name, **what)
    brought = bring(place, session, made, "stepprof-mine", workers or Workers())
    assert not brought.problems
    return [Path(artifact.path).name.removesuffix(".trace.json.gz") for artifact in brought.artifacts]


def kept(folder: Path, name: str) -> dict[str, Any]:
    """Return the content of an artifact."""
    path = folder / "step-000002" / "rollout" / "replica-0" / f"{name}.trace.json.gz"
    content: dict[str, Any] = json.loads(gzip.decompress(path.read_bytes()))
    return content


def test_forward_steps_on_a_gpu_count_once(tmp_path: Path) -> None:
    """On a GPU, torch writes each forward step twice: as the annotation of the host and as that of the device."""
    path = tmp_path / "rank0.1.pt.trace.json.gz"
    steps = [
        {
            "ph": "X",
            "cat": cat,
            "name": "execute_context_0(0)_generation_1(1)",
            "pid": 1,
            "tid": 1,
            "ts": n,
            "dur": 5,
        }
        for n in (10, 20, 30)
        for cat in ("user_annotation", "gpu_user_annotation")
    ]
    path.write_bytes(gzip.compress(json.dumps({"traceEvents": steps}).encode()))
    assert count_steps(path) == 3


class TestNames:
    """The file names of vLLM's versions and devices."""

    @pytest.mark.parametrize(
        "name",
        [
            "rank{}.{}.pt.trace.json.gz",
            "stepprof-mine_rank{}.{}.pt.trace.json.gz",
            "stepprof-mine_dp0_pp0_tp{0}_dcp0_ep{0}_rank{0}.{1}.pt.trace.json.gz",
            "1795182820810255445-rank-{}.{}.pt.trace.json.gz",
            "1795182820810255445-rank-{}.{}.pt.trace.json",
        ],
    )
    def test_the_rank_is_in_the_name(self, name: str, tmp_path: Path) -> None:
        """The rank is read from the names of all versions from 0.12 to 0.32, compressed or not."""
        names = {name.format(rank, STAMP): {"pid": 100 - rank} for rank in (0, 1)}
        assert brought_as(tmp_path, names) == ["rank-0", "rank-1"]

    def test_the_oldest_versions_state_the_rank_in_the_trace(self, tmp_path: Path) -> None:
        """vLLM 0.8.5 names its files after the host and the process only, so the rank is read from the
        trace.
        """
        names = {
            f"node_{pid}.{STAMP}.pt.trace.json.gz": {"pid": pid, "rank": 1 - pid % 2} for pid in (10, 11)
        }
        assert sorted(brought_as(tmp_path, names)) == ["rank-0", "rank-1"]
        stated = kept(tmp_path, "rank-0")
        assert stated["stepprof"] == {"step": 2, "rank": 0}
        assert stated["traceEvents"][0]["pid"] == 11

    def test_numbers_that_cannot_be(self, tmp_path: Path) -> None:
        """A process id or a rank with 5,000 digits makes its trace invalid. The other trace becomes an
        artifact.
        """
        link = lay_out(tmp_path / "traces")
        place = TraceFolder(link, "object:1", lambda: True)
        place.prepare()
        window = make_window(tmp_path)
        session = place.begin(window)
        place.lead(session)
        many = "9" * 5000
        for pid, rank in (("7", many), (many, "0")):
            text = f'{{"distributedInfo": {{"rank": {rank}}}, "traceEvents": [{{"ph": "X", "pid": {pid}}}]}}'
            (link / f"node_{pid[:3]}.{STAMP}.pt.trace.json").write_text(text)
        (link / f"rank{many[:200]}.{STAMP}.pt.trace.json").write_text('{"traceEvents": [{"ph": "X"}]}')
        brought = bring(place, session, window, "stepprof-mine", Workers())
        assert len(brought.artifacts) == 1
        assert all("not complete JSON" in problem for problem in brought.problems)
        assert len(brought.problems) == 2

    def test_without_any_rank_the_order_of_the_processes_counts(self, tmp_path: Path) -> None:
        """Without a rank in the name or the trace, the order of the process ids gives the ranks."""
        names = {f"node_{pid}.{STAMP}.pt.trace.json.gz": {"pid": pid} for pid in (900, 1000)}
        assert sorted(brought_as(tmp_path, names)) == ["rank-0", "rank-1"]
        first = kept(tmp_path, "rank-0")
        assert first["traceEvents"][0]["pid"] == 900

    def test_the_front_ends_file_is_left_out(self, tmp_path: Path) -> None:
        """A trace of the front end does not become an artifact."""
        names: dict[str, dict[str, Any]] = {
            f"rank0.{STAMP}.pt.trace.json.gz": {},
            f"node_7.async_llm.{STAMP}.pt.trace.json.gz": {},
        }
        assert brought_as(tmp_path, names) == ["rank-0"]

    def test_data_parallel_engines_on_another_host_are_numbered_by_process(self, tmp_path: Path) -> None:
        """Files with the same rank belong to different engines, which are numbered in the order of their
        process ids.
        """
        names = {
            f"rank{rank}.{int(STAMP) + pid}.pt.trace.json.gz": {"pid": pid}
            for pid, rank in ((210, 0), (211, 1), (205, 0), (206, 1))
        }
        assert brought_as(tmp_path, names) == ["dp-0-rank-0", "dp-0-rank-1", "dp-1-rank-0", "dp-1-rank-1"]
        first = kept(tmp_path, "dp-0-rank-0")
        assert first["traceEvents"][0]["pid"] == 205

    def test_data_parallel_engines_on_this_host_are_found_by_parent_process(self, tmp_path: Path) -> None:
        """The parent process shows the engine that a worker belongs to, whatever the order of the process
        ids.
        """
        sleepers = [subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) for _ in "ab"]
        first, second = sorted(sleeper.pid for sleeper in sleepers)
        try:
            names = {
                f"rank0.{int(STAMP) + pid}.pt.trace.json.gz": {"pid": pid, "host": socket.gethostname()}
                for pid in (first, second)
            }
            workers = Workers(cores=[second, os.getpid()], width=1, groups=2)
            assert brought_as(tmp_path, names, workers) == ["dp-0-rank-0", "dp-1-rank-0"]
        finally:
            for sleeper in sleepers:
                sleeper.communicate(b"\n")
        stated = kept(tmp_path, "dp-0-rank-0")
        assert stated["traceEvents"][0]["pid"] == second

    def test_the_group_in_the_name_counts_where_it_differs(self, tmp_path: Path) -> None:
        """If the group in the names differs, as for mixture-of-experts engines, it is the engine's number."""
        names = {
            f"dp{group}_pp0_tp0_dcp0_ep{group}_rank0.{STAMP}.pt.trace.json.gz": {"pid": 300 - group}
            for group in (0, 1)
        }
        assert brought_as(tmp_path, names) == ["dp-0-rank-0", "dp-1-rank-0"]

    def test_a_worker_of_a_group_is_counted_through(self, tmp_path: Path) -> None:
        """With two engines of two workers each, the selected rank 3 is worker 1 of the second engine."""
        names = {
            f"rank{rank}.{int(STAMP) + pid}.pt.trace.json.gz": {"pid": pid}
            for pid, rank in ((205, 0), (206, 1), (210, 0), (211, 1))
        }
        assert brought_as(tmp_path, names, asked=frozenset({3})) == ["dp-1-rank-1"]


class TestFolder:
    """Trace folders with a link, and folders without one."""

    def test_a_folder_that_is_missing_is_made(self, tmp_path: Path) -> None:
        """A missing folder is made. If its name is that of the link, the link is made, because vLLM would
        make a plain folder.
        """
        link = tmp_path / "engine-7" / "current"
        place = TraceFolder(link, "object:1", lambda: True)
        place.prepare()
        assert link.readlink() == Path("idle")
        plain = TraceFolder(tmp_path / "plain", "object:1", lambda: True)
        plain.prepare()
        assert plain.link is None
        assert (tmp_path / "plain").is_dir()

    def test_trace_dir_may_be_the_folder_of_the_link(self, tmp_path: Path) -> None:
        """``trace_dir`` names the folder that contains ``current``."""
        link = lay_out(tmp_path)
        assert TraceFolder(link.parent, "object:1", lambda: True).link == link

    def test_a_folder_that_cannot_be_made_is_refused(self, tmp_path: Path) -> None:
        """The failure names the path and the reason, and suggests `trace_dir`."""
        (tmp_path / "file").write_text("")
        place = TraceFolder(tmp_path / "file" / "traces", "object:1", lambda: True)
        with pytest.raises(EngineFailure, match=r"cannot be used: .*trace_dir names it") as caught:
            place.prepare()
        assert caught.value.health == "unconfigured"

    def test_existing_files_are_left_alone(self, tmp_path: Path) -> None:
        """In a folder without a link, only new files with the engine's own prefix become artifacts."""
        plain = tmp_path / "plain"
        plain.mkdir()
        write_trace(plain / f"rank0.{STAMP}.pt.trace.json.gz")
        place = TraceFolder(plain, "object:1", lambda: True)
        place.prepare()
        window = make_window(tmp_path)
        session = place.begin(window)
        place.lead(session)
        prefix, other = new_prefix(), new_prefix()
        write_trace(plain / f"{prefix}_rank0.{STAMP}.pt.trace.json.gz")
        write_trace(plain / f"{other}_rank0.{STAMP}.pt.trace.json.gz")
        brought = bring(place, session, window, prefix, Workers())
        assert [artifact.path for artifact in brought.artifacts] == ["rollout/replica-0/rank-0.trace.json.gz"]
        assert len(list(plain.iterdir())) == 2

    def test_a_claim_of_a_dead_engine_is_free(self, tmp_path: Path) -> None:
        """A second engine with the same folder is refused while the first lives. After the first has
        ended, the second can use it.
        """
        link = lay_out(tmp_path)
        alive = [True]
        TraceFolder(link, "object:1", lambda: alive[0]).prepare()
        second = TraceFolder(link, "object:2", lambda: True)
        with pytest.raises(EngineFailure, match="another engine, in this process or another one"):
            second.prepare()
        alive[0] = False
        second.prepare()

    def test_a_claim_of_another_process_is_not(self, tmp_path: Path) -> None:
        """While another process holds the folder, an engine with the same arguments is refused."""
        link = lay_out(tmp_path)
        script = (
            "import sys; from pathlib import Path; from stepprof.remote.vllm.folder import TraceFolder\n"
            "TraceFolder(Path(sys.argv[1]), 'object:1', lambda: True).prepare(); print('held', flush=True); input()"
        )
        holder = subprocess.Popen(
            [sys.executable, "-c", script, str(link)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )
        try:
            assert holder.stdout is not None
            assert holder.stdout.readline() == b"held\n"
            place = TraceFolder(link, "object:1", lambda: True)
            with pytest.raises(EngineFailure, match="engine_args once for each engine"):
                place.prepare()
        finally:
            holder.communicate(b"\n")
        place.prepare()

    def test_a_damaged_trace_is_named_and_stays(self, tmp_path: Path) -> None:
        """The complete trace becomes an artifact. The damaged one stays, is named, and makes the result
        partial.
        """
        link = lay_out(tmp_path / "traces")
        place = TraceFolder(link, "object:1", lambda: True)
        place.prepare()
        window = make_window(tmp_path)
        session = place.begin(window)
        place.lead(session)
        write_trace(link / f"rank0.{STAMP}.pt.trace.json.gz")
        (link / f"rank1.{STAMP}.pt.trace.json.gz").write_bytes(b"\x1f\x8b\x08\x00cut off")
        (link / "rank0.profiler_out.txt").write_text("a table")
        brought = bring(place, session, window, "stepprof-mine", Workers(width=2, groups=1))
        assert len(brought.artifacts) == 1
        (problem,) = brought.problems
        assert f"rank1.{STAMP}.pt.trace.json.gz" in problem
        assert [path.name for path in session.folder.iterdir()] == [f"rank1.{STAMP}.pt.trace.json.gz"]
        stopped = outcome(window, brought, Workers(width=2, groups=1), early=False, asleep=False, name="e")
        assert stopped.partial == problem
        assert link.readlink() == Path("idle")


class TestWords:
    """The messages of a capture's result."""

    def test_missing_workers_make_it_partial(self, tmp_path: Path) -> None:
        """If only 2 of 4 workers left a trace, the result is partial and states both numbers."""
        brought = Brought(found=2, steps=None)
        stopped = outcome(
            make_window(tmp_path), brought, Workers(width=4, groups=1), early=False, asleep=False, name="e"
        )
        assert stopped.partial is not None
        assert stopped.partial.startswith("2 of its 4 workers left a trace")

    def test_nothing_but_damaged_files_is_a_failure(self, tmp_path: Path) -> None:
        """If all files are damaged, the result is a failure."""
        brought = Brought(found=1, problems=["it is cut off"])
        with pytest.raises(EngineFailure, match="it is cut off"):
            outcome(make_window(tmp_path), brought, Workers(), early=False, asleep=False, name="e")

    def test_each_difference_has_its_message(self, tmp_path: Path) -> None:
        """Each option that differs from the engine's settings has its own message."""
        window = make_window(tmp_path, activities=["cpu", "cuda"], record_shapes=True)
        built = Settings("/t", with_stack=True, record_shapes=False, activities=("cpu",))
        shapes, stacks, activities = differences(window, built, {"max_iterations"})
        assert shapes.startswith("record_shapes = true was requested")
        assert stacks.startswith("it was built with stacks")
        assert activities.startswith("activities = ['cpu', 'cuda'] was requested")
        assert differences(make_window(tmp_path), Settings("/t"), {"max_iterations"}) == []

    @pytest.mark.parametrize(
        ("asked", "built", "reported"),
        [
            ({}, Settings("/t", max_iterations=32), None),
            ({}, Settings("/t"), "32 is the default, and this one was built with 0"),
            ({}, Settings(None, profiler=None), "32 is the default, and this one does not report"),
            ({"max_iterations": "none"}, Settings("/t", max_iterations=32), '"none" was asked for, and'),
            ({"max_iterations": "none"}, Settings("/t"), None),
        ],
    )
    def test_a_bound_that_holds_as_the_engine_was_built(
        self, tmp_path: Path, asked: dict[str, Any], built: Settings, reported: str | None
    ) -> None:
        """Up to 0.31 the limit cannot be set for a capture. The engine is recorded all the same, and a
        difference is reported.
        """
        window = make_window(tmp_path, **asked)
        assert start_arguments(window, built, {"profile_prefix"}, "p") == {"profile_prefix": "p"}
        lines = differences(window, built, {"profile_prefix"})
        assert [reported in line for line in lines] == ([] if reported is None else [True])

    @pytest.mark.parametrize(
        ("asked", "built", "given"),
        [
            ({}, Settings("/t", max_iterations=32), {}),
            ({}, Settings("/t"), {"max_iterations": 32}),
            ({"max_iterations": "none"}, Settings("/t", max_iterations=32), {"max_iterations": 0}),
            ({"max_iterations": "none"}, Settings(None, profiler=None), {"max_iterations": 0}),
            ({"max_iterations": "none"}, Settings("/t"), {}),
        ],
    )
    def test_a_bound_for_each_capture(
        self, tmp_path: Path, asked: dict[str, Any], built: Settings, given: dict[str, Any]
    ) -> None:
        """From 0.32 on the limit is sent if it differs from the engine's setting, or if the setting is
        unknown.
        """
        assert start_arguments(make_window(tmp_path, **asked), built, {"max_iterations"}, "p") == given


def engine_class(name: str, **members: Any) -> type:
    """Return a class that is named like one of vLLM's, for versions that do not run here."""
    return type(name, (), {"__module__": f"vllm.{name.lower()}", **members})


class _ExecutorBase:
    """Replace the executor of an engine."""


class TestEngines:
    """Engine objects of versions that do not run here, and those of unknown kinds."""

    def test_an_engine_before_version_1_is_its_own_worker(self) -> None:
        """In vLLM 0.8.5, core and executor of ``LLMEngine`` run in the process that built it, so the
        driver is `inside`.
        """
        executor = type("UniProcExecutor", (_ExecutorBase,), {})()
        engine = engine_class("LLMEngine", start_profile=lambda self: None)()
        engine.model_executor = executor
        assert VllmKind().recognises(engine)
        assert VllmDriver.of_engine(engine).inside
        engine.model_executor = _ExecutorBase()
        assert not VllmDriver.of_engine(engine).inside

    def test_an_engine_without_a_loop_is_not_sent_anything(self, tmp_path: Path) -> None:
        """An engine that has not run on a loop gets no start, because the call would bind it to stepprof's
        own loop.
        """

        async def start_profile(self: object) -> None:
            raise AssertionError("sent")

        engine = engine_class("AsyncLLM", start_profile=start_profile, stop_profile=start_profile)()
        engine.vllm_config = _table(
            profiler_config=_table(profiler="torch", torch_profiler_dir=str(tmp_path / "t"))
        )
        driver = VllmDriver.of_engine(engine)
        assert driver.loop is None
        window = make_window(tmp_path)
        _remote(driver.arm(window)).result(10)
        with pytest.raises(EngineFailure, match="has not run on any event loop yet") as caught:
            _remote(driver.start(window)).result(10)
        assert caught.value.health == "unreachable"

    def test_attached_in_a_coroutine_it_lives_on_that_loop(self) -> None:
        """An engine that does not report its loop, and is attached in a coroutine, lives on that
        coroutine's loop.
        """

        async def attached() -> bool:
            async def start_profile(self: object) -> None: ...

            engine = engine_class("AsyncLLM", start_profile=start_profile)()
            return VllmDriver.of_engine(engine).loop is asyncio.get_running_loop()

        assert asyncio.run(attached())

    def test_a_loop_that_ends_in_the_middle_of_a_call_ends_the_waiting(
        self, tmp_path: Path, other_loop: asyncio.AbstractEventLoop
    ) -> None:
        """If the engine's loop ends during a stop, the stop fails at once, and the engine is unreachable."""

        async def start_profile(self: object) -> None: ...

        async def stop_profile(self: object) -> None:
            asyncio.get_running_loop().call_soon(asyncio.get_running_loop().stop)
            await asyncio.Event().wait()

        engine = engine_class("AsyncLLM", start_profile=start_profile, stop_profile=stop_profile)()
        engine.vllm_config = _table(
            profiler_config=_table(profiler="torch", torch_profiler_dir=str(tmp_path / "t"))
        )

        async def attached() -> VllmDriver:
            return VllmDriver.of_engine(engine)

        driver = asyncio.run_coroutine_threadsafe(attached(), other_loop).result(10)
        window = make_window(tmp_path)
        _remote(driver.arm(window)).result(10)
        _remote(driver.start(window)).result(10)
        with pytest.raises(EngineFailure, match="has ended before it answered") as caught:
            _remote(driver.stop(window)).result(10)
        assert caught.value.health == "unreachable"

    def test_a_stop_that_failed_is_sent_again_before_the_next_start(self, tmp_path: Path) -> None:
        """After a failed stop the engine may still record and would refuse a start, so the stop is sent
        again first.
        """
        calls: list[str] = []

        def start_profile(self: object) -> None:
            calls.append("start")

        def stop_profile(self: object) -> None:
            calls.append("stop")
            if calls.count("stop") == 1:
                raise RuntimeError("a bad moment")

        engine = engine_class("LLM", start_profile=start_profile, stop_profile=stop_profile)()
        engine.vllm_config = _table(
            profiler_config=_table(profiler="torch", torch_profiler_dir=str(tmp_path / "t"))
        )
        driver = VllmDriver.of_engine(engine)
        window = make_window(tmp_path)
        _remote(driver.arm(window)).result(10)
        _remote(driver.start(window)).result(10)
        with pytest.raises(
            EngineFailure, match=r"stop_profile of the vLLM engine \(LLM\) failed: RuntimeError: a bad moment"
        ):
            _remote(driver.stop(window)).result(10)
        _remote(driver.start(window)).result(10)
        assert calls == ["start", "stop", "stop", "start"]

    @pytest.mark.parametrize(
        ("config", "missing"),
        [
            ({"profiler": None}, "profiler_config.profiler is None"),
            ({"profiler": "cuda"}, 'profiler_config.profiler is "cuda", not "torch"'),
            ({"profiler": "torch", "torch_profiler_dir": "s3://bucket"}, "is 's3://bucket', not a folder"),
        ],
    )
    def test_an_unconfigured_profiler_is_explained(
        self, config: dict[str, Any], missing: str, tmp_path: Path
    ) -> None:
        """The failure says whether the profiler is off, is another one, or has no folder."""
        engine = engine_class("LLM", start_profile=lambda self: None)()
        engine.llm_engine = _table(vllm_config=_table(profiler_config=_table(**config)))
        with pytest.raises(EngineFailure, match="LLM\\(…, \\*\\*args\\)") as caught:
            _remote(VllmDriver.of_engine(engine).arm(make_window(tmp_path))).result(10)
        assert missing in str(caught.value)
        assert caught.value.health == "unconfigured"

    def test_an_unknown_option_is_named(self) -> None:
        """An engine object takes no `api_key`; the error names the option."""
        engine = engine_class("LLM", start_profile=lambda self: None)()
        with pytest.raises(ConfigError, match="api_key"):
            VllmKind().connect(engine, api_key="secret")
        assert VllmKind().connect(engine, name="policy").name == "policy"


class TestNsys:
    """The role's backend is nsys: the engine marks its range with cudaProfilerStart and cudaProfilerStop."""

    def test_an_engine_is_built_for_nsys(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        """The arguments contain none of torch's settings, because vLLM refuses them together with another
        profiler.
        """
        fields = dict.fromkeys(
            ("profiler", "torch_profiler_dir", "ignore_frontend", "max_iterations", "delay_iterations")
        )
        config = type("ProfilerConfig", (), {"__dataclass_fields__": fields})
        monkeypatch.setitem(sys.modules, "vllm.config", _table(ProfilerConfig=config))
        built = engine_args(tmp_path, {"backend": "nsys", "max_iterations": 5})["profiler_config"]
        assert built == {
            "profiler": "cuda",
            "ignore_frontend": True,
            "delay_iterations": 0,
            "max_iterations": 5,
        }

    def test_a_version_too_old_for_nsys(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        """Up to 0.12 vLLM can only record with torch, so `engine_args` refuses nsys."""
        monkeypatch.setitem(sys.modules, "vllm.config", _table())
        with pytest.raises(
            ConfigError, match=r'options\.backend = "nsys": vLLM marks its part for nsys from 0\.13 on'
        ):
            engine_args(tmp_path, {"backend": "nsys"})

    @pytest.mark.parametrize(("device", "refused"), [("cuda", False), ("", False), ("xpu", True)])
    def test_engine_args_checks_where_it_is_called(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, device: str, refused: bool
    ) -> None:
        """On a device other than CUDA, `engine_args` refuses nsys. Without a device it accepts nsys,
        because the engine is built elsewhere.
        """
        config = type("ProfilerConfig", (), {"__dataclass_fields__": {"profiler": None}})
        monkeypatch.setitem(sys.modules, "vllm.config", _table(ProfilerConfig=config))
        monkeypatch.setitem(
            sys.modules, "vllm.platforms", _table(current_platform=_table(device_type=device))
        )
        if refused:
            with pytest.raises(ConfigError, match="this vLLM runs on xpu"):
                engine_args(tmp_path, {"backend": "nsys"})
        else:
            assert engine_args(tmp_path, {"backend": "nsys"})["profiler_config"] == {"profiler": "cuda"}

    def test_a_window_of_it(self, tmp_path: Path) -> None:
        """The engine is started and stopped. The process runs without nsys, so the late report is lost."""
        calls: list[str] = []

        def start_profile(self: Any, *, max_iterations: int | None = None) -> None:
            calls.append(f"start {max_iterations}")

        engine = engine_class(
            "LLM", start_profile=start_profile, stop_profile=lambda self: calls.append("stop")
        )()
        engine.vllm_config = _table(profiler_config=_table(profiler="cuda", torch_profiler_dir=""))
        driver = VllmDriver.of_engine(engine)
        window = make_window(tmp_path, backend="nsys", max_iterations=7)
        _remote(driver.arm(window)).result(10)
        _remote(driver.start(window)).result(10)
        stopped = _remote(driver.stop(window)).result(10)
        assert calls == ["start 7", "stop"]
        assert (stopped.artifacts, stopped.partial) == ((), None)
        with pytest.raises(ReportLost, match="the engine was not started under nsys"):
            _remote(stopped.later.wait()).result(10)
        with pytest.raises(EngineFailure, match="stop without start"):
            _remote(driver.stop(window)).result(10)

    def test_a_capture_left_open_is_stopped_first(self, tmp_path: Path) -> None:
        """After a failed stop, the capture is stopped again before the next start."""
        calls: list[str] = []

        def stop_profile(self: Any) -> None:
            calls.append("stop")
            if len(calls) == 2:
                raise RuntimeError("a bad moment")

        engine = engine_class(
            "LLM", start_profile=lambda self: calls.append("start"), stop_profile=stop_profile
        )()
        engine.vllm_config = _table(profiler_config=_table(profiler="cuda", torch_profiler_dir=""))
        driver, window = VllmDriver.of_engine(engine), make_window(tmp_path, backend="nsys")
        _remote(driver.arm(window)).result(10)
        _remote(driver.start(window)).result(10)
        with pytest.raises(EngineFailure, match="a bad moment"):
            _remote(driver.stop(window)).result(20)
        _remote(driver.start(window)).result(10)
        assert calls == ["start", "stop", "stop", "start"]
        _remote(driver.abort()).result(10)
        with pytest.raises(EngineFailure, match="stop without start"):
            _remote(driver.stop(window)).result(10)

    def test_a_delay_is_refused(self, tmp_path: Path) -> None:
        """With a delay it is unknown whether a range has begun in its window, so the arm is refused."""
        engine = engine_class("LLM", start_profile=lambda self: None)()
        with pytest.raises(EngineFailure, match="delay_iterations = 3: under nsys"):
            _remote(
                VllmDriver.of_engine(engine).arm(make_window(tmp_path, backend="nsys", delay_iterations=3))
            ).result(10)

    def test_a_delay_is_refused_when_it_is_attached(self, tmp_path: Path) -> None:
        """`attach` refuses the delay, and the error names the configuration key."""
        engine = engine_class("LLM", start_profile=lambda self: None)()
        roles = {"rollout": {"engine": {"backend": "nsys", "delay_iterations": 3}}}
        stepprof.init({"steps": "2", "backend": "null", "roles": roles, "output_dir": str(tmp_path)}, rank=0)
        try:
            with pytest.raises(ConfigError, match=r"roles\.rollout\.engine\.delay_iterations = 3"):
                stepprof.attach(engine, role="rollout")
        finally:
            stepprof.shutdown()

    def test_an_engine_built_for_torch_is_refused(self, tmp_path: Path) -> None:
        """An engine that was built for torch cannot record with nsys; the failure says how to build it."""
        engine = engine_class("LLM", start_profile=lambda self: None)()
        engine.vllm_config = _table(profiler_config=_table(profiler="torch", torch_profiler_dir="/t"))
        with pytest.raises(EngineFailure, match='profiler is "torch", not "cuda"') as caught:
            _remote(VllmDriver.of_engine(engine).arm(make_window(tmp_path, backend="nsys"))).result(10)
        assert "engine_args(folder, options)" in str(caught.value)

    def test_memory_is_refused(self, tmp_path: Path) -> None:
        """vLLM cannot record memory: `engine_args`, `attach` and the arm refuse it."""
        reported = (
            r'engine\.backend = "memory": a vLLM engine cannot record with it \(one of: torch, npu, nsys\)'
        )
        with pytest.raises(ConfigError, match=reported):
            engine_args(tmp_path, {"backend": "memory"})
        engine = engine_class("LLM", start_profile=lambda self: None)()
        with pytest.raises(EngineFailure, match=reported):
            _remote(VllmDriver.of_engine(engine).arm(make_window(tmp_path, backend="memory"))).result(10)
        stepprof.init({"backend": "memory", "steps": "2", "output_dir": str(tmp_path)}, rank=0)
        try:
            with pytest.raises(ConfigError, match="roles.rollout." + reported):
                stepprof.attach(engine, role="rollout")
        finally:
            stepprof.shutdown()

    def test_the_engines_backend_follows_the_role(self) -> None:
        """The engine's own backend comes first, then the part of the role's backend that an engine can
        record with, then torch.
        """

        def follows(**config: Any) -> object:
            return stepprof.Config(**config).policy("rollout").engine.backend

        assert follows() == ("torch",)
        assert follows(backend="null") == ("torch",)
        assert follows(backend=["torch", "memory"]) == ("torch", "memory")
        assert follows(backend=["nsys", "memory"]) == ("nsys",)
        assert follows(backend="npu") == ("npu",)
        assert follows(backend="nsys", engine={"backend": "torch"}) == ("torch",)
        assert follows(roles={"rollout": {"backend": "nsys"}}) == ("nsys",)
        with pytest.raises(ConfigError, match="nsys and memory cannot record in one engine together"):
            stepprof.Config(engine={"backend": ["nsys", "memory"]})
        with pytest.raises(ConfigError, match='"nsis" is not known; did you mean "nsys"'):
            stepprof.Config(engine={"backend": "nsis"})


class TestArguments:
    """The arguments with which an engine is built."""

    def test_engine_args_without_vllm_is_an_error(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Without vLLM, `engine_args` raises ConfigError, because it must be called where the engine is
        built, and makes no file.
        """
        monkeypatch.setitem(sys.modules, "vllm", None)
        monkeypatch.delitem(sys.modules, "vllm.config", raising=False)
        with pytest.raises(ConfigError, match="call engine_args where the engine is built"):
            engine_args(tmp_path)
        assert not list(tmp_path.iterdir())

    def test_an_unknown_option_of_engine_args_is_refused(self, tmp_path: Path) -> None:
        """An unknown option raises ConfigError with a suggestion."""
        with pytest.raises(ConfigError, match=r"options\.with_stacks.*with_stack"):
            environment(tmp_path, {"with_stacks": True})

    def test_the_environment_of_another_process(self, tmp_path: Path) -> None:
        """`environment` returns the variables that set the folder, the stacks and the limit, for versions
        up to 0.12.
        """
        variables = environment(tmp_path, {"max_iterations": 3})
        assert variables["VLLM_TORCH_PROFILER_DIR"] == str(tmp_path / "engine-1" / "current")
        assert variables["VLLM_TORCH_PROFILER_WITH_STACK"] == "0"
        assert variables["VLLM_PROFILER_MAX_ITERS"] == "3"


def _table(**members: Any) -> Any:
    """Return an object with these attributes."""
    return type("Table", (), members)()


def _remote(work: Any) -> Future[Any]:
    return remote_loop().submit(work)
