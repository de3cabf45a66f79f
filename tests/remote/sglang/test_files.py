"""The files that SGLang writes, and their names in the run. The folders of Ascend are generated, because
no such device was available.
"""

from __future__ import annotations

import gzip
import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from pytest_mock import MockerFixture

from stepprof.config.options.engine import EngineOptions
from stepprof.remote.artifacts import is_whole
from stepprof.remote.base import EngineFailure, EngineWindow
from stepprof.remote.sglang import stages
from stepprof.remote.sglang.files import bring, discard, find, folder_of, require_writable
from stepprof.remote.sglang.request import Facts, Request
from stepprof.remote.sglang.stages import cut, cut_apart
from stepprof.run.model import Window

DECODE = "step[DECODE bs=1]"


def make_window(
    folder: Path, workers: frozenset[int] | None = None, trace_dir: Path | None = None
) -> EngineWindow:
    """Return a window of step 2, with its folder made."""
    (folder / "rollout" / "replica-0").mkdir(parents=True)
    return EngineWindow(
        Window(2, "rollout"),
        0,
        folder,
        "rollout/replica-0",
        EngineOptions(),
        metadata={"run_id": "r", "step": 2},
        workers=workers,
        trace_dir=trace_dir,
    )


def write(path: Path, name: str = DECODE, *, bare: bool = False) -> None:
    """Write a small trace."""
    event = {"ph": "X", "cat": "user_annotation", "name": name, "pid": 1, "tid": 1, "ts": 1.0, "dur": 1.0}
    content = [event] if bare else {"schemaVersion": 1, "traceEvents": [event]}
    path.parent.mkdir(parents=True, exist_ok=True)
    data = json.dumps(content, indent=1).encode()
    path.write_bytes(gzip.compress(data) if path.suffix == ".gz" else data)


def stated(path: Path) -> dict[str, Any]:
    """Return the metadata that an artifact contains."""
    with gzip.open(path) as file:
        reported: dict[str, Any] = json.load(file)["stepprof"]
        return reported


class TestNames:
    @pytest.mark.parametrize(
        ("name", "args", "expected", "worker"),
        [
            ("x-TP-3.trace.json.gz", {"tp_size": 4}, "rank-3", 3),
            ("1712.4-TP-0.trace.json.gz", {}, "rank-0", 0),
            ("x-TP-1-PP-1.trace.json.gz", {"tp_size": 2, "pp_size": 2}, "rank-3", 3),
            ("x-TP-1-DP-1.trace.json.gz", {"tp_size": 2, "dp_size": 2}, "dp-1-rank-1", 3),
            (
                "x-TP-1-DP-1-EP-1.trace.json.gz",
                {"tp_size": 2, "dp_size": 2, "enable_dp_attention": True},
                "dp-1-rank-1",
                1,
            ),
            ("pre-x-TP-0-EXTEND.trace.json.gz", {}, "rank-0.prefill", 0),
            ("x-TP-0-DECODE.trace.json.gz", {}, "rank-0.decode", 0),
            ("x-TP-0-ForwardMode.EXTEND.trace.json.gz", {}, "rank-0.prefill", 0),
            ("x-TP-0-2.trace.json.gz", {}, "rank-0.decode", 0),
            ("x-TP-0.trace.json", {}, "rank-0", 0),
        ],
    )
    def test_names_contain_rank_and_stage(
        self, tmp_path: Path, name: str, args: dict[str, Any], expected: str, worker: int
    ) -> None:
        """The rank and the stage of each artifact are read from the file names of SGLang since 0.4.6."""
        window = make_window(tmp_path)
        write(window.output / name)
        facts = Facts.of("engine", args, "", frozenset())
        brought = bring(window.output, window, facts, Request({}))
        (artifact,) = brought.artifacts
        assert artifact.path == f"rollout/replica-0/{expected}.trace.json.gz"
        assert stated(tmp_path / artifact.path)["rank"] == worker
        assert [path.name for path in window.output.iterdir()] == [f"{expected}.trace.json.gz"]

    def test_others_are_left_alone(self, tmp_path: Path) -> None:
        """A merged trace, a hidden file, a memory snapshot and an unfinished file are not listed as traces
        of a rank.
        """
        for name in (
            "merged-x.trace.json.gz",
            ".x-TP-0.trace.json.gz",
            "x-TP-0-memory.pickle",
            "x-TP-0.trace.json.gz.tmp",
        ):
            write(tmp_path / name)
        assert find(tmp_path) == []

    def test_missing_and_unwanted_ranks(self, tmp_path: Path) -> None:
        """A selected rank without a trace is reported, and files of ranks that are not selected are
        removed.
        """
        window = make_window(tmp_path, workers=frozenset({1, 2}))
        for rank in (0, 1, 3):
            write(window.output / f"x-TP-{rank}.trace.json.gz")
        brought = bring(
            window.output, window, Facts.of("engine", {"tp_size": 4}, "", frozenset()), Request({})
        )
        assert [artifact.path for artifact in brought.artifacts] == ["rollout/replica-0/rank-1.trace.json.gz"]
        assert brought.problems == ["no trace of the engine's rank 2 of 4"]
        assert [path.name for path in window.output.iterdir()] == ["rank-1.trace.json.gz"]

    @pytest.mark.parametrize(
        ("first", "stage"), [("step[EXTEND bs=1 toks=3]", "prefill"), (DECODE, "decode"), ("aten::mm", None)]
    )
    def test_stage_that_was_cut_off(self, tmp_path: Path, first: str, stage: str | None) -> None:
        """A stop within a stage omits the stage from the file's name. The forward steps in the trace show
        the stage.
        """
        window = make_window(tmp_path)
        write(window.output / "x-TP-0.trace.json.gz", first)
        brought = bring(window.output, window, Facts("engine"), Request({}, by_stage=True))
        assert brought.stages == (set() if stage is None else {stage})

    def test_damaged_file(self, tmp_path: Path) -> None:
        """The damaged file stays and is reported. The file of the other rank becomes an artifact."""
        window = make_window(tmp_path)
        write(window.output / "x-TP-0.trace.json.gz")
        write(window.output / "x-TP-1.trace.json.gz")
        whole = (window.output / "x-TP-1.trace.json.gz").read_bytes()
        (window.output / "x-TP-1.trace.json.gz").write_bytes(whole[:-20])
        assert not is_whole(window.output / "x-TP-1.trace.json.gz")
        assert is_whole(window.output / "x-TP-0.trace.json.gz")
        brought = bring(
            window.output, window, Facts.of("engine", {"tp_size": 2}, "", frozenset()), Request({})
        )
        assert len(brought.artifacts) == 1
        assert len(brought.problems) == 1
        assert (window.output / "x-TP-1.trace.json.gz").exists()

    def test_discard(self, tmp_path: Path) -> None:
        """Files of the engine are removed; other files stay."""
        write(tmp_path / "x-TP-0.trace.json.gz")
        (tmp_path / "mine").write_text("stays")
        discard(tmp_path)
        assert [path.name for path in tmp_path.iterdir()] == ["mine"]


class TestAscend:
    def tree(self, folder: Path, host: str, rank: int | None) -> Path:
        """Write the folder that torch_npu's handler leaves for one process and capture."""
        place = folder / f"{host}_ascend_pt"
        write(place / "ASCEND_PROFILER_OUTPUT" / "trace_view.json", bare=True)
        (place / "ASCEND_PROFILER_OUTPUT" / "kernel_details.csv").write_text("Step Id,Name\n")
        info = "profiler_info.json" if rank is None else f"profiler_info_{rank}.json"
        (place / info).write_text("{}")
        (place / "profiler_metadata.json").write_text("{}")
        return place

    def test_ranks_of_a_folder_tree(self, tmp_path: Path) -> None:
        """Each rank's trace becomes an artifact. The folder of torch_npu stays whole, for the tools that
        read it.
        """
        window = make_window(tmp_path)
        places = [self.tree(window.output, f"host_{pid}_2026", rank) for pid, rank in ((7, 1), (8, 0))]
        brought = bring(
            window.output, window, Facts.of("engine", {"tp_size": 2}, "", frozenset()), Request({})
        )
        assert sorted(artifact.path for artifact in brought.artifacts) == [
            "rollout/replica-0/rank-0.trace.json.gz",
            "rollout/replica-0/rank-1.trace.json.gz",
        ]
        assert brought.problems == []
        assert stated(window.output / "rank-1.trace.json.gz")["rank"] == 1
        assert all((place / "ASCEND_PROFILER_OUTPUT" / "trace_view.json").exists() for place in places)
        assert len(list(window.output.iterdir())) == 4

    def test_engine_of_one_rank(self, tmp_path: Path) -> None:
        """A folder without a rank in its file names belongs to rank 0."""
        window = make_window(tmp_path)
        self.tree(window.output, "host_7_2026", None)
        brought = bring(window.output, window, Facts("engine"), Request({}))
        assert [artifact.path for artifact in brought.artifacts] == ["rollout/replica-0/rank-0.trace.json.gz"]

    def test_stages_are_in_the_order_of_time(self, tmp_path: Path) -> None:
        """Two captures of one rank are its prefill and its decode stage, in the order of time."""
        window = make_window(tmp_path)
        for pid in (7, 8):
            self.tree(window.output, f"host_{pid}_2026", 0)
        brought = bring(window.output, window, Facts("engine"), Request({}, by_stage=True))
        assert [artifact.path for artifact in brought.artifacts] == [
            "rollout/replica-0/rank-0.prefill.trace.json.gz",
            "rollout/replica-0/rank-0.decode.trace.json.gz",
        ]

    def test_file_system_without_links(self, tmp_path: Path, mocker: MockerFixture) -> None:
        """On a file system without hard links the trace is copied."""
        mocker.patch.object(Path, "hardlink_to", side_effect=OSError("no links here"))
        window = make_window(tmp_path)
        place = self.tree(window.output, "host_7_2026", 0)
        brought = bring(window.output, window, Facts("engine"), Request({}))
        assert len(brought.artifacts) == 1
        assert (place / "ASCEND_PROFILER_OUTPUT" / "trace_view.json").exists()


class TestFolders:
    def test_a_folder_is_tested_by_writing(self, tmp_path: Path) -> None:
        """The folder is made and tested with a file, which is removed again."""
        require_writable(tmp_path / "a" / "b", "started")
        assert list((tmp_path / "a" / "b").iterdir()) == []

    def test_a_folder_below_a_file_is_refused(self, tmp_path: Path) -> None:
        """If the folder cannot be made, the failure says that SGLang would end its whole process."""
        (tmp_path / "file").write_text("")
        with pytest.raises(EngineFailure, match="would kill its whole process") as caught:
            require_writable(tmp_path / "file" / "b", "started")
        assert caught.value.health == "unconfigured"

    def test_disk_is_full(self, tmp_path: Path, mocker: MockerFixture) -> None:
        """If the disk is nearly full, a start is refused. A stop is still allowed."""
        full = shutil._ntuple_diskusage(1 << 30, 1 << 30, 1 << 20)
        mocker.patch.object(shutil, "disk_usage", return_value=full)
        with pytest.raises(EngineFailure, match="1 MiB left"):
            require_writable(tmp_path, "started")
        require_writable(tmp_path, "stopped")

    def test_each_window_has_its_own_shared_folder(self, tmp_path: Path) -> None:
        """The path in a shared folder contains run, step, role, replica and occurrence, so each window has
        its own.
        """
        window = make_window(tmp_path / "run", trace_dir=tmp_path / "shared")
        assert folder_of(window) == tmp_path / "shared/stepprof/r/step-2/rollout/replica-0/1"
        assert folder_of(make_window(tmp_path / "other")) == tmp_path / "other/rollout/replica-0"


class TestStages:
    def event(self, ts: float, name: str = "aten::mm", cat: str = "cpu_op", **args: Any) -> dict[str, Any]:
        """Return an event of a trace."""
        return {"ph": "X", "cat": cat, "name": name, "pid": 1, "tid": 1, "ts": ts, "dur": 1.0, "args": args}

    def names(self, parts: dict[str, list[dict[str, Any]]]) -> dict[str, list[str]]:
        """Return the names of the events in each part."""
        return {stage: [event["name"] for event in events] for stage, events in parts.items()}

    def test_events_after_a_forward_step_belong_to_it(self) -> None:
        """Events up to the next forward step belong to the current one. Earlier events are in the first
        step's part, metadata in both.
        """
        parts = cut_apart(
            [
                {"ph": "M", "name": "thread_name", "pid": 1, "tid": 1, "ts": 0},
                self.event(1, "before"),
                self.event(10, "step[EXTEND bs=1 toks=3]", "user_annotation"),
                self.event(11, "prefilled"),
                self.event(20, "step[DECODE bs=1]", "user_annotation"),
                self.event(21, "decoded"),
                self.event(30, "step[EXTEND bs=1 toks=3]", "user_annotation"),
                self.event(31, "again"),
            ]
        )
        extend = "step[EXTEND bs=1 toks=3]"
        assert self.names(parts) == {
            "prefill": ["thread_name", "before", extend, "prefilled", extend, "again"],
            "decode": ["thread_name", "step[DECODE bs=1]", "decoded"],
        }

    def test_kernels_belong_to_the_step_that_launched_them(self) -> None:
        """A kernel belongs to the step whose launch has its correlation id, even if the next step has
        begun. An uncorrelated one belongs to the step at its time.
        """
        parts = cut_apart(
            [
                self.event(10, "step[EXTEND bs=1 toks=3]", "user_annotation"),
                self.event(11, "cudaLaunchKernel", "cuda_runtime", correlation=7),
                self.event(20, "step[DECODE bs=1]", "user_annotation"),
                self.event(25, "step[EXTEND bs=1 toks=3]", "gpu_user_annotation"),
                self.event(26, "gemm", "kernel", correlation=7),
                self.event(27, "copy", "gpu_memcpy", correlation=8),
            ]
        )
        assert "gemm" in self.names(parts)["prefill"]
        assert "copy" in self.names(parts)["decode"]

    def test_without_forward_steps_nothing_is_cut(self) -> None:
        """A trace without forward steps has no parts."""
        assert cut_apart([self.event(1)]) == {}

    def test_files_are_cut(self, tmp_path: Path) -> None:
        """Each part becomes an artifact that states its stage, and the whole trace is removed."""
        window = make_window(tmp_path)
        write(window.output / "x-TP-0.trace.json.gz", "step[EXTEND bs=1 toks=3]")
        brought = bring(window.output, window, Facts("engine"), Request({}, cut=True))
        assert [artifact.path for artifact in brought.artifacts] == [
            "rollout/replica-0/rank-0.prefill.trace.json.gz"
        ]
        assert [path.name for path in window.output.iterdir()] == ["rank-0.prefill.trace.json.gz"]
        assert stated(tmp_path / brought.artifacts[0].path) == {
            "run_id": "r",
            "step": 2,
            "rank": 0,
            "stage": "prefill",
        }

    def test_without_stages_it_stays_whole(self, tmp_path: Path) -> None:
        """A trace without forward steps becomes one artifact."""
        window = make_window(tmp_path)
        write(window.output / "x-TP-0.trace.json.gz", "aten::mm")
        brought = bring(window.output, window, Facts("engine"), Request({}, cut=True))
        assert [artifact.path for artifact in brought.artifacts] == ["rollout/replica-0/rank-0.trace.json.gz"]

    def test_a_trace_that_cannot_be_cut_is_kept_whole(
        self, tmp_path: Path, log: Any, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """If the process that cuts the trace fails, the trace is kept whole and a warning is logged."""
        monkeypatch.setattr("sys.executable", "/bin/false")
        window = make_window(tmp_path)
        write(window.output / "x-TP-0.trace.json.gz")
        brought = bring(window.output, window, Facts("engine"), Request({}, cut=True))
        assert [artifact.path for artifact in brought.artifacts] == ["rollout/replica-0/rank-0.trace.json.gz"]
        assert [line["event"] for line in log] == ["trace.not_split"]

    @pytest.mark.parametrize("ts", ["hunter2", [], {"a": 1}, 10**400])
    def test_a_reason_shows_nothing_of_the_trace(self, tmp_path: Path, ts: object) -> None:
        """The failure contains no content of the trace. Files that were written before the failure are
        removed.
        """
        events = [self.event(1, DECODE, "user_annotation"), {**self.event(2), "ts": ts}]
        trace = tmp_path / "a.gz"
        trace.write_bytes(gzip.compress(json.dumps({"hunter2": 1, "traceEvents": events}).encode()))
        with pytest.raises(EngineFailure, match=r"\((ValueError|TypeError|OverflowError)\)") as caught:
            cut(trace)
        assert "hunter2" not in str(caught.value)
        assert [path.name for path in tmp_path.iterdir()] == ["a.gz"]

    def test_cutting_takes_no_more_memory_than_it_may(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """A trace that needs more memory than the limit is not cut, because training needs the machine's
        memory.
        """
        monkeypatch.setattr(stages, "MOST_MEMORY", 512 << 20)
        with gzip.open(tmp_path / "a.gz", "wb", compresslevel=1) as file:
            file.write(b'{"traceEvents": [' + b"[]," * 12_000_000 + b"[]]}")
        with pytest.raises(EngineFailure, match=r"cannot be cut into its stages \(MemoryError\)"):
            cut(tmp_path / "a.gz")

    def test_cutting_imports_no_file_of_the_current_folder(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """A job may run in a folder that has files of the names of modules."""
        for name in ("json", "resource", "stepprof", "runpy"):
            (tmp_path / f"{name}.py").write_text("raise SystemExit('imported')")
        write(tmp_path / "a.gz")
        monkeypatch.chdir(tmp_path)
        assert cut(Path("a.gz"))

    def test_cutting_ends_in_time(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        """Cutting is ended after its timeout, because the engine's stop waits for the parts."""
        monkeypatch.setattr(stages, "CUT_SECONDS", 0.01)
        write(tmp_path / "a.gz")
        with pytest.raises(EngineFailure, match=r"0\.01 s"):
            cut(tmp_path / "a.gz")

    def test_a_trace_that_is_too_large_to_be_parsed(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """A compressed file that unpacks to more than the limit is refused."""
        monkeypatch.setattr(stages, "MOST_BYTES", 1 << 20)
        (tmp_path / "a.gz").write_bytes(gzip.compress(b'{"traceEvents": [' + b" " * (1 << 24)))
        with pytest.raises(SystemExit, match="1048576 bytes"):
            stages.main(tmp_path / "a.gz")

    def test_parts_are_written_through_no_link(self, tmp_path: Path) -> None:
        """The name of a part can be guessed. A link that another user placed there is replaced and not
        followed.
        """
        private = tmp_path / "private"
        private.write_text("mine")
        write(tmp_path / "a.gz")
        (tmp_path / ".a.gz.decode.json.gz").symlink_to(private)
        assert cut(tmp_path / "a.gz")["decode"].stat().st_size > 0
        assert private.read_text() == "mine"

    def test_files_that_unpack_to_any_size(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        """The search for a stage, or for the end of a file, ends at the limit of its unpacked size."""
        monkeypatch.setattr("stepprof.remote.artifacts.MOST_BYTES", 1 << 23)
        window = make_window(tmp_path)
        trace = window.output / "x-TP-0.trace.json.gz"
        trace.write_bytes(gzip.compress(b'{"traceEvents": [' + b" " * (1 << 26) + DECODE.encode()))
        assert not is_whole(trace)
        brought = bring(window.output, window, Facts("engine"), Request({}, by_stage=True))
        assert brought.stages == set()
