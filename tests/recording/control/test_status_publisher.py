"""The status file of a session: when it is written, under which name, and what happens if writing fails."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from structlog.testing import capture_logs

from stepprof.instrument.scope import Scope
from stepprof.recording.control.live_status import Pace
from stepprof.recording.control.status_publisher import BEAT_SECONDS, Publisher
from stepprof.run.layout import RunDir
from stepprof.run.manifest_writer import Origin
from stepprof.run.status import read_statuses


class WatchedPublisher:
    """A publisher with a status that the test sets."""

    def __init__(self, run: Path, rank: int | str = 0, world_size: int | None = 4) -> None:
        self.condition: dict[str, Any] = {"state": "idle"}
        self.progress: dict[str, Any] = {"step": 1}
        self.origin = Origin(RunDir(run, "run"), rank, world_size)
        self.publisher = Publisher(self.origin, lambda: dict(self.condition), lambda: dict(self.progress))

    def after(self, seconds: float) -> dict[Any, Any]:
        """Publish as if so many seconds had passed since the last version, and return the status files."""
        self.publisher._written -= seconds
        self.publisher.publish()
        return self.read()

    def read(self) -> dict[Any, Any]:
        return {status["file"]: status for status in read_statuses(self.origin.run.path)}


@pytest.fixture
def published(tmp_path: Path) -> WatchedPublisher:
    made = WatchedPublisher(tmp_path)
    made.publisher.publish()
    return made


class TestWhen:
    def test_states_are_published_at_once_steps_later_and_heartbeats(
        self, published: WatchedPublisher
    ) -> None:
        """A new state is published after 1 s, a new step after 2 s, and an unchanged status after 5 s."""
        published.condition["state"] = "recording"
        published.publisher.publish()
        assert published.read()["rank-0.json"]["state"] == "idle"
        assert published.after(1.0)["rank-0.json"]["state"] == "recording"
        published.progress["step"] = 2
        assert published.after(1.0)["rank-0.json"]["step"] == 1
        assert published.after(1.1)["rank-0.json"]["step"] == 2
        before = published.read()["rank-0.json"]["published_unix_ns"]
        assert published.after(3.0)["rank-0.json"]["published_unix_ns"] == before
        assert published.after(2.1)["rank-0.json"]["published_unix_ns"] > before

    def test_in_large_jobs_steps_wait_for_the_heartbeat(self, tmp_path: Path) -> None:
        """In a job of 1,000 ranks, a new step is published with the next
        heartbeat, to spare the file system.
        """
        published = WatchedPublisher(tmp_path, world_size=1000)
        published.publisher.publish()
        published.progress["step"] = 2
        assert published.after(3.0)["rank-0.json"]["step"] == 1
        assert published.after(BEAT_SECONDS - 2.9)["rank-0.json"]["step"] == 2

    def test_the_final_state_is_published(self, published: WatchedPublisher) -> None:
        """A session that ends publishes a final status, which is read as ended."""
        published.publisher.close(failed=False)
        assert published.read()["rank-0.json"]["condition"] == "ended"


class TestName:
    def test_the_rank_becomes_known(self, published: WatchedPublisher) -> None:
        """When the rank becomes known, the status file is renamed."""
        published.origin.rank = 3
        assert list(published.after(6)) == ["rank-3.json"]

    def test_a_living_process_of_the_same_rank_keeps_its_file(
        self, published: WatchedPublisher, tmp_path: Path
    ) -> None:
        """If another living process has the rank's file, the second one gets a number. The file of
        an ended process is replaced.
        """
        script = (
            "import sys, json; from stepprof.host.process_identity import writer_identity; print(json.dumps(writer_identity())); "
            "sys.stdout.flush(); sys.stdin.read()"
        )
        other = subprocess.Popen(
            [sys.executable, "-c", script], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        assert other.stdout is not None
        path = tmp_path / "status" / "rank-0.json"
        content = json.loads(path.read_text())
        path.write_text(json.dumps({**content, "writer": json.loads(other.stdout.readline())}))
        second = WatchedPublisher(tmp_path)
        second.publisher.publish()
        assert set(second.read()) == {"rank-0.json", "rank-0.2.json"}
        other.communicate("")
        third = WatchedPublisher(tmp_path)
        third.origin.writer = {**third.origin.writer, "pid": 1, "pid_start": 1}
        third.publisher.publish()
        assert json.loads(path.read_text())["writer"]["pid"] == 1

    @pytest.mark.parametrize("damaged", ["", "[]", '{"writer": 3}', "[" * 100_000])
    def test_a_damaged_file_of_the_same_name_is_not_replaced(self, tmp_path: Path, damaged: str) -> None:
        """A damaged file that has the name stays unchanged, and the status gets a number."""
        (tmp_path / "status").mkdir()
        (tmp_path / "status" / "rank-0.json").write_text(damaged)
        published = WatchedPublisher(tmp_path)
        published.publisher.publish()
        assert (tmp_path / "status" / "rank-0.json").read_text() == damaged
        assert "rank-0.2.json" in published.read()

    def test_a_pipe_in_its_place(self, tmp_path: Path) -> None:
        """If a pipe has the name, the publisher does not block on it, because `init`
        publishes on the training thread.
        """
        (tmp_path / "status").mkdir()
        os.mkfifo(tmp_path / "status" / "rank-0.json")
        published = WatchedPublisher(tmp_path)
        published.publisher.publish()
        assert [name for name, seen in published.read().items() if seen["condition"] == "live"] == [
            "rank-0.2.json"
        ]

    def test_a_process_without_a_rank(self, tmp_path: Path) -> None:
        """The driver of a Ray job has `driver` in place of a rank."""
        published = WatchedPublisher(tmp_path, "driver")
        published.publisher.publish()
        assert published.read()["rank-driver.json"]["rank"] == "driver"


class TestFailing:
    def test_a_failure_is_logged_once_and_retried(self, published: WatchedPublisher, tmp_path: Path) -> None:
        """If the run directory disappears, one line is logged. When it is back,
        the status is written again.
        """
        moved = tmp_path.with_name(f"{tmp_path.name}-moved")
        tmp_path.rename(moved)
        with capture_logs() as logs:
            published.after(6)
            published.after(2)
            published.after(6)
        assert [entry["event"] for entry in logs] == ["status.not_written"]
        tmp_path.mkdir()
        published.condition["state"] = "armed"
        assert published.after(6)["rank-0.json"]["state"] == "armed"
        shutil.rmtree(moved)


class TestPace:
    @staticmethod
    def window(step: int, start: float, end: float, role: str | None = None) -> Any:
        scope = Scope()
        scope.number, scope.role = step, role
        return (role or "step", "window", round(start * 1e9), round(end * 1e9), 1, None, scope, None, False)

    def test_the_pace_of_windows(self) -> None:
        """The time of a step is from the begin of its first window to the end of its last one. The
        pace is from begin to begin.
        """
        pace = Pace()
        assert (pace.seconds, pace.shortest) == (None, None)
        pace.see([self.window(1, 0.0, 0.5, "rollout"), self.window(1, 0.5, 1.0, "actor")])
        assert pace.seconds is None
        pace.see([self.window(2, 3.0, 4.0), ("region", "region", 0, 1, 1, None, None, None, False)])
        assert (pace.seconds, pace.shortest) == (1.0, 3.0)
        pace.see([self.window(3, 5.0, 5.5)])
        assert (pace.seconds, pace.shortest, pace.roles) == (1.0, 2.0, {"actor", "rollout"})

    def test_the_pace_of_a_window_around_later_ones(self) -> None:
        """The window of a whole step ends last but began first. Its begin is used for the pace."""
        pace = Pace()
        for step in range(1, 4):
            pace.see(
                [
                    self.window(step, 60 * step + 50, 60 * step + 59, "actor"),
                    self.window(step, 60 * step, 60 * step + 60),
                ]
            )
        assert pace.shortest == 60.0

    def test_the_pace_of_overlapping_steps(self) -> None:
        """If the rollout of the next step overlaps the current step, the pace is that of the loop: 10 s."""
        pace = Pace()
        for step in range(1, 9):
            begun = 10.0 * step
            pace.see(
                [
                    self.window(step + 1, begun, begun + 8, "rollout"),
                    self.window(step, begun, begun + 9, "actor"),
                ]
            )
        assert (pace.newest, pace.shortest, pace.stride, pace.seconds) == (9, 10.0, 1, 19.0)

    def test_the_pace_of_steps_far_apart(self) -> None:
        """Steps are numbered by tens. A window that was open for long does not reset the pace;
        going back to a checkpoint does.
        """
        pace = Pace()
        pace.see([self.window(10 * number, number, number + 0.5) for number in range(1, 20)])
        pace.see([self.window(10, 0.0, 19.9, "stream")])
        assert (pace.newest, pace.shortest, pace.stride) == (190, 1.0, 10)
        pace.see([self.window(50, 30.0, 31.0), self.window(60, 31.0, 31.5)])
        assert (pace.newest, pace.seconds, pace.stride) == (60, 1.0, 10)

    def test_without_spans_the_pace_is_measured_between_looks(self) -> None:
        """Without spans, the pace is measured between two calls of `since_unix_ns` with different steps."""
        pace = Pace()
        assert pace.since_unix_ns(None) is None
        first = pace.since_unix_ns(1)
        assert pace.since_unix_ns(1) == first
        assert pace.shortest is None
        pace.since_unix_ns(11)
        assert pace.shortest is not None
