"""The watch of a run: a slow step is logged once and a later one recorded, within a budget."""

from __future__ import annotations

import json
import os
import time

import pytest
import runs
from structlog.testing import capture_logs

from stepprof.config.config import Config
from stepprof.config.options.watch import WatchOptions
from stepprof.errors import ConfigError
from stepprof.follow import captures as capture_module
from stepprof.follow import tail
from stepprof.follow.captures import Captures
from stepprof.follow.tail import Tail
from stepprof.follow.watch import Watch
from stepprof.follow.watcher import MAX_HISTORIES, MAX_OPEN, Watcher
from stepprof.run.requests import REQUESTS
from stepprof.run.spans import read_spans
from stepprof.run.status import read_statuses

OPTIONS = {"window": 20, "min_steps": 5, "skip_first": 0, "memory_growth": "none"}


def steady() -> dict:
    """Return the published pace of a rank whose steps take a minute, and whose step has just begun."""
    return {"pace_seconds": 60.0, "step_since_unix_ns": time.time_ns(), "world_size": 8}


class Loop:
    """A watcher that gets the spans of simulated steps."""

    def __init__(self, recorded=(), **options) -> None:
        self.options = WatchOptions(enabled=True, **{**OPTIONS, **options})
        self.watcher = Watcher(self.options, lambda step: step in recorded)
        self.now = 0

    def window(self, step, seconds, role=None, regions=(), error=False, is_old=False) -> None:
        start, where = self.now, {"step": step, "role": role}
        self.now += round(seconds * 1e9)
        for name, spent in regions:
            span = {"name": name, "kind": "region", "start": start, "dur": round(spent * 1e9), **where}
            self.watcher.take(span, is_old=is_old)
        span = {"name": role or "step", "kind": "window", "start": start, "dur": self.now - start, **where}
        self.watcher.take({**span, **({"error": True} if error else {})}, is_old=is_old)

    def steps(self, first, last, seconds=1.0, **window) -> None:
        for step in range(first, last + 1):
            self.window(step, seconds, **window)

    def look(self) -> list[dict]:
        return [{"what": each.what, **each.facts} for each in self.watcher.findings(None, None)]


class TestWatcher:
    def test_the_innermost_slow_interval_is_reported(self) -> None:
        """If a region, its window and the step are slow, the region is reported."""
        watched = Loop()
        for step in range(1, 12):
            slow = step == 11
            watched.window(
                step, 8.0 if slow else 1.0, "actor", [("update", 7.5 if slow else 0.5), ("log", 0.1)]
            )
            watched.window(step, 9.0 if slow else 2.0)
        assert watched.look() == [
            {
                "what": "slow region",
                "step": 11,
                "role": "actor",
                "region": "update",
                "seconds": 7.5,
                "median_seconds": 0.5,
                "times": 15.0,
            }
        ]
        assert watched.look() == []

    def test_a_region_that_does_not_matter(self) -> None:
        """A slow region causes no alert if it is a small part of its step."""
        watched = Loop()
        watched.steps(1, 10, 10.0, role="actor", regions=[("log", 0.06)])
        watched.window(11, 10.5, "actor", [("log", 0.6)])
        assert watched.look() == []

    def test_several_calls_add_up(self) -> None:
        """If a region is entered many times in a step, the sum of its times counts."""
        watched = Loop()
        watched.steps(1, 10, 1.0, role="actor", regions=[("mini", 0.1)] * 4)
        watched.window(11, 1.5, "actor", [("mini", 0.1)] * 12)
        assert [(line["region"], line["seconds"]) for line in watched.look()] == [("mini", 1.2)]

    def test_after_an_alert_there_is_a_pause(self) -> None:
        """After an alert there is none for a number of steps; then the next slow step causes one."""
        watched = Loop()
        watched.steps(1, 10)
        watched.window(11, 5.0)
        assert len(watched.look()) == 1
        watched.steps(12, 20)
        watched.window(21, 5.0)
        assert watched.look() == []
        watched.steps(22, 40)
        watched.window(41, 5.0)
        assert [line["step"] for line in watched.look()] == [41]

    def test_recorded_steps_are_not_in_the_history(self) -> None:
        """A recorded step and the step after it, which may still export, are not in the history."""
        watched = Loop(recorded=[11])
        watched.steps(1, 10)
        watched.window(11, 9.0)
        watched.window(12, 9.0)
        assert watched.look() == []
        watched.window(13, 9.0)
        assert len(watched.look()) == 1

    def test_failed_windows_are_not_in_the_history(self) -> None:
        """A window that raised an exception is not in the history, because the exception changes its duration."""
        watched = Loop()
        watched.steps(1, 10)
        watched.window(11, 9.0, error=True)
        assert watched.look() == []

    def test_what_was_there_before_is_history_only(self) -> None:
        """Steps that ended before the first look cause no alert, and are in the history."""
        watched = Loop()
        watched.steps(1, 10, is_old=True)
        watched.window(11, 9.0, is_old=True)
        assert watched.look() == []
        watched.window(12, 9.0)
        assert [line["step"] for line in watched.look()] == [12]

    def test_only_configured_roles_and_regions_are_watched(self) -> None:
        """Roles and regions that are not configured cause no alert."""
        watched = Loop(roles=["actor"], regions=["update"])
        for step in range(1, 12):
            times = 9.0 if step == 11 else 1.0
            watched.window(step, 10.0, "critic", [("update", times)])
            watched.window(step, 10.0, "actor", [("log", times)])
        assert watched.look() == []
        watched.window(12, 30.0, "actor", [("update", 1.0)])
        assert [line["what"] for line in watched.look()] == ["slow step"]

    def test_an_empty_list_of_regions_still_watches_windows(self) -> None:
        """With an empty list of regions, the windows are still watched."""
        watched = Loop(regions=[])
        watched.steps(1, 10, 1.0, role="actor", regions=[("a", 0.2)])
        watched.window(11, 9.0, "actor", [("a", 8.0)])
        assert [(line["what"], line.get("region")) for line in watched.look()] == [("slow step", None)]

    def test_names_made_up_at_each_step(self) -> None:
        """If each step has new names, the number of names in memory is limited."""
        watched = Loop()
        for step in range(3000):
            for name, kind in ((f"r{step}", "region"), ("m", "mark")):
                watched.watcher.take(
                    {"name": name, "kind": kind, "start": 0, "dur": 1, "step": step, "role": "a"}
                )
            watched.watcher.take({"name": "r", "kind": "region", "start": 0, "dur": 1, "step": None})
        assert len(watched.watcher._open) <= MAX_OPEN
        watched.steps(1, 10, 1.0, role="actor", regions=[(f"x{number}", 0.1) for number in range(1000)])
        assert len(watched.watcher._histories) <= MAX_HISTORIES

    def test_growing_memory(self) -> None:
        """Memory whose minimum grows is reported at each growth, for the host and for a device."""
        watched = Loop(window=4, min_steps=4, memory_growth="64MiB")
        assert watched.watcher.findings(1, 1) == []
        reported = []
        for step in range(1, 60):
            watched.window(step, 0.1)
            reported += watched.watcher.findings(step * (4 << 20), 0)
        assert [each.what for each in reported] == ["memory grows"] * len(reported)
        assert 2 <= len(reported) <= 4
        facts = reported[0].facts
        assert facts["bytes"] - facts["bytes_before"] >= 64 << 20
        assert Loop(memory_growth="none").watcher.findings(1 << 40, 1 << 40) == []


@pytest.fixture
def run(tmp_path):
    made = runs.make_run(tmp_path)
    (made.path / "spans").mkdir()
    return made


def claims(run) -> list[dict]:
    return [json.loads(path.read_bytes()) for path in sorted((run.path / "watch").glob("*.json"))]


class TestBudget:
    @pytest.fixture
    def captures(self, run):
        """Return a function that makes the captures of a follower; a rank is at step 10 of long steps."""
        runs.tell_status(run, 0, step=10, **steady())

        def made(**options):
            config = Config(backend="null", roles={"off": {"enabled": False}})
            return Captures(run.path, config, WatchOptions(enabled=True, **options))

        return made

    def slow(self, captures, step=9, rank=0) -> str:
        return captures.record("slow step", {"step": step, "role": None}, None, rank)

    def passed(self, run, captures, step, **seen) -> None:
        """Tell the captures that the rank has passed a step."""
        (request,) = [path.stem for path in (run.path / REQUESTS).glob(f"step-{step}-*.json")]
        requests = {request: {"outcome": "reached", "reason": None, **seen}}
        runs.tell_status(run, 0, step=step + 1, **steady(), requests=requests)
        captures.look(read_statuses(run.path))

    def test_a_request_of_the_rank(self, run, captures) -> None:
        """The next step of this rank is requested, as by `stepprof trigger`, and the reason is given."""
        assert self.slow(captures()) == "step 11"
        (request,) = (json.loads(path.read_text()) for path in (run.path / REQUESTS).glob("*.json"))
        assert (request["step"], request["changes"]["ranks"]) == (11, "0")
        assert request["reason"] == "watch: slow step"
        (claim,) = claims(run)
        assert (claim["what"], claim["step"], claim["capture_step"], claim["capture_rank"]) == (
            "slow step",
            9,
            11,
            0,
        )

    def test_only_one_capture_at_a_time(self, run, captures) -> None:
        """While a capture is pending, no other one is requested, of whatever rank."""
        watched = captures()
        assert self.slow(watched) == "step 11"
        watched.look(read_statuses(run.path))
        assert self.slow(watched, 11, rank=1) == "none: the capture of step 11 is pending"
        self.passed(run, watched, 11)
        assert self.slow(watched, 12) == "step 13"

    def test_the_number_of_captures_is_limited(self, run, captures) -> None:
        """`max_captures` limits the captures of the run, also after a restart of the follower. Damaged
        claims count.
        """
        for step in (11, 13):
            watched = captures(max_captures=3)
            assert self.slow(watched, step) == f"step {step}"
            (run.path / f"step-{step:06d}").mkdir()
            self.passed(run, watched, step)
        (run.path / "watch" / "000003.json").write_text('{"capture_step": "../.."}')
        assert self.slow(captures(max_captures=3)) == "none: max_captures = 3 of this run are used up"
        assert self.slow(captures(max_captures=0)) == "none: max_captures = 0"

    def test_the_bytes_of_captures_are_limited(self, run, captures) -> None:
        """The bytes of all captures count. The next capture is limited to the rest, and without a rest there
        is none.
        """
        watched = captures(max_bytes="1MB")
        assert self.slow(watched) == "step 11"
        self.passed(run, watched, 11)
        folder = run.path / "step-000011" / "actor"
        folder.mkdir(parents=True)
        (folder / "rank-0.trace.json.gz").write_bytes(b"x" * 600_000)
        (folder / "rank-1.trace.json.gz").write_bytes(b"x" * 600_000)
        assert self.slow(watched) == "step 13"
        left = [
            json.loads(path.read_text())["changes"]["max_bytes"]
            for path in (run.path / REQUESTS).glob("*.json")
        ]
        assert sorted(left) == [400_000, 1_000_000]
        (run.path / "step-000013").mkdir()
        self.passed(run, watched, 13)
        (folder / "rank-0.2.trace.json.gz").write_bytes(b"x" * 600_000)
        assert self.slow(watched) == "none: the captures of this run have used up max_bytes = 976.6 KiB"
        assert self.slow(captures(max_bytes="none")) == "step 15"

    @pytest.mark.parametrize("outcome", ["missed", "refused"])
    def test_a_request_that_was_not_met_costs_no_budget(self, run, captures, outcome) -> None:
        """If the rank could not record the step, the log says why, and the budget is given back."""
        watched = captures(max_captures=1)
        assert self.slow(watched) == "step 11"
        with capture_logs() as logs:
            self.passed(run, watched, 11, outcome=outcome, reason="it had begun")
        assert [line["reason"] for line in logs] == ["it had begun"]
        assert self.slow(watched) == "step 13"

    def test_a_rank_that_is_gone_is_not_awaited(self, run, captures, monkeypatch) -> None:
        """The status of a rank that died, and was started again, does not keep a capture pending. Nor does a rank
        that hangs in the step for ten minutes.
        """
        watched = captures(max_captures=5)
        assert self.slow(watched) == "step 11"
        runs.tell_status(run, 0, step=10, writer=runs.ended_writer())
        watched.look(read_statuses(run.path))
        runs.tell_status(run, 0, step=10, **steady())
        assert self.slow(watched) == "step 11"
        watched.look(read_statuses(run.path))
        assert "pending" in self.slow(watched)
        monkeypatch.setattr(capture_module, "PENDING_SECONDS", 0.0)
        watched.look(read_statuses(run.path))
        assert self.slow(watched) == "step 11"

    def test_what_cannot_be_requested(self, run, captures) -> None:
        """A disabled role, a role that has no window, a run that has ended or cannot be written: there is no
        capture, with the reason.
        """
        watched = captures()
        facts = {"step": 10, "role": "off"}
        assert "disabled by the configuration" in watched.record("slow step", facts, "off", 0)
        assert "no window of this role" in watched.record("slow step", facts, "critic", 0)
        (run.path / "watch").rmdir()
        (run.path / "watch").write_text("in the way")
        assert self.slow(watched).startswith("none: ")
        assert not list((run.path / REQUESTS).glob("*.json"))
        runs.tell_status(run, 0, step=10, ended=True)
        (run.path / "watch").unlink()
        assert "the run has ended" in self.slow(watched)

    def test_a_driver_counts_all_that_is_in_the_step(self, run, captures) -> None:
        """For a process without a rank, the bytes of attached engines in the step count."""
        runs.tell_status(run, "driver", step=10, **steady())
        watched = captures(max_bytes="1MB")
        assert self.slow(watched, rank="driver") == "step 11"
        folder = run.path / "step-000011" / "rollout" / "replica-0"
        folder.mkdir(parents=True)
        (folder / "rank-0.trace.json.gz").write_bytes(b"x" * 2_000_000)
        assert "used up max_bytes" in self.slow(captures(max_bytes="1MB"))


class TestTail:
    def read(self, made) -> list[tuple[str, bool]]:
        return [(line.span["name"], line.is_old) for line in made.read()]

    def test_only_new_lines_are_read(self, run) -> None:
        """Each line is read once, when it is complete. Evidence and damaged lines are left out, and a file
        whose header is being written waits.
        """
        runs.write_spans(run, 0, runs.region("a", 1), {"kind": "gc", "name": "gc"})
        made = Tail(run.path)
        assert self.read(made) == [("a", True)]
        path = run.path / "spans" / "rank-0.000001.jsonl"
        text = json.dumps(runs.region("b", 1)) + "\n"
        with path.open("a") as file:
            file.write("{damaged\n" + text[:20])
        assert self.read(made) == []
        with path.open("a") as file:
            file.write(text[20:])
        other = run.spans_path(1)
        other.write_text('{"kind": "spa')
        assert self.read(made) == [("b", False)]
        other.unlink()
        runs.write_spans(run, 1, runs.region("c", 1))
        assert self.read(made) == [("c", False)]
        assert made.positions[path.name] == path.stat().st_size

    def test_a_line_that_is_too_long_is_left_out(self, run, monkeypatch) -> None:
        """A damaged line without an end does not hide what follows it. A hole is not read."""
        monkeypatch.setattr(tail, "LONGEST_LINE", 1000)
        runs.write_spans(
            run, 0, runs.region("a", 1), {"kind": "region", "name": "x" * 5000}, runs.region("b", 1)
        )
        made = Tail(run.path)
        assert [name for name, _ in self.read(made)] == ["a", "b"]
        path = run.path / "spans" / "rank-0.000001.jsonl"
        end = path.stat().st_size
        os.truncate(path, 1 << 40)
        self.read(made)
        assert made.positions[path.name] < end + (1 << 20)

    def test_of_a_long_file_the_end_is_read(self, run, monkeypatch) -> None:
        """Of a file that is there at the first look, the end is read; with positions, what follows them."""
        monkeypatch.setattr(tail, "OLD_BYTES", 1000)
        runs.write_spans(run, 0, *(runs.region(str(number), 1) for number in range(100)))
        made = Tail(run.path)
        names = [name for name, _ in self.read(made)]
        assert names[-1] == "99"
        assert 3 < len(names) < 12
        assert len(self.read(Tail(run.path, {}))) == 100
        assert self.read(Tail(run.path, made.positions)) == []

    def test_what_is_no_span_file(self, run) -> None:
        """A link, a folder and a file that vanishes are left out."""
        (run.path / "spans" / "rank-1.000001.jsonl").symlink_to("/etc/passwd")
        (run.path / "spans" / "rank-2.000001.jsonl").mkdir()
        (run.path / "spans" / "rank-3.000001.jsonl").write_text("[]\n{}\n")
        (run.path / "spans" / "rank-4.000001.jsonl").write_text('{"kind": "spans", "rank": [4]}\n{}\n')
        runs.write_spans(run, 5, {"kind": "window", "name": "x", "step": 1}, {"kind": "region", "dur": 1})
        assert self.read(Tail(run.path)) == []
        assert self.read(Tail(run.path / "none")) == []


class TestRun:
    def look(self, made, reader, run) -> list[dict]:
        for line in reader.read():
            made.take(line)
        with capture_logs() as logs:
            made.look(read_statuses(run.path))
        return logs

    def windows(self, run, rank, *durations, first=1, **process) -> None:
        """Write a span file of a rank with windows of these seconds."""
        spans = [
            {
                "name": "step",
                "kind": "window",
                "start": step * 10**10,
                "dur": round(seconds * 1e9),
                "step": step,
            }
            for step, seconds in enumerate(durations, first)
        ]
        runs.write_spans(run, rank, *spans, **process)

    def made(self, run, **options) -> tuple[Watch, Tail]:
        config = Config(backend="null", watch={"enabled": True, **OPTIONS, **options})
        return Watch(run.path, config, config.watch), Tail(run.path)

    def test_a_slow_step_of_one_rank(self, run) -> None:
        """A slow step is one line, a mark in the spans of its process, and a request of this rank. The
        history of another rank does not count.
        """
        for rank in (0, 1):
            runs.tell_status(run, rank, step=12, **steady())
            self.windows(run, rank, *[1.0 + 9 * rank] * 10)
        self.windows(run, 0, *[10.0] * 10, pid=8)  # another process of this rank: of another replica group
        watched = self.made(run)
        assert self.look(*watched, run) == []
        self.windows(run, 0, 10.0, first=11, pid=8)
        self.windows(run, 0, 10.0, first=11)
        self.windows(run, 1, 10.0, first=11)
        (line,) = self.look(*watched, run)
        assert (line["event"], line["rank"], line["step"], line["capture"]) == (
            "watch.alert",
            0,
            11,
            "step 13",
        )
        findings: list = []
        (mark,) = [span for span in read_spans(run.path, findings=findings) if span["kind"] == "mark"]
        assert findings == []
        assert (mark["name"], mark["rank"], mark["step"]) == ("slow step", 0, 11)
        assert mark["start"] == 11 * 10**10 + 10 * 10**9
        assert mark["attrs"]["capture"] == "step 13"
        assert self.look(*watched, run) == []

    def test_a_step_with_a_folder_was_recorded(self, run) -> None:
        """A step that has a folder is in no history."""
        self.windows(run, 0, *[1.0] * 10)
        watched = self.made(run, max_captures=0)
        self.look(*watched, run)
        runs.record(run, 11)
        self.windows(run, 0, 9.0, 9.0, first=11)
        assert self.look(*watched, run) == []
        self.windows(run, 0, 9.0, first=13)
        assert [line["step"] for line in self.look(*watched, run)] == [13]

    def test_memory_is_read_from_the_status(self, run) -> None:
        """The published memory counts, once for each status."""
        watched = self.made(run, window=2, min_steps=2, memory_growth="1MiB", max_captures=0)
        logs = []
        for step in range(1, 30):
            self.windows(run, 0, 1.0, first=step)
            runs.tell_status(run, 0, step=step, host="h", pid=7, resident_bytes=step << 20, device_bytes=None, published_unix_ns=time.time_ns() + step)  # fmt: skip
            logs += self.look(*watched, run)
            assert [line for line in self.look(*watched, run) if line["event"] == "watch.alert"] == []
        assert {line["what"] for line in logs} == {"memory grows"}

    def test_a_rank_that_lags(self, run) -> None:
        """A rank that lags is logged once with its lag, and a capture of this rank is requested. After it
        has caught up, a new lag is logged again.
        """
        watched = self.made(run, max_captures=1)

        def publish(*steps):
            for rank, step in enumerate(steps):
                runs.tell_status(run, rank, step=step, step_seconds=10.0, **steady())
            return self.look(*watched, run)

        (line,) = publish(50, 50, 50, 40)
        assert (line["event"], line["lagging_rank"], line["step"], line["seconds_behind"]) == ("watch.rank_lags", 3, 40, 100.0)  # fmt: skip
        assert line["capture"] == "step 51"
        assert [claim["capture_rank"] for claim in claims(run)] == [3]
        (run.path / "step-000051").mkdir()
        assert publish(50, 50, 50, 40) == []
        assert publish(60, 60, 60, 60) == []
        assert ["used up" in line["capture"] for line in publish(80, 80, 80, 70)] == [True]

    @pytest.mark.parametrize(
        "statuses",
        [
            [(50, {}), (1, {})],
            [(50, {}), (50, {}), (1, {"ended": True})],
            [(50, {}), (50, {}), (None, {})],
            [(50, {}), (50, {}), (1, {"rank": "driver"})],
            [(step, {"step_seconds": None}) for step in (50, 50, 1)],
            [(step, {"step_seconds": 0.1}) for step in (50, 50, 1)],
            [(step, {}) for step in (50, 50, 49, 46)],
        ],
        ids=["two", "ended", "not begun", "a driver", "no seconds", "fast steps", "a few steps"],
    )
    def test_no_rank_lags(self, run, statuses) -> None:
        """No rank lags if there are too few live ranks with a step, or if the lag is too short."""
        for number, (step, more) in enumerate(statuses):
            runs.tell_status(run, step=step, **{**steady(), "rank": number, "step_seconds": 10.0, **more})
        assert self.look(*self.made(run), run) == []


class TestOptions:
    @pytest.mark.parametrize(
        ("options", "message"),
        [
            ({"factor": 1}, r"watch.factor = 1: expected a finite number above 1"),
            ({"factor": "2"}, r'watch.factor = "2": expected a number, such as 2'),
            ({"min_steps": 200}, r"watch.min_steps = 200: longer than the history"),
            ({"roles": ["a/b"]}, r"watch.roles"),
            ({"max_captures": -1}, r"watch.max_captures = -1: too small"),
            ({"fctor": 2}, r'watch.fctor = 2: unknown key; did you mean "factor"'),
            ({"lag_seconds": 5}, r"watch.lag_seconds = 5.0: .* did you mean 15?"),
        ],
    )
    def test_mistakes(self, options, message) -> None:
        """A mistake raises a ConfigError that names the key and the value."""
        with pytest.raises(ConfigError, match=message):
            Config(watch=options)

    def test_without_spans_there_is_nothing_to_watch(self) -> None:
        """The watch requires spans, unless all recording is switched off."""
        with pytest.raises(ConfigError, match=r"watch.enabled = true: requires spans"):
            Config(spans=False, watch={"enabled": True})
        assert Config(enabled=False, watch={"enabled": True}).spans is False

    def test_round_trip(self) -> None:
        """The options are unchanged after writing and reading."""
        config = Config(watch={"enabled": True, "roles": ["actor"], "regions": [], "max_bytes": "none"})
        assert Config.from_mapping(config.to_dict()) == config
