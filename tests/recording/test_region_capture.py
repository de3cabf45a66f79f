"""Captures of single regions inside a window, and how regions appear in a capture."""

from __future__ import annotations

import asyncio
import threading

import pytest
from faulty import control, ended, transitions, windows

import stepprof
from stepprof import bind, profile_step, region
from stepprof.backends.base import Busy


def mini_batches(count, name="mini_batch") -> list[str]:
    """Enter the region this many times, and return the state inside each entry."""
    states = []
    for _ in range(count):
        with region(name):
            states.append(stepprof.state().status)
    return states


def recorded(states) -> list[int]:
    """Return the numbers of the entries that were recorded."""
    return [number for number, state in enumerate(states) if state == "recording"]


def regions_of(session) -> list[tuple]:
    """Return region and status of each window in the manifests."""
    return [(w.get("region"), w["status"]) for w in windows(session)]


@pytest.mark.usefixtures("faulty")
class TestCapturePerRegion:
    def test_each_named_region_is_a_capture(self, start) -> None:
        """Each entry of a named region in the selected step has its own capture. Other
        regions and steps have none.
        """
        session = start(steps="2", capture_per="region", regions=["update", "reward"])
        for step in (1, 2, 3):
            with profile_step(step, role="actor"):
                for name in ("generate", "update", "reward", "update"):
                    mini_batches(1, name)
        found = ended(session)
        assert regions_of(session) == [("update", "complete"), ("reward", "complete"), ("update", "complete")]
        assert [w["artifacts"][0]["path"] for w in found] == [
            "actor/rank-0.json",
            "actor/rank-0.2.json",
            "actor/rank-0.3.json",
        ]
        assert [capture.metadata["region"] for capture in control.captures] == ["update", "reward", "update"]

    def test_a_region_inside_of_a_captured_one(self, start) -> None:
        """A named region inside a captured one is part of that capture."""
        session = start(steps="2", capture_per="region", regions=["update"])
        with profile_step(2), region("update"), region("update"), region("forward"):
            pass
        ended(session)
        assert regions_of(session) == [("update", "complete")]
        assert control.marks == ["update", "update", "forward"]

    def test_no_selected_region_was_entered(self, start) -> None:
        """If no named region was entered, the window is skipped, and its error says so."""
        session = start(steps="2", capture_per="region", regions=["update", "reward"])
        with profile_step(2):
            mini_batches(3, "generate")
        (window,) = ended(session)
        assert (window["status"], window["error"]) == (
            "skipped",
            "nothing was captured: update or reward was entered 0 times",
        )

    def test_a_region_that_outlives_its_window(self, start) -> None:
        """If a region is still open at the end of its window, its capture ends there as partial."""
        session = start(steps="2", capture_per="region", regions=["update"])
        with profile_step(2):
            left = region("update").__enter__()
        left.__exit__(None, None, None)
        (window,) = ended(session)
        assert (window["status"], window["error"]) == (
            "partial",
            "update had not ended when its window ended",
        )
        assert window["artifacts"]

    def test_the_run_ends_inside_of_it(self, start) -> None:
        """If the run ends inside the region, its capture is partial, and the error gives the reason."""
        session = start(steps="2", capture_per="region", regions=["update"])
        window = profile_step(2)
        window.__enter__()
        region("update").__enter__()
        (entry,) = ended(session)
        assert (entry["status"], entry["error"]) == (
            "partial",
            "update had not ended when the run ended while it was recording",
        )

    def test_the_window_a_region_counts_for(self, start) -> None:
        """If coroutines of two steps overlap, a region counts for the window of its own coroutine."""
        session = start(steps="2-3", capture_per="region", regions=["reward"])

        async def step(number, turn, after):
            async with profile_step(number):
                await turn.wait()
                with region("reward"):
                    pass
                after.set()

        async def both():
            first, second, end = asyncio.Event(), asyncio.Event(), asyncio.Event()
            first.set()
            await asyncio.gather(step(2, second, end), step(3, first, second))

        asyncio.run(both())
        assert [(w["step"], w["status"]) for w in ended(session)] == [(3, "complete"), (2, "complete")]
        assert [capture.window.step for capture in control.captures] == [3, 2]

    def test_a_region_on_a_thread_without_a_window(self, start) -> None:
        """A region on a thread without a window counts for the open window."""
        session = start(steps="2", capture_per="region", regions=["reward"])
        with profile_step(2):
            thread = threading.Thread(target=mini_batches, args=(1, "reward"))
            thread.start()
            thread.join()
        ended(session)
        assert regions_of(session) == [("reward", "complete")]

    def test_a_bound_step_picks_the_window(self, start) -> None:
        """If two windows are open, `bind(step=2)` makes a region count for the window of step 2."""
        session = start(steps="2-3", capture_per="region", regions=["reward"])
        with profile_step(2, role="a"), profile_step(3, role="b"), bind(step=2):
            mini_batches(1, "reward")
        stepprof.shutdown()
        assert [(c.window.step, c.window.role) for c in control.captures] == [(2, "a")]
        assert session.path is not None

    def test_a_failed_start_is_logged_once(self, start) -> None:
        """If the start fails, the window has one failed entry, and later regions of
        the window do not try again.
        """
        session = start(steps="2", capture_per="region", regions=["update"])
        control.fail("start", *[OSError("no")] * 5)
        with profile_step(2):
            mini_batches(4, "update")
        assert [(w["status"], w["error"]) for w in ended(session)] == [("failed", "OSError: no")]
        assert control.calls == ["arm", "start", "abort"]

    def test_an_unavailable_backend_is_logged_once(self, start) -> None:
        """If the backend is unavailable, the window has one failed entry, not one for each region."""
        control.unavailable = "no driver"
        session = start(steps="2", capture_per="region", regions=["update"])
        with profile_step(2):
            mini_batches(4, "update")
        assert [w["status"] for w in ended(session)] == ["failed"]

    def test_a_window_that_joins_outlives_the_region(self, start) -> None:
        """If a window joined the region's capture and ends later, it is partial,
        and the capture is complete.
        """
        roles = {"ref": {"capture_per": "step"}}
        session = start(steps="2", capture_per="region", regions=["update"], roles=roles)
        with profile_step(2, role="actor"):
            with region("update"):
                ref = profile_step(2, role="ref").start()
            ref.stop()
        found = {w["role"]: (w["status"], w["error"]) for w in ended(session)}
        assert found == {
            "actor": ("complete", None),
            "ref": ("partial", "the window outlived its capture, which ended with the region update"),
        }

    def test_an_exception_in_the_region(self, start) -> None:
        """The exception reaches the caller, the capture is complete, and its entry names the exception."""
        session = start(steps="2", capture_per="region", regions=["update"])
        with pytest.raises(ZeroDivisionError), profile_step(2), region("update"):
            1 / 0  # noqa: B018
        assert [(w["status"], w["body_error"]) for w in ended(session)] == [
            ("complete", "ZeroDivisionError: division by zero")
        ]


@pytest.mark.usefixtures("faulty")
class TestSchedule:
    @pytest.mark.parametrize(
        ("schedule", "expected"),
        [
            ({}, [0]),
            ({"active": 2}, [0, 1]),
            ({"skip_first": 3}, [3]),
            ({"wait": 1, "warmup": 1, "active": 2}, [2, 3]),
            ({"skip_first": 1, "wait": 1, "active": 1, "repeat": 3}, [2, 4, 6]),
            ({"warmup": 1, "active": 1, "repeat": 2}, [1, 3]),
            ({"active": 2, "repeat": 2}, [0, 1, 2, 3]),
        ],
    )
    def test_which_entries_are_captured(self, start, schedule, expected) -> None:
        """The first entries are skipped. Then each round has entries for waiting, for the
        warm-up and for the capture.
        """
        session = start(steps="2", schedule={"region": "mini_batch", **schedule})
        with profile_step(2):
            states = mini_batches(10)
        assert recorded(states) == expected
        ended(session)
        repeat = schedule.get("repeat", 1)
        assert regions_of(session) == [("mini_batch", "complete")] * repeat

    def test_the_capture_is_armed_during_the_warm_up(self, start) -> None:
        """The capture is armed during waiting and warm-up, and disarmed at the end of the
        window if no further entry came.
        """
        start(steps="2", schedule={"region": "mini_batch", "wait": 1, "warmup": 1, "repeat": 2})
        with profile_step(2):
            assert mini_batches(5) == ["armed", "armed", "recording", "idle", "armed"]
            assert stepprof.state().status == "armed"
        assert stepprof.state().status == "idle"

    def test_a_region_that_is_never_reached_leaves_nothing_armed(self, start, log) -> None:
        """If the first active entry never comes, the window is skipped with the number of entries,
        and the capture is disarmed.
        """
        session = start(steps="2", schedule={"region": "mini_batch", "skip_first": 5})
        with profile_step(2):
            mini_batches(3)
        assert stepprof.state().status == "idle"
        (window,) = ended(session)
        assert (window["status"], window["error"]) == (
            "skipped",
            "nothing was captured: mini_batch was entered 3 times",
        )
        assert transitions(log) == [("idle", "armed"), ("armed", "idle")]

    def test_a_window_that_ends_early_keeps_a_partial_capture(self, start) -> None:
        """If the window ends before the last active entry, the capture is partial."""
        session = start(steps="2", schedule={"region": "mini_batch", "active": 5})
        with profile_step(2):
            mini_batches(2)
        (window,) = ended(session)
        assert (window["status"], window["error"]) == (
            "partial",
            "mini_batch had not ended when its window ended",
        )

    def test_a_cap_ends_one_round(self, start) -> None:
        """If a cap ends a round, the next round has a capture of its own."""
        session = start(
            steps="2", schedule={"region": "mini_batch", "active": 2, "repeat": 2}, max_bytes="1kB"
        )
        with profile_step(2):
            with region("mini_batch"):
                control.size = 2000
                session.background.round()
                control.size = 0
                assert stepprof.state().status == "idle"
            assert mini_batches(3) == ["idle", "recording", "recording"]
        assert [(w["status"], w["capped_by"]) for w in ended(session)] == [
            ("complete", "max_bytes"),
            ("complete", None),
        ]

    def test_a_warm_up_that_fails(self, start) -> None:
        """If arming in the warm-up fails, the first active entry arms again and is recorded."""
        session = start(steps="2", schedule={"region": "mini_batch", "warmup": 1})
        control.fail("arm", OSError("no"), OSError("no"))
        with profile_step(2):
            assert recorded(mini_batches(3)) == [1]
        assert [w["status"] for w in ended(session)] == ["complete"]

    def test_another_profiler_makes_the_window_skipped(self, start) -> None:
        """If another profiler runs, no entry is recorded, and the window is skipped."""
        session = start(steps="2", schedule={"region": "mini_batch", "active": 2})
        control.fail("start", Busy("theirs"))
        with profile_step(2):
            assert recorded(mini_batches(4)) == []
        assert [(w["status"], w["error"]) for w in ended(session)] == [("skipped", "Busy: theirs")]

    def test_the_plain_capture_is_not_opened(self, start) -> None:
        """With a schedule, entering the window opens no capture."""
        start(steps="2", schedule={"region": "mini_batch", "skip_first": 100})
        with profile_step(2):
            assert stepprof.state().status == "armed"


@pytest.mark.usefixtures("faulty")
class TestWhatIsInTheCapture:
    def annotations(self) -> list[tuple]:
        return [(a.name, a.kind, dict(a.attributes)) for a in control.annotations[0]]

    def test_synchronous_regions_are_marked(self, start) -> None:
        """The backend marks a synchronous region while it runs. Regions outside
        of the capture are not marked.
        """
        start(steps="2")
        with region("before"), profile_step(2), region("forward"):
            pass
        assert control.marks == ["forward"]
        assert [name for name, kind, _ in self.annotations() if kind == "region"] == []

    def test_coroutines_attributes_and_windows_are_annotated(self, start) -> None:
        """Coroutines, windows, marks and counters are annotations with absolute times. A synchronous
        region's attributes are one, too.
        """
        start(steps="2")

        @region("generate")
        async def generate():
            await asyncio.sleep(0)

        with profile_step(2, role="rollout"):
            asyncio.run(generate())
            with bind(sample="a1"), region("reward", batch=64), profile_step(2, role="reward"):
                stepprof.mark("synced", version=3)
                stepprof.counter("queue", 17)
        found = self.annotations()
        where = {"step": 2, "role": "rollout"}
        assert ("generate", "region", where) in found
        assert ("reward", "attributes", {**where, "sample": "a1", "batch": 64}) in found
        assert [(name, attributes["role"]) for name, kind, attributes in found if kind == "window"] == [
            ("reward", "reward"),
            ("rollout", "rollout"),
        ]
        inner = {"step": 2, "role": "reward", "sample": "a1"}
        assert ("synced", "mark", {**inner, "version": 3}) in found
        assert ("queue", "counter", {**inner, "value": 17}) in found
        assert control.marks == ["reward"]
        for annotation in control.annotations[0]:
            assert 1.5e18 < annotation.start_unix_ns <= annotation.end_unix_ns

    def test_a_mark_that_fails_does_not_end_the_region(self, start, log) -> None:
        """If the backend cannot mark a region, this is logged once, and the regions and the capture go on."""
        session = start(steps="2")
        control.fail("mark", RuntimeError("no"), RuntimeError("no"))
        with profile_step(2):
            assert len(mini_batches(3)) == 3
        assert len([line for line in log if line["event"] == "region.not_marked"]) == 1
        assert [w["status"] for w in ended(session)] == ["complete"]

    def test_without_spans_regions_are_still_in_the_capture(self, start) -> None:
        """With `spans = false`, regions are still marked in the capture, and no span file is written."""
        session = start(steps="2", spans=False)
        with profile_step(2), region("forward", n=1):
            pass
        assert [name for name, kind, _ in self.annotations() if kind == "attributes"] == ["forward"]
        assert control.marks == ["forward"]
        stepprof.shutdown()
        assert not (session.path / "spans").exists()
