"""Snapshots of CUDA's allocator, in the format that torch documents at
`torch.cuda.memory._snapshot`: their peaks, the largest allocations, `show` and `check`.
"""

from __future__ import annotations

import json
import os
import pickle
from pathlib import Path
from typing import Any

import pytest
from runs import make_run, record

from stepprof.analysis.verify import verify_run
from stepprof.cli.main import main
from stepprof.formats import memory_snapshot
from stepprof.formats.memory_peaks import device_peaks
from stepprof.formats.memory_snapshot import read_snapshot

MIB = 1 << 20
START_US = 1_700_000_000_000_000


def frames(*names: str) -> list[dict[str, Any]]:
    """Return a stack as torch has it, the innermost frame first: torch's own frames, then the user's."""
    inner = {"filename": "/venv/site-packages/torch/nn/modules/linear.py", "line": 125, "name": "forward"}
    cpp = {"filename": "??", "line": 0, "name": "at::native::empty"}
    users = [
        {"filename": f"/job/train/{name}.py", "line": 10 + i, "name": name} for i, name in enumerate(names)
    ]
    return [cpp, inner, *users]


def entry(action: str, addr: int, size: int, at: int = 0, stack: list[dict[str, Any]] | None = None) -> dict:
    made = {"action": action, "addr": addr, "size": size, "stream": 0, "time_us": START_US + at}
    return made if stack is None else {**made, "frames": stack}


def freed(addr: int, size: int, at: int = 0) -> list[dict]:
    return [entry("free_requested", addr, size, at), entry("free_completed", addr, size, at)]


def block(
    addr: int, size: int, stack: list[dict[str, Any]] | None = None, state: str = "active_allocated"
) -> dict:
    return {"address": addr, "size": -(-size // 512) * 512, "requested_size": size, "state": state, "frames": stack or []}  # fmt: skip


def segment(addr: int, *blocks: dict, device: int = 0) -> dict:
    return {
        "device": device, "address": addr, "total_size": sum(b["size"] for b in blocks), "stream": 0,
        "segment_type": "large", "segment_pool_id": (0, 0), "is_expandable": False, "frames": [],
        "allocated_size": 0, "active_size": 0, "requested_size": 0, "blocks": list(blocks),
    }  # fmt: skip


def training_step() -> dict[str, Any]:
    """Return the snapshot of a step: 100 MiB of weights from before, 300 MiB of freed activations,
    50 MiB of gradients that stay. Another 20 MiB from before are freed.
    """
    forward, backward = frames("forward", "step"), frames("backward", "step")
    trace = [
        entry("alloc", 0x2000, 200 * MIB, 100, forward),
        entry("alloc", 0x3000, 100 * MIB, 200, forward),
        *freed(0x5000, 20 * MIB, 250),
        *freed(0x2000, 200 * MIB, 300),
        entry("alloc", 0x4000, 50 * MIB, 400, backward),
        *freed(0x3000, 100 * MIB, 500),
        entry("snapshot", 0, 0, 600),
    ]
    return {
        "segments": [
            segment(0x1000, block(0x1000, 100 * MIB)),
            segment(0x4000, block(0x4000, 50 * MIB, backward), block(0x9000, 7 * MIB, state="inactive")),
        ],
        "device_traces": [trace, []],
        "allocator_settings": {"expandable_segments": False, "roundup_power2_divisions": {"1": 0}},
        "external_annotations": [],
    }


def write(path: Path, table: object) -> Path:
    path.write_bytes(pickle.dumps(table, protocol=4))
    return path


class TestPeaks:
    def test_followed_back_from_the_end(self) -> None:
        """The history is followed back from its end. The peak has weights, activations and the 20
        MiB that are freed later.
        """
        (peak,) = device_peaks(training_step())
        assert (peak.device, peak.entries, peak.allocations, peak.ooms) == (0, 10, 3, 0)
        assert peak.active_bytes == 150 * MIB
        assert peak.peak_bytes == (100 + 300 + 20) * MIB
        assert (peak.peak_entry, peak.peak_unix_us) == (1, START_US + 200)

    def test_a_ring_that_has_lost_its_beginning(self) -> None:
        """A history that lost its beginning is evaluated as far as it goes. Here the peak is at its
        beginning.
        """
        table = training_step()
        table["device_traces"][0] = table["device_traces"][0][2:]
        (peak,) = device_peaks(table)
        assert peak.peak_bytes == 420 * MIB
        assert (peak.peak_entry, peak.peak_unix_us) == (None, None)

    def test_each_device_has_its_own_peak(self) -> None:
        """Each device has its own peak."""
        table = training_step()
        table["segments"].append(segment(0x7000, block(0x7000, 5 * MIB), device=1))
        table["device_traces"][1] = [entry("alloc", 0x7000, 5 * MIB, 700)]
        assert [(peak.device, peak.peak_bytes) for peak in device_peaks(table)] == [
            (0, 420 * MIB),
            (1, 5 * MIB),
        ]

    @pytest.mark.parametrize(
        "table",
        [
            {},
            {"segments": None, "device_traces": 3},
            {"segments": ["x", {"device": "0", "blocks": [None, {"size": 1.5, "state": []}]}]},
            {"segments": [], "device_traces": [[None, 5, {"action": "alloc", "size": "big"}], "x"]},
        ],
    )
    def test_nonsense_counts_as_none(self, table: dict[str, Any]) -> None:
        """Invalid content of a file counts as zero bytes."""
        assert sum(peak.peak_bytes for peak in device_peaks(table)) == 0


class TestRead:
    def test_the_peak_is_assigned_to_user_code(self, tmp_path: Path) -> None:
        """The innermost frame outside torch counts. Memory from before the window has no stack."""
        found = read_snapshot(write(tmp_path / "s.pickle", training_step()))
        assert found.finding is None
        forward, before = found.top[0]
        assert (forward.bytes, forward.count) == (300 * MIB, 2)
        assert forward.frames == ("/job/train/forward.py:10 forward", "/job/train/step.py:11 step")
        assert (before.bytes, before.count, before.frames) == (120 * MIB, 2, ())

    @pytest.mark.parametrize(
        ("context", "by"), [("alloc", ("/job/train/load.py:10 load",)), ("all", ()), (None, ())]
    )
    def test_freed_memory_is_assigned_to_its_allocation(
        self, tmp_path: Path, context: str | None, by: tuple[str, ...]
    ) -> None:
        """torch records a free with the stack of its allocation, unless stacks of frees are
        recorded. stepprof's files state which.
        """
        table = {**training_step(), "stepprof": {"context": context}}
        for one in table["device_traces"][0][2:4]:  # 20 MiB from before the window
            one["frames"] = frames("load")
        found = read_snapshot(write(tmp_path / "s.pickle", table))
        assert (20 * MIB, by) in [(place.bytes, place.frames) for place in found.top[0]] or not by
        assert sum(place.bytes for place in found.top[0] if not place.frames) == (100 if by else 120) * MIB

    def test_blocks_without_addresses(self, tmp_path: Path) -> None:
        """torch up to 2.1 gives only the address of a segment. Its blocks follow one another."""
        table = training_step()
        for one in table["segments"]:
            for inner in one["blocks"]:
                del inner["address"]
        found = read_snapshot(write(tmp_path / "s.pickle", table))
        assert [place.bytes for place in found.top[0]] == [300 * MIB, 120 * MIB]

    def test_names_are_printable(self, tmp_path: Path) -> None:
        """A lone surrogate in a file name is printed as a question mark."""
        table = training_step()
        table["device_traces"][0][0]["frames"] = [{"filename": "/job/\ud800.py", "line": 3, "name": "step"}]
        found = read_snapshot(write(tmp_path / "s.pickle", table))
        assert "/job/?.py:3 step" in {place.frames[0] for place in found.top[0] if place.frames}

    def test_an_out_of_memory_snapshot_states_the_request(self, tmp_path: Path) -> None:
        """An out-of-memory snapshot has the device and the size of the failed request."""
        table = {**training_step(), "stepprof": {"out_of_memory": {"device": 0, "asked_bytes": 5}}}
        assert read_snapshot(write(tmp_path / "s.pickle", table)).out_of_memory == {
            "device": 0,
            "asked_bytes": 5,
        }

    def test_a_hostile_snapshot_is_a_finding(self, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
        """A snapshot that would run code is refused, and the code is not run."""

        class Evil:
            def __reduce__(self):
                return os.system, ("echo hacked",)

        found = read_snapshot(write(tmp_path / "s.pickle", {"segments": [Evil()]}))
        assert found.finding is not None
        assert found.finding.startswith("is not read: instruction STACK_GLOBAL at byte ")
        assert found.devices == []
        assert capfd.readouterr().out == ""

    def test_a_small_file_of_endless_tables(self, tmp_path: Path) -> None:
        """A small file names the same list thousands of times. Its entries are counted first, and
        it is refused.
        """
        trace = [entry("alloc", 1, 1)] * 3000
        path = write(tmp_path / "s.pickle", {"segments": [], "device_traces": [trace] * 3000})
        assert path.stat().st_size < 50_000
        assert read_snapshot(path).finding == f"is not read: more than {memory_snapshot.MAX_ENTRIES} entries"

    @pytest.mark.parametrize("content", [[], {"segments": 3}, "text", {"device_traces": []}])
    def test_a_plain_pickle_is_not_a_snapshot(self, tmp_path: Path, content: object) -> None:
        """A pickle of plain values without segments is not a snapshot."""
        finding = read_snapshot(write(tmp_path / "s.pickle", content)).finding
        assert finding == "is not read: not a snapshot of CUDA's allocator: it has no segments"

    def test_too_large_or_absent(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        """A file that is too large or missing is a finding."""
        path = write(tmp_path / "s.pickle", training_step())
        monkeypatch.setattr(memory_snapshot, "MAX_BYTES", 100)
        assert "more than the 100 that are read here" in str(read_snapshot(path).finding)
        assert read_snapshot(tmp_path / "none").finding == "cannot be read: No such file or directory"

    @pytest.mark.torch
    def test_torch_reads_ours(self, tmp_path: Path) -> None:
        """The entry that stepprof adds does not disturb torch's own tools."""
        pytest.importorskip("torch")
        from torch.cuda import _memory_viz

        table = pickle.loads(
            write(tmp_path / "s.pickle", {**training_step(), "stepprof": {"step": 2}}).read_bytes()
        )
        assert "total_allocated: 150.0MiB" in _memory_viz.segsum(table)
        assert "a = MEM[8192:200.0MiB]" in _memory_viz.trace(table)
        assert "MemoryViz.js" in _memory_viz.trace_plot(table)


@pytest.fixture
def run(tmp_path: Path) -> Any:
    """Return a run of a step. Rank 0 has a snapshot and a summary, rank 1 a hostile snapshot and a
    summary.
    """
    run = make_run(tmp_path)
    for rank in (0, 1):
        claim = record(run, rank=rank, data=b"", backend="memory")
        file = claim.folder / f"{claim.stem}.memory.pickle"
        if rank:
            file.write_bytes(b"\x80\x04cos\nsystem\n.")
        else:
            write(file, training_step())
        summary = claim.folder / f"{claim.stem}.memory.json"
        device = {
            "device": 0, "allocated_bytes": 150 * MIB, "reserved_bytes": 440 * MIB, "max_allocated_bytes": 420 * MIB,
            "max_reserved_bytes": 440 * MIB, "num_alloc_retries": 0, "num_ooms": rank,
            "history_peak_bytes": 420 * MIB, "history_peak_unix_us": START_US + 1_500_000,
        }  # fmt: skip
        summary.write_text(json.dumps({"devices": [device]}))
        content = json.loads(claim.fragment.read_text())
        content["windows"][0]["artifacts"] = [
            {"path": path.relative_to(claim.folder).as_posix(), "kind": kind, "bytes": path.stat().st_size, "events": None}
            for path, kind in ((file, "memory-snapshot"), (summary, "memory-summary"))
        ]  # fmt: skip
        claim.write(content)
    return run


class TestShow:
    def test_show_prints_peaks_and_largest_allocations(
        self, run: Any, capsys: pytest.CaptureFixture[str]
    ) -> None:
        """`show` prints the peaks of each process and device, with the second in the window. The
        hostile snapshot is a note.
        """
        assert main(["show", str(run.path)]) == 0
        out = capsys.readouterr().out
        (line,) = (
            line
            for line in out.splitlines()
            if line.startswith("  actor/rank-0.memory.json  ") and "MiB" in line
        )
        assert " ".join(line.split()[1:]) == "0 150.0 MiB 420.0 MiB 1.500 420.0 MiB 440.0 MiB 0"
        assert "actor/rank-0.memory.pickle, device 0: 420.0 MiB requested and held at the peak" in out
        assert "300.0 MiB       2  train/forward.py:10 forward < train/step.py:11 step" in out
        assert "allocated before the history began, or without a stack" in out
        assert (
            "actor/rank-1.memory.pickle: is not read: instruction GLOBAL at byte 2: it would run code" in out
        )

    def test_for_programs(self, run: Any, capsys: pytest.CaptureFixture[str]) -> None:
        """The JSON has the same data with whole stacks. `--snapshots` limits how many are read."""
        assert main(["show", str(run.path), "--json", "--snapshots", "1"]) == 0
        memory = json.loads(capsys.readouterr().out)["memory"]
        assert [peak["artifact"] for peak in memory["peaks"]] == ["actor/rank-0.memory.json", "actor/rank-1.memory.json"]  # fmt: skip
        (snapshot,) = memory["snapshots"]
        assert snapshot["devices"][0]["peak_bytes"] == 420 * MIB
        assert snapshot["top"]["0"][0]["frames"][0] == "/job/train/forward.py:10 forward"
        assert memory["not_read"] == ["actor/rank-1.memory.pickle"]

    def test_snapshots_zero_reads_none(self, run: Any, capsys: pytest.CaptureFixture[str]) -> None:
        """A note counts the snapshots that were not read."""
        assert main(["show", str(run.path), "--snapshots", "0"]) == 0
        out = capsys.readouterr().out
        assert "2 more memory snapshots not read; --snapshots 2 reads all" in out
        assert "held at the peak" not in out

    def test_a_number_beyond_all_measure(self, run: Any, capsys: pytest.CaptureFixture[str]) -> None:
        """Impossible numbers are omitted, and the other numbers are shown."""
        device = {
            "device": 0,
            "allocated_bytes": 10**400,
            "history_peak_unix_us": 10**400,
            "max_allocated_bytes": MIB,
        }
        (run.path / "step-000002/actor/rank-0.memory.json").write_text(json.dumps({"devices": [device]}))
        assert main(["show", str(run.path)]) == 0
        (line,) = (
            line
            for line in capsys.readouterr().out.splitlines()
            if line.startswith("  actor/rank-0.memory.json  ") and "MiB" in line
        )
        assert line.split()[1:] == ["0", "-", "-", "-", "1.0", "MiB", "-", "-"]

    def test_a_damaged_summary_is_a_note(self, run: Any, capsys: pytest.CaptureFixture[str]) -> None:
        """The damaged summary is a note, and that of the other rank is shown."""
        (run.path / "step-000002/actor/rank-0.memory.json").write_text("{")
        assert main(["show", str(run.path)]) == 0
        out = capsys.readouterr().out
        assert "actor/rank-0.memory.json: damaged" in out
        assert "  actor/rank-1.memory.json" in out


class TestCheck:
    def test_a_snapshot_is_read_whole(self, run: Any) -> None:
        """The hostile snapshot is a problem, and the other one is not. Other kinds of files next to
        them are not reported twice.
        """
        reported = [f"{problem.where}: {problem.problem}" for problem in verify_run(run.path).problems]
        assert reported == [
            "step-000002/actor/rank-1.memory.pickle: is not read: instruction GLOBAL at byte 2: it would run code"
        ]

    def test_a_truncated_snapshot_is_a_problem(self, run: Any) -> None:
        """The file has the size in the manifest, but its end is damaged."""
        file = run.path / "step-000002/actor/rank-0.memory.pickle"
        file.write_bytes(file.read_bytes()[:-1] + b"\x00")
        (problem, _) = verify_run(run.path).problems
        assert problem.problem.startswith("is not read: instruction 0x00 at byte ")
