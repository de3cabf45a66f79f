"""A process that watches itself: a slow step is logged once and a later one recorded, within a budget."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import runs
from structlog.testing import capture_logs

from stepprof.config.config import Config
from stepprof.config.options.watch import WatchOptions
from stepprof.errors import ConfigError
from stepprof.host.rank import Identity
from stepprof.instrument.scope import Scope
from stepprof.instrument.span_recorder import Recorder
from stepprof.recording.control.auto_capture import AutoCaptures
from stepprof.recording.selector import Selector
from stepprof.recording.span_processors import Readers
from stepprof.recording.watch import watcher
from stepprof.recording.watch.watcher import MAX_HISTORIES, Watcher
from stepprof.run.manifest import read_step
from stepprof.run.runs import steps

LOOP = """
import json, logging, os, sys, time
import stepprof
logging.basicConfig(level="INFO", stream=sys.stderr, format="%(message)s")

def run(steps, slow, captures, slow_seconds=1.0, **watch):
    session = stepprof.init({"output_dir": "runs", "backend": "null", "watch": {
        "enabled": True, "window": 20, "min_steps": 10, "skip_first": 2, "factor": 3, **watch}})
    total, step, more = 0, 0, 20
    while step < steps and more:
        step += 1
        with stepprof.profile_step(step), stepprof.profile_step(step, role="actor"), stepprof.region("update"):
            time.sleep(slow_seconds if step in slow else 0.004)
            total += step
        more -= len(stepprof.state().recorded_steps) >= captures
    stepprof.shutdown()
    print(total == sum(range(step + 1)))
"""


def claims(run: Path) -> list[dict]:
    return [json.loads(path.read_bytes()) for path in sorted((run / "watch").glob("*.json"))]


def one_run(folder: Path) -> Path:
    (run,) = (path.parent for path in (folder / "runs").glob("*/run.json"))
    return run


class TestLoop:
    """Real loops in separate processes."""

    def test_a_slow_step_arms_one_capture(self, run_script, tmp_path) -> None:
        """A slow step causes one log line, one mark, one claim and one recorded step, and does
        not change the job's result.
        """
        ran = run_script(LOOP + "run(5000, {150}, captures=1)").check()
        run = one_run(tmp_path)
        assert ran.stdout.split() == ["True"]
        (claim,) = claims(run)
        assert (claim["step"], claim["role"], claim["region"]) == (150, "actor", "update")
        assert claim["seconds"] >= 1.0
        assert steps(run) == [claim["capture_step"]]
        assert claim["capture_step"] > 150
        windows = read_step(run, claim["capture_step"])["windows"]
        assert [(window["role"], window["status"]) for window in windows] == [("actor", "complete")]
        reported = [
            line for line in ran.stderr.splitlines() if f"capture=step {claim['capture_step']}" in line
        ]
        assert len(reported) == 1
        assert "slow" in reported[0]
        files = (run / "spans").iterdir()
        lines = [json.loads(line) for path in files for line in path.read_text().splitlines()]
        spans = [line for line in lines if line["kind"] != "spans"]
        (mark,) = [span for span in spans if span["kind"] == "mark"]
        assert (mark["name"], mark["step"], mark["role"]) == ("slow region", 150, "actor")
        slow = max((span for span in spans if span["name"] == "update"), key=lambda span: span["dur"])
        assert mark["start"] >= slow["start"] + slow["dur"]

    def test_a_name_forges_no_line(self, run_script, tmp_path) -> None:
        """Control characters in a region's name do not begin a new log line."""
        loop = LOOP.replace('region("update")', 'region("update\\nforged: ok\\x1b[2J")')
        ran = run_script(loop + "run(5000, {150}, captures=1)").check()
        assert "slow region" in ran.stderr
        assert "\\nforged: ok" in ran.stderr
        assert not any(line.startswith("forged") or "\x1b" in line for line in ran.stderr.splitlines())

    def test_slow_steps_stay_within_the_budget(self, run_script, tmp_path) -> None:
        """Of a thousand steps, one in 40 is slow. At most two are recorded, and the log
        says that the budget is used up.
        """
        ran = run_script(
            LOOP
            + "run(1000, set(range(40, 1000, 40)), 9, slow_seconds=0.15, min_seconds=0.1, max_captures=2)"
        ).check()
        run = one_run(tmp_path)
        assert len(claims(run)) == 2
        assert 1 <= len(steps(run)) <= 2
        assert "max_captures = 2 of this run are used up" in ran.stderr

    def test_growing_memory_causes_alerts(self, run_script, tmp_path) -> None:
        """A loop that keeps 4 MiB per step is logged at each 64 MiB of growth, and the
        first alert requests a capture.
        """
        ran = run_script(
            """
            import logging, sys, time
            import stepprof
            logging.basicConfig(level="INFO", stream=sys.stderr, format="%(message)s")
            session = stepprof.init({"output_dir": "runs", "backend": "null", "watch": {
                "enabled": True, "window": 5, "min_steps": 5, "skip_first": 1, "memory_growth": "64MiB", "max_captures": 1}})
            kept = []
            for step in range(1, 60):
                with stepprof.profile_step(step):
                    kept.append(b"x" * (4 << 20))
                    time.sleep(0.002)
                session.background.round()
            stepprof.shutdown()
            """
        ).check()
        reported = [line for line in ran.stderr.splitlines() if "memory grows" in line]
        assert 2 <= len(reported) <= 4
        assert "capture=step" in reported[0]
        (claim,) = claims(one_run(tmp_path))
        assert claim["what"] == "memory grows"
        assert claim["bytes"] - claim["bytes_before"] >= 64 << 20

    def test_a_run_directory_that_vanishes(self, run_script, tmp_path) -> None:
        """If a file replaces the run directory, the slow step is logged without a
        capture, and the loop continues.
        """
        vanish = """
        if step == 100:
            session.path.rename("elsewhere")
            session.path.write_text("in the way")
"""
        script = LOOP.replace("        step += 1\n", "        step += 1" + vanish)
        ran = run_script(script + "run(300, {200}, captures=1)").check()
        assert ran.stdout.split() == ["True"]
        (reported,) = [line for line in ran.stderr.splitlines() if "slow region" in line]
        assert "capture=none: " in reported


def scope(step: int | None, role: str | None = None) -> Scope:
    where = Scope()
    where.number, where.role = step, role
    where._bound = where._outer = where._before = where._task = None
    where._thread, where._start = 1, 0
    return where


class Loop:
    """A watcher that gets the spans of simulated steps."""

    def __init__(self, run: Path, rank: int = 0, selected="none", **options) -> None:
        run.mkdir(exist_ok=True)
        defaults = {"window": 20, "min_steps": 5, "skip_first": 0, "memory_growth": "none"}
        self.options = WatchOptions(enabled=True, **{**defaults, **options})
        config = Config(steps=selected, backend="null", roles={"off": {"enabled": False}})
        identity = Identity(rank, 4, source="test", final=True, records=True)
        self.selector = Selector(config, identity, lambda: None)
        self.probe: str | None = None
        self.captures = AutoCaptures(run, self.options, self.selector, lambda policy: self.probe)
        self.recorder = Recorder()
        self.watcher = Watcher(
            self.options, self.recorder, self.selector.was_entered, self.captures, lambda: rank
        )
        self.now = 0

    def window(self, step, seconds, role=None, regions=(), error=False) -> None:
        start, where = self.now, scope(step, role)
        self.now += round(seconds * 1e9)
        spans = [
            (name, "region", start, start + round(spent * 1e9), 1, None, where, None, False)
            for name, spent in regions
        ]
        spans.append((role or "step", "window", start, self.now, 1, None, where, None, error))
        self.watcher.take(spans)

    def steps(self, first, last, seconds=1.0, **window) -> None:
        for step in range(first, last + 1):
            self.window(step, seconds, **window)

    def look(self) -> list[dict]:
        with capture_logs() as logs:
            self.watcher.look()
        return logs


@pytest.fixture
def loop(tmp_path):
    return lambda **options: Loop(tmp_path / "run", **options)


class TestWatcher:
    def test_the_innermost_slow_interval_is_reported(self, loop) -> None:
        """If a region, its window and the step are slow, one line reports the region."""
        watched = loop()
        for step in range(1, 12):
            slow = step == 11
            watched.window(
                step, 8.0 if slow else 1.0, "actor", [("update", 7.5 if slow else 0.5), ("log", 0.1)]
            )
            watched.window(step, 9.0 if slow else 2.0)
        (line,) = watched.look()
        assert (line["what"], line["step"], line["role"], line["region"]) == (
            "slow region",
            11,
            "actor",
            "update",
        )
        assert (line["seconds"], line["median_seconds"], line["times"]) == (7.5, 0.5, 15.0)
        assert line["capture"] == "step 13"
        assert [span[:2] for span in watched.recorder.pending] == [("slow region", "mark")]
        assert watched.look() == []

    def test_a_region_that_does_not_matter(self, loop) -> None:
        """A slow region causes no alert if it is a small part of its step."""
        watched = loop()
        watched.steps(1, 10, 10.0, role="actor", regions=[("log", 0.06)])
        watched.window(11, 10.5, "actor", [("log", 0.6)])
        assert watched.look() == []

    def test_several_calls_add_up(self, loop) -> None:
        """If a region is entered many times in a step, the sum of its times counts."""
        watched = loop()
        watched.steps(1, 10, 1.0, role="actor", regions=[("mini", 0.1)] * 4)
        watched.window(11, 1.5, "actor", [("mini", 0.1)] * 12)
        (line,) = watched.look()
        assert (line["region"], line["seconds"]) == ("mini", 1.2)

    def test_after_an_alert_there_is_a_pause(self, loop) -> None:
        """After an alert there is none for a number of steps; then the next slow step causes one."""
        watched = loop()
        watched.steps(1, 10)
        watched.window(11, 5.0)
        assert len(watched.look()) == 1
        watched.steps(12, 20)
        watched.window(21, 5.0)
        assert [line for line in watched.look() if line["event"] == "watch.alert"] == []
        watched.steps(22, 40)
        watched.window(41, 5.0)
        assert [line["step"] for line in watched.look() if line["event"] == "watch.alert"] == [41]

    def test_recorded_steps_are_not_in_the_history(self, loop) -> None:
        """A recorded step and the step after it, which may still export, are not in the history."""
        watched = loop(selected="11")
        watched.steps(1, 10)
        watched.selector.window(11, None, None)
        watched.window(11, 9.0)
        watched.window(12, 9.0)
        assert watched.look() == []
        watched.window(13, 9.0)
        assert len(watched.look()) == 1

    def test_failed_windows_are_not_in_the_history(self, loop) -> None:
        """A window that raised an exception is not in the history, because the
        exception changes its duration.
        """
        watched = loop()
        watched.steps(1, 10)
        watched.window(11, 9.0, error=True)
        assert watched.look() == []

    def test_only_configured_roles_and_regions_are_watched(self, loop) -> None:
        """Roles and regions that are not configured cause no alert."""
        watched = loop(roles=["actor"], regions=["update"])
        for step in range(1, 12):
            times = 9.0 if step == 11 else 1.0
            watched.window(step, 10.0, "critic", [("update", times)])
            watched.window(step, 10.0, "actor", [("log", times)])
        assert watched.look() == []
        watched.window(12, 30.0, "actor", [("update", 1.0)])
        assert [line["event"] for line in watched.look()] == ["watch.alert"]

    def test_an_empty_list_of_regions_still_watches_windows(self, loop) -> None:
        """With an empty list of regions, the windows are still watched."""
        watched = loop(regions=[])
        watched.steps(1, 10, 1.0, role="actor", regions=[("a", 0.2)])
        watched.window(11, 9.0, "actor", [("a", 8.0)])
        assert [(line["event"], line.get("region")) for line in watched.look()] == [("watch.alert", None)]

    def test_names_made_up_at_each_step(self, loop) -> None:
        """If each step has new names, the number of names in memory is limited."""
        watched = loop()
        for step in range(3000):
            where = scope(step, "actor")
            watched.watcher.take([(f"r{step}", "region", 0, 1, 1, None, where, None, False)])
            watched.watcher.take([("m", "mark", 0, 1, 1, None, where, None, False)])
            watched.watcher.take([("r", "region", 0, 1, 1, None, None, None, False)])
        assert len(watched.watcher._open) <= watcher.MAX_OPEN
        watched.steps(1, 10, 1.0, role="actor", regions=[(f"x{number}", 0.1) for number in range(1000)])
        assert len(watched.watcher._histories) <= MAX_HISTORIES
        for step in range(1000):
            watched.window(step, 1.0, f"actor-{step}")
        assert len(watched.watcher._paces) <= MAX_HISTORIES
        assert watched.watcher._next_step("actor-3") == watched.watcher._next_step("actor-999")

    def test_the_next_step_by_the_loop_s_numbering(self, loop) -> None:
        """The next step follows the loop's numbering. If steps are fast, it is later, so that
        the request arrives in time.
        """
        watched = loop()
        for number in range(1, 11):
            watched.window(10 * number, 1.0)
        watched.window(110, 5.0)
        assert [line["capture"] for line in watched.look()] == ["step 130"]
        fast = Loop(watched.captures.run.parent / "fast", min_seconds=0.001)
        fast.steps(1, 10, 0.01)
        fast.window(11, 0.1)
        assert [line["capture"] for line in fast.look()] == ["step 17"]


class TestBudget:
    def slow(self, watched: Loop, step: int) -> str:
        return watched.captures.record("slow step", {"step": step, "role": None}, None, lambda: step + 2)

    def passed(self, watched: Loop, step: int, *, entered_steps: bool = True) -> None:
        """End the requested step."""
        if entered_steps:
            watched.selector.window(step, None, None)
        watched.captures.look(step + 1, lambda role: step + 3)

    def test_ranks_that_find_the_same_step_are_one_event(self, tmp_path) -> None:
        """If several ranks find the same slow step, only the first one records."""
        ranks = [Loop(tmp_path / "run", rank=rank) for rank in range(3)]
        assert [self.slow(each, 10) for each in ranks] == [
            "step 12",
            "none: another rank records for step 10",
            "none: another rank records for step 10",
        ]
        assert self.slow(ranks[1], 50) == "step 52"
        assert [claim["capture_rank"] for claim in claims(tmp_path / "run")] == [0, 1]
        assert 1 in ranks[1].selector.policy_at(52, None).ranks
        assert ranks[0].selector.policy_at(52, None) is None

    def test_the_same_step_of_a_job_before_this_one(self, tmp_path) -> None:
        """If a restarted job finds the same slow step, the claim of the earlier
        job does not prevent a capture.
        """
        assert self.slow(Loop(tmp_path / "run"), 10) == "step 12"
        (path,) = (tmp_path / "run" / "watch").iterdir()
        path.write_text(json.dumps({**json.loads(path.read_text()), "writer": runs.ended_writer()}))
        again = Loop(tmp_path / "run", rank=1)
        assert self.slow(again, 10) == "step 12"
        assert len(claims(tmp_path / "run")) == 2

    def test_the_number_of_captures_is_limited_for_all_ranks(self, loop) -> None:
        """`max_captures` limits the captures of the run, also after a restart."""
        watched = loop(max_captures=2)
        for step in (10, 40):
            assert self.slow(watched, step) == f"step {step + 2}"
            self.passed(watched, step + 2)
        again = loop(max_captures=2)
        assert self.slow(again, 70) == "none: max_captures = 2 of this run are used up"
        assert self.slow(loop(max_captures=0), 70) == "none: max_captures = 0"

    def test_only_one_capture_at_a_time(self, loop) -> None:
        """While a capture is pending, no other one is requested."""
        watched = loop()
        assert self.slow(watched, 10) == "step 12"
        assert self.slow(watched, 11) == "none: the capture of step 12 is pending"

    def test_the_bytes_of_captures_are_limited(self, loop) -> None:
        """The bytes of all captures count. The next capture is limited to the rest, and
        without a rest there is none.
        """
        watched = loop(max_bytes="1MB")
        assert self.slow(watched, 10) == "step 12"
        assert watched.selector.policy_at(12, None).max_bytes == 1_000_000
        self.passed(watched, 12)
        folder = watched.captures.run / "step-000012" / "actor"
        folder.mkdir(parents=True)
        (folder / "rank-0.trace.json.gz").write_bytes(b"x" * 600_000)
        (folder / "rank-1.trace.json.gz").write_bytes(b"x" * 600_000)
        assert self.slow(watched, 40) == "step 42"
        assert watched.selector.policy_at(42, None).max_bytes == 400_000
        self.passed(watched, 42)
        (folder / "rank-0.2.trace.json.gz").write_bytes(b"x" * 600_000)
        assert self.slow(watched, 70) == "none: the captures of this run have used up max_bytes = 976.6 KiB"

    def test_without_a_byte_limit_the_configured_cap_holds(self, loop) -> None:
        """Without a limit for the watch, the configured cap of a capture applies."""
        watched = loop(max_bytes="none")
        assert self.slow(watched, 10) == "step 12"
        assert watched.selector.policy_at(12, None).max_bytes == 2 * 2**30

    def test_a_request_for_a_step_that_had_begun_is_repeated(self, loop) -> None:
        """If the requested step had begun, the capture is requested again for three later steps within the
        same budget, and then logged as failed.
        """
        watched = loop()
        assert self.slow(watched, 10) == "step 12"
        with capture_logs() as logs:
            for step in (12, 15, 18, 21):
                assert watched.selector.policy_at(step, None) is not None
                watched.captures.look(step, lambda role: 0)  # the step has not ended
                self.passed(watched, step, entered_steps=False)
        assert [line["reason"] for line in logs] == ["the step had begun already"]
        (claim,) = claims(watched.captures.run)
        assert claim["capture_step"] == 21
        assert watched.selector.requests == ()

    def test_a_repeated_request_may_fail(self, loop) -> None:
        """If a repeated request cannot be written, this is logged, and the next
        slow step may request a capture.
        """
        watched = loop()
        self.slow(watched, 10)
        for path in (watched.captures.run / "watch").iterdir():
            path.unlink()
        (watched.captures.run / "watch").rmdir()
        with capture_logs() as logs:
            self.passed(watched, 12, entered_steps=False)
        assert [line["event"] for line in logs] == ["window.not_recorded"]
        assert self.slow(watched, 40) == "step 42"

    def test_an_unavailable_backend_uses_no_budget(self, loop) -> None:
        """If the backend is unavailable or the role disabled, no capture is
        requested, and none is counted.
        """
        watched = loop()
        watched.probe = "no torch"
        assert self.slow(watched, 10) == "none: null cannot record here: no torch"
        facts = {"step": 10, "role": "off"}
        assert "disabled by the configuration" in watched.captures.record(
            "slow step", facts, "off", lambda: 12
        )
        assert not (watched.captures.run / "watch").exists()

    def test_claims_that_cannot_be_read_count(self, loop) -> None:
        """Damaged claims count as captures, and have no bytes."""
        watched = loop()
        folder = watched.captures.run / "watch"
        folder.mkdir()
        for number, text in enumerate(("", '{"capture_step": "../.."}', "[1]"), 1):
            (folder / f"{number:06d}.json").write_text(text)
        assert self.slow(watched, 10) == "none: max_captures = 3 of this run are used up"

    def test_a_driver_counts_all_that_is_in_the_step(self, tmp_path) -> None:
        """For a process without a rank, the bytes of attached engines in the step count."""
        watched = Loop(tmp_path / "run", max_bytes="1MB")
        watched.selector.identity = Identity("driver", None, source="test", final=True, records=False)
        assert self.slow(watched, 10) == "step 12"
        folder = watched.captures.run / "step-000012" / "rollout" / "replica-0"
        folder.mkdir(parents=True)
        (folder / "rank-0.trace.json.gz").write_bytes(b"x" * 2_000_000)
        self.passed(watched, 12)
        assert "used up max_bytes" in self.slow(watched, 40)


class TestReaders:
    def test_a_failed_reader_is_removed(self) -> None:
        """A reader that fails is removed and logged, and the others still get all spans."""

        class Bad:
            name = "bad"

            def take(self, spans) -> None:
                raise RuntimeError("boom")

        class Good:
            name = "good"
            seen = 0

            def take(self, spans) -> None:
                self.seen += len(spans)

            def look(self) -> None:
                self.seen += 1

            def close(self, timeout) -> None:
                self.seen += 1

        good = Good()
        readers = Readers([Bad(), good])
        with capture_logs() as logs:
            readers.take([1, 2])
            readers.look()
            readers.close(1)
        assert [(line["reader"], line["reason"]) for line in logs] == [("bad", "RuntimeError: boom")]
        assert good.seen == 4


class TestOptions:
    @pytest.mark.parametrize(
        ("watch", "message"),
        [
            ({"factor": 1}, r"watch.factor = 1: expected a finite number above 1"),
            ({"factor": "2"}, r'watch.factor = "2": expected a number, such as 2'),
            ({"min_steps": 200}, r"watch.min_steps = 200: longer than the history"),
            ({"roles": ["a/b"]}, r"watch.roles"),
            ({"max_captures": -1}, r"watch.max_captures = -1: too small"),
            ({"fctor": 2}, r'watch.fctor = 2: unknown key; did you mean "factor"'),
        ],
    )
    def test_mistakes(self, watch, message) -> None:
        """A mistake raises a ConfigError that names the key and the value."""
        with pytest.raises(ConfigError, match=message):
            Config(watch=watch)

    def test_without_spans_there_is_nothing_to_watch(self) -> None:
        """The watch requires spans, unless all recording is switched off."""
        with pytest.raises(ConfigError, match=r"watch.enabled = true: requires spans"):
            Config(spans=False, watch={"enabled": True})
        assert Config(enabled=False, watch={"enabled": True}).spans is False

    def test_round_trip(self) -> None:
        """The options are unchanged after writing and reading."""
        config = Config(watch={"enabled": True, "roles": ["actor"], "regions": [], "max_bytes": "none"})
        assert Config.from_mapping(config.to_dict()) == config
