"""The recorder and its files: limited memory, rolling files, and the reports of lost spans."""

from __future__ import annotations

import errno
import json
import os
import shutil
import threading
import time
from pathlib import Path

import pytest
from spanning import lines_of, spans_of

import stepprof
from stepprof import counter, mark, region
from stepprof.host.clock import Anchor
from stepprof.instrument import span_recorder as spans_module
from stepprof.instrument.attributes import plain
from stepprof.instrument.context import cell
from stepprof.instrument.scope import DEEPEST, Scope, holding, last_open
from stepprof.instrument.span_recorder import MAX_PENDING, Recorder, is_compiling
from stepprof.recording.span_files import SpanFile


def fill(recorder, count, name="r"):
    """Add this many spans, as a region would."""
    now = time.perf_counter_ns()
    for number in range(count):
        recorder.pending.append((name, "region", now, now + number, 1, None, None, {}, False))


class Folder:
    """Make numbered files in a folder, as a run directory does."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __call__(self) -> Path:
        self.path.mkdir(parents=True, exist_ok=True)
        number = len(list(self.path.iterdir())) + 1
        path = self.path / f"{number:06d}.jsonl"
        path.touch(exist_ok=False)
        return path

    def lines(self) -> list[list[dict]]:
        return [
            [json.loads(line) for line in path.read_text().splitlines()]
            for path in sorted(self.path.glob("*.jsonl"))
        ]


@pytest.fixture
def folder(tmp_path):
    return Folder(tmp_path / "spans")


class TestFiles:
    def test_a_header_and_a_line_per_span(self, folder) -> None:
        """The header names the run, the rank and the clocks. Marks and
        counters follow with absolute times.
        """
        file = SpanFile(folder, {"run_id": "r", "rank": 0}, Anchor.take())
        recorder = Recorder()
        before = time.time_ns()
        recorder.instant("m", "mark", {"a": 1})
        recorder.instant("c", "counter", {"value": 2})
        after = time.time_ns()
        assert file.drain(recorder) == 2
        file.close()
        [[header, first, second]] = folder.lines()
        assert (header["schema_version"], header["kind"], header["run_id"], header["rank"]) == (
            1,
            "spans",
            "r",
            0,
        )
        assert set(header["anchor"]) >= {"unix_ns", "monotonic_ns"}
        assert before - 1_000_000 <= first["start"] <= after + 1_000_000
        assert (first["kind"], first["attrs"], "value" in first) == ("mark", {"a": 1}, False)
        assert (second["kind"], second["value"], "attrs" in second) == ("counter", 2, False)

    def test_nothing_to_write_makes_no_file(self, folder) -> None:
        """A process without spans leaves no file."""
        file = SpanFile(folder, {}, Anchor.take())
        assert file.drain(Recorder()) == 0
        file.close()
        assert not folder.path.exists()

    def test_files_roll(self, folder) -> None:
        """When a file reaches its size, the next one begins with its own
        header. Each span is written once.
        """
        file = SpanFile(folder, {}, Anchor.take(), roll_bytes=100_000)
        recorder = Recorder()
        fill(recorder, 20_000)
        assert file.drain(recorder) == 20_000
        file.close()
        files = folder.lines()
        assert len(files) > 2
        assert all(lines[0]["kind"] == "spans" for lines in files)
        durations = [line["dur"] for lines in files for line in lines[1:]]
        assert durations == list(range(20_000))

    def test_a_round_ends_though_spans_keep_coming(self, folder) -> None:
        """Spans that arrive while a round writes are left for the next round, so that the round ends."""
        recorder = Recorder()
        fill(recorder, 10)

        class Endless(SpanFile):
            def _write(self, batch):
                fill(recorder, 10)
                return super()._write(batch)

        file = Endless(folder, {}, Anchor.take())
        assert file.drain(recorder) == 10
        assert len(recorder.pending) == 10
        file.close()

    def test_many_names_and_tasks(self, folder) -> None:
        """With more names than the writer remembers, each span still has its name."""
        recorder = Recorder()
        for number in range(10_000):
            fill(recorder, 1, f"r{number}")
        file = SpanFile(folder, {}, Anchor.take())
        file.drain(recorder)
        assert len(file._heads) <= 5000
        file.close()
        assert [line["name"] for line in folder.lines()[0][1:]] == [f"r{n}" for n in range(10_000)]

    def test_the_second_session_of_a_rank_takes_the_next_name(self, start) -> None:
        """The second session of a rank writes a file with the next number, and the first file stays."""
        first = start(backend="null")
        mark("first")
        stepprof.shutdown()
        second = start(backend="null")
        mark("second")
        stepprof.shutdown()
        assert first.path == second.path
        names = sorted(path.name for path in (first.path / "spans").iterdir())
        assert names == ["rank-0.000001.jsonl", "rank-0.000002.jsonl"]


class TestLosses:
    def test_memory_is_bounded_while_the_writer_is_dead(self, start, monkeypatch) -> None:
        """If the background thread has ended, the oldest spans are dropped, and the file counts them."""
        monkeypatch.setattr(spans_module, "MAX_PENDING", 50_000)
        session = start(backend="null")
        session.background.stop(5)
        for _ in range(60_000):
            with region("r"):
                pass
        assert len(session.recorder.pending) <= 50_001
        found = spans_of(session)
        kept = [s for s in found if s["name"] == "r"]
        [dropped] = [s for s in found if s["name"] == "stepprof.dropped"]
        assert len(kept) + dropped["value"] == 60_000
        assert dropped["value"] >= 9_999
        assert dropped["kind"] == "counter"

    def test_drops_are_logged(self, start, log, monkeypatch) -> None:
        """One log line counts the dropped spans, including marks and counters, with the reason."""
        monkeypatch.setattr(spans_module, "MAX_PENDING", 33_000)
        session = start(backend="null")
        session.background.stop(5)
        for _ in range(20_000):
            mark("m")
            counter("c", 1)
        stepprof.shutdown()
        [line] = [line for line in log if line["event"] == "spans.dropped"]
        assert line["spans"] == 7_000
        assert "more regions than the writer can keep up with" in line["reason"]

    def test_the_memory_limit_holds(self) -> None:
        """The limit of pending spans is 64 MiB at 250 bytes each."""
        assert MAX_PENDING * 250 <= 64 * 2**20

    def test_a_full_disk(self, folder, log) -> None:
        """On a full disk, spans are lost and counted, one line is logged, and no error is raised."""
        file = SpanFile(lambda: Path("/dev/full"), {}, Anchor.take())
        recorder = Recorder()
        for _ in range(3):
            fill(recorder, 10)
            assert file.drain(recorder) == 0
        assert file.lost == 30
        assert Path("/dev/full").exists()
        assert [line["event"] for line in log] == ["spans.not_written"]
        assert os.strerror(errno.ENOSPC) in log[0]["reason"]

    def test_a_disk_that_gets_room_again(self, folder) -> None:
        """Once the disk has room again, a new file begins. It states the number of lost spans."""
        places = iter([Path("/dev/full"), Path("/dev/full")])
        file = SpanFile(lambda: next(places, None) or folder(), {}, Anchor.take())
        recorder = Recorder()
        for _ in range(3):
            fill(recorder, 5)
            file.drain(recorder)
        file.close()
        [[_, *spans, reported]] = folder.lines()
        assert len(spans) == 5
        assert (reported["name"], reported["value"]) == ("stepprof.dropped", 10)
        assert file.lost == 10

    def test_no_litter_on_a_full_disk(self, folder, monkeypatch) -> None:
        """If the header cannot be written, the empty file is removed."""
        file = SpanFile(folder, {}, Anchor.take())
        recorder = Recorder()
        fill(recorder, 5)

        def full(fd, data):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

        with monkeypatch.context() as patch:
            patch.setattr(os, "write", full)
            assert file.drain(recorder) == 0
            assert file.drain(recorder) == 0
        assert list(folder.path.iterdir()) == []
        fill(recorder, 1)
        assert file.drain(recorder) == 1
        file.close()

    def test_an_unlogged_loss_is_added_to_the_next_line(self, folder) -> None:
        """If the line that counts lost spans cannot be written, a later one counts them, and only once."""
        recorder = Recorder()
        for _ in range(7):
            recorder.pending.append(("r", "region", 1, 2, 1, None, None, {}, False))
        recorder._dropped.__next__()
        refuse = [True]

        class Refusing(SpanFile):
            def _put(self, data):
                if refuse[0] and b"stepprof.dropped" in data:
                    raise OSError(errno.EIO, "no")
                super()._put(data)

        file = Refusing(folder, {}, Anchor.take())
        file.drain(recorder)
        refuse[0] = False
        fill(recorder, 1)
        file.drain(recorder)
        file.drain(recorder)
        file.close()
        reported = [
            line for lines in folder.lines() for line in lines if line.get("name") == "stepprof.dropped"
        ]
        assert [line["value"] for line in reported] == [1]
        assert file.lost == 1

    def test_a_vanished_folder(self, start, log) -> None:
        """If the run directory is removed, later spans are written to a new folder."""
        session = start(backend="null")
        mark("before")
        session.background.round()
        shutil.rmtree(session.path)
        mark("after")
        session.background.round()
        names = [line.get("name") for line in lines_of(session)]
        assert names == [None, "after"]

    def test_a_folder_that_cannot_be_made(self, start, log) -> None:
        """If a file replaces the run directory, one line is logged, and the loop continues."""
        session = start(backend="null")
        shutil.rmtree(session.path)
        session.path.write_text("in the way")
        for _ in range(3):
            mark("m")
            session.background.round()
        stepprof.shutdown()
        assert sum(line["event"] == "spans.not_written" for line in log) == 1

    def test_bad_attributes_never_cost_the_others(self, start) -> None:
        """An attribute that another thread changes meanwhile does not prevent its span
        or others from being written.
        """
        session = start(backend="null")
        growing: dict = {str(n): n for n in range(50)}
        stop = threading.Event()

        def grow():
            while not stop.is_set():
                for n in range(50, 200):
                    growing[str(n)] = n
                for n in range(50, 200):
                    del growing[str(n)]

        thread = threading.Thread(target=grow)
        thread.start()
        for _ in range(300):
            with region("r", growing=growing):
                pass
        stop.set()
        thread.join()
        assert len(spans_of(session, "r")) == 300


class TestClockAndThreads:
    def test_the_id_of_the_system(self, start) -> None:
        """Each span has the system's id of its thread, as traces have it."""
        session = start(backend="null")
        ids = []

        def work():
            ids.append(threading.get_native_id())
            mark("m")

        threads = [threading.Thread(target=work) for _ in range(3)]
        for thread in threads:
            thread.start()
            thread.join()
        assert [s["thread"] for s in spans_of(session, "m")] == ids

    def test_torch_imported_after_the_session(self, run_script) -> None:
        """If torch is imported after `init`, the recorder asks torch whether it compiles.
        No mark is written meanwhile.
        """
        done = run_script(
            """
            import stepprof, sys, types
            from stepprof.instrument.span_recorder import is_compiling
            session = stepprof.init({"output_dir": "runs", "backend": "null"}, rank=0, world_size=1)
            assert not session.recorder.is_compiling() and not is_compiling()
            torch = types.ModuleType("torch")
            sys.modules["torch"] = torch
            session.recorder.look_for_torch()
            assert not session.recorder.is_compiling() and not is_compiling()  # half imported
            torch.compiler = types.SimpleNamespace(is_compiling=lambda: True)
            assert session.recorder.is_compiling() and is_compiling()
            session.recorder.look_for_torch()
            assert session.recorder.is_compiling is torch.compiler.is_compiling
            with stepprof.region("r"):
                stepprof.mark("m")
            torch.compiler.is_dynamo_compiling = lambda: False
            session.recorder.look_for_torch()
            assert session.recorder.is_compiling is torch.compiler.is_dynamo_compiling
            stepprof.mark("seen")
            stepprof.shutdown()
            [path] = (session.path / "spans").iterdir()
            print([line for line in path.read_text().splitlines() if "seen" in line or '"m"' in line].__len__())
            """
        ).check()
        assert done.stdout.split() == ["1"]

    def test_scopes_that_contain_themselves_end(self) -> None:
        """If scopes contain each other in a ring, the search in them ends."""
        ring = Scope()
        ring._start, ring._thread, ring._task, ring._outer, ring._before = 0, 1, None, ring, ring
        ring._recorder = None
        assert holding(ring, None, 1, None) is None
        assert last_open(ring) is None
        assert DEEPEST >= 50
        assert cell.recorder is None
        assert not is_compiling()

    def test_plain_looks_into_plain_values_only(self) -> None:
        """An object that pretends to be a string, or raises an error when asked, is written as its type."""

        class Liar:
            @property
            def __class__(self):
                return str

        class Failing:
            @property
            def __class__(self):
                raise RuntimeError

        assert plain(Liar()) == "<Liar>"
        assert plain(Failing()) == "<Failing>"
        assert plain([Failing(), 1]) == ["<Failing>", 1]
