"""A rank that falls behind the others is logged once by one process, and only this rank is recorded."""

from __future__ import annotations

import json
import time

import pytest
from structlog.testing import capture_logs

from recording.watch.test_watcher import Loop, claims
from stepprof.config.config import Config
from stepprof.errors import ConfigError
from stepprof.host.process_identity import writer_identity
from stepprof.recording.watch import stragglers
from stepprof.recording.watch.stragglers import LagFinder, lags
from stepprof.run.requests import REQUESTS


def status(rank, step, seconds=10.0, **more) -> dict:
    return {"rank": rank, "step": step, "step_seconds": seconds, "condition": "live", **more}


class TestLags:
    def test_steps_times_their_seconds(self) -> None:
        """A rank that is six steps of ten seconds behind lags by 60 s. A rank that is
        one step behind does not lag.
        """
        (lag,) = lags([status(0, 50), status(1, 50), status(2, 44), status(3, 49), status(4, 50)], 60)
        assert (lag.rank, lag.step, lag.median_step, lag.seconds) == (2, 44, 50, 60.0)

    @pytest.mark.parametrize(
        "statuses",
        [
            [status(0, 50), status(1, 1)],
            [status(0, 50), status(1, 50), status(2, 1, condition="ended")],
            [status(0, 50), status(1, 50), status(2, None)],
            [status(0, 50), status(1, 50), status("driver", 1)],
            [status(0, 50, None), status(1, 50, None), status(2, 1, None)],
            [status(0, 50, 0.1), status(1, 50, 0.1), status(2, 1, 0.1)],
        ],
        ids=["two", "ended", "not begun", "a driver", "no seconds", "fast steps"],
    )
    def test_no_rank_lags(self, statuses) -> None:
        """No rank lags if there are too few live ranks with a step, or if the lag is too short."""
        assert lags(statuses, 60) == []


class TestFinder:
    @pytest.fixture
    def finder(self, tmp_path, monkeypatch):
        """Return a finder that looks for stragglers in each round."""
        monkeypatch.setattr(stragglers, "EVERY_SECONDS", 0.0)
        loop = Loop(tmp_path / "run", max_captures=2)
        self.rank: int | str = 0
        made = LagFinder(tmp_path / "run", 60.0, lambda: self.rank, loop.recorder, loop.captures)
        made.loop = loop
        return made

    def publish(self, run, pace=None, **steps) -> None:
        folder = run / "status"
        folder.mkdir(exist_ok=True)
        for name, step in steps.items():
            rank = int(name[1:])
            content = {
                "rank": rank,
                "step": step,
                "step_seconds": 10.0,
                "pace_seconds": pace,
                "published_unix_ns": time.time_ns(),
                "writer": writer_identity(),
                "ended": False,
            }
            (folder / f"rank-{rank}.json").write_text(json.dumps(content))

    def look(self, finder) -> list[dict]:
        with capture_logs() as logs:
            finder.take([])
            finder.look()
        return logs

    def test_a_straggler_is_logged_once_and_recorded(self, finder, tmp_path) -> None:
        """A straggler is logged once with its lag, and a capture of this rank is requested. After it has
        caught up, a new lag is logged again.
        """
        run = tmp_path / "run"
        self.publish(run, r0=50, r1=50, r2=50, r3=40)
        (line,) = self.look(finder)
        assert (line["event"], line["lagging_rank"], line["step"], line["seconds_behind"]) == (
            "watch.rank_lags",
            3,
            40,
            100.0,
        )
        assert line["capture"] == "step 42"
        assert [span[:2] for span in finder.loop.recorder.pending] == [("rank lags", "mark")]
        (request,) = (json.loads(path.read_text()) for path in (run / REQUESTS).glob("*.json"))
        assert (request["step"], request["changes"]["ranks"], request["reason"]) == (
            42,
            "3",
            "watch: rank lags",
        )
        assert [claim["capture_rank"] for claim in claims(run)] == [3]
        assert self.look(finder) == []
        self.publish(run, r0=60, r1=60, r2=60, r3=60)
        assert self.look(finder) == []
        self.publish(run, r0=80, r1=80, r2=80, r3=70)
        assert [line["capture"] for line in self.look(finder)] == ["step 72"]
        self.publish(run, r2=60, r3=80)
        assert ["used up" in line["capture"] for line in self.look(finder)] == [True]
        finder.close(1)

    def test_a_step_that_it_can_still_reach(self, finder, tmp_path) -> None:
        """If steps are fast, the capture is requested for a later step, so that
        the request arrives in time.
        """
        self.publish(tmp_path / "run", pace=0.05, r0=500, r1=500, r2=500, r3=40)
        (line,) = self.look(finder)
        assert 100 < int(line["capture"].removeprefix("step ")) < 300

    def test_only_one_process_looks_for_stragglers(self, finder, tmp_path) -> None:
        """Only rank 0 or the driver looks for stragglers."""
        self.publish(tmp_path / "run", r0=50, r1=50, r2=50, r3=40)
        self.rank = 1
        assert self.look(finder) == []
        self.rank = "driver"
        assert len(self.look(finder)) == 1

    def test_where_nothing_can_be_written(self, finder, tmp_path) -> None:
        """If the run directory cannot be written, the straggler is logged without a capture."""
        run = tmp_path / "run"
        self.publish(run, r0=50, r1=50, r2=50, r3=40)
        (run / "watch").write_text("in the way")
        (line,) = self.look(finder)
        assert line["capture"].startswith("none: ")

    def test_without_captures_stragglers_are_only_logged(self, tmp_path) -> None:
        """With `max_captures = 0`, no capture is requested, with this reason."""
        loop = Loop(tmp_path / "run", max_captures=0)
        assert loop.captures.record_elsewhere("rank lags", {"step": 1}, 3, 3) == "none: max_captures = 0"


class TestOptions:
    def test_less_than_can_be_known(self) -> None:
        """A value below the smallest measurable lag is refused with a suggestion."""
        with pytest.raises(ConfigError, match=r"watch.lag_seconds = 5.0: .* did you mean 15?"):
            Config(watch={"lag_seconds": 5})
        assert Config(watch={"lag_seconds": "none"}).watch.lag_seconds == "none"
