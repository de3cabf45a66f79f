"""`profile_step` in each form: valid steps, the step of each window, and that each window exits once."""

from __future__ import annotations

import asyncio
import enum
import random
import threading

import pytest
from faulty import control, ended, outcomes
from spanning import only, spans_of

import stepprof
from stepprof import current_step, profile_step, region, state, tick
from stepprof.instrument.scope import newest


class Role(str, enum.Enum):
    ACTOR = "actor"


class Integer:
    """An integer of another type, as of numpy and torch."""

    def __init__(self, value):
        self.value = value

    def __index__(self):
        return self.value


@pytest.fixture
def session(start):
    return start(backend="null", steps="1000")


def seen(session):
    """Return step, role and name of the windows in the spans."""
    return [(s["step"], s["role"], s["name"]) for s in spans_of(session, kind="window")]


class TestForms:
    def test_a_block(self, session) -> None:
        """Entering a block returns the window. Its span has the step and the role."""
        with profile_step(3, role="actor", version=7) as window:
            assert isinstance(window, stepprof.instrument.step.StepWindow)
        with profile_step(4):
            pass
        assert seen(session) == [(3, "actor", "actor"), (4, None, "step")]

    def test_an_async_block(self, session) -> None:
        """The span of an async block includes its awaits, and has the id of its task."""

        async def main():
            async with profile_step(3, role="rollout"):
                await asyncio.sleep(0.01)
            return id(asyncio.current_task())

        task = asyncio.run(main())
        span = only(session)
        assert span["dur"] >= 10_000_000
        assert span["task"] == task

    def test_start_and_stop(self, session) -> None:
        """`start` returns the window. If `stop` gets the exception of the body,
        the span has the error flag.
        """
        window = profile_step(3, role="actor").start()
        window.stop()
        window = profile_step(4, role="actor").start()
        window.stop(ValueError("body"))
        assert [span.get("error", False) for span in spans_of(session)] == [False, True]

    def test_astart_and_astop(self, session) -> None:
        """`astart` and `astop` do the same in a coroutine."""

        async def main():
            window = await profile_step(3, role="rollout").astart()
            await asyncio.sleep(0)
            await window.astop(ValueError("body"))

        asyncio.run(main())
        assert only(session)["error"] is True

    def test_the_same_window_again(self, session) -> None:
        """A window can be used again after it has ended, as a block and with `start` and `stop`."""
        window = profile_step(3)
        with window:
            pass
        window.start().stop()
        with window, region("r"):
            pass
        assert [s["step"] for s in spans_of(session)] == [3, 3, 3, 3]

    def test_without_a_session_every_form_does_nothing(self) -> None:
        """Without a session, each form does nothing, and so does a `stop` without a `start`."""
        with profile_step(1), profile_step(1, role="actor"):
            tick()
        profile_step(1).start().stop()
        profile_step(1).stop()

        async def main():
            async with profile_step(2):
                pass
            await (await profile_step(2).astart()).astop()

        asyncio.run(main())
        assert profile_step(step="n")(lambda n: n)(3) == 3
        assert state().status == "idle"

    def test_a_session_that_ends_inside(self, start) -> None:
        """If the session ends inside a window, the window exits without an
        error and leaves no step behind.
        """
        session = start(backend="null")
        with profile_step(3):
            stepprof.shutdown()
        again = start(backend="null", run_id="again")
        with region("r"):
            pass
        assert only(again, "r")["step"] is None
        (window,) = spans_of(session)
        assert (window["step"], window["attrs"]) == (3, {"unfinished": True})


class TestSteps:
    def test_other_integer_types_are_steps(self, session) -> None:
        """Integers of other types are steps."""
        for step in (Integer(5), True, 0):
            with profile_step(step):
                pass
        assert [s["step"] for s in spans_of(session)] == [5, 1, 0]

    def test_none_means_the_last_step(self, session) -> None:
        """Without a number, a window belongs to the step that this process entered last, on any thread."""
        thread = threading.Thread(target=lambda: profile_step(8, role="rollout").start().stop())
        thread.start()
        thread.join()
        with profile_step(role="actor"):
            pass
        assert [s["step"] for s in spans_of(session)] == [8, 8]

    @pytest.mark.parametrize(
        ("step", "reported"),
        [
            (None, "no step was entered in this process before"),
            (-1, "a negative number"),
            (10**18, "a number of more than 18 digits; expected one from 0 to 999999999999999999"),
            ("three", "expected an integer"),
            (2.5, "expected an integer"),
        ],
    )
    def test_an_invalid_step_is_reported_once(self, session, log, step, reported) -> None:
        """An invalid step is logged once, and the body runs without a window."""
        ran = []
        for _ in range(3):
            with profile_step(step, role="actor"):
                ran.append(1)
        assert ran == [1, 1, 1]
        assert spans_of(session) == []
        assert [reported in line["reason"] for line in log if line["event"] == "call.refused"] == [True]

    @pytest.mark.parametrize("role", ["../x", 3, ["a"], ".hidden", "step", ""])
    def test_an_invalid_role_is_reported_once(self, start, log, role) -> None:
        """An invalid role is logged in each form of a window. It makes no folder and raises no error."""
        session = start(backend="null", steps="2")
        ran = []
        with profile_step(2, role=role):
            ran.append(1)
        profile_step(2, role=role).start().stop()

        async def main():
            async with profile_step(2, role=role):
                ran.append(2)

        asyncio.run(main())
        assert ran == [1, 2]
        stepprof.shutdown()
        assert any(line["event"] == "call.refused" and "role" in line["reason"] for line in log)
        assert list(session.path.glob("step-*")) == []

    @pytest.mark.usefixtures("faulty")
    def test_a_role_of_another_text_type(self, start) -> None:
        """A member of a string enum is the role with its value."""
        session = start(steps="2")
        with profile_step(2, role=Role.ACTOR):
            pass
        ended(session)
        assert outcomes(session) == [(2, "actor", "complete")]


class TestCurrentStep:
    @pytest.mark.parametrize("options", [{}, {"spans": False}])
    def test_recorded_or_not(self, start, options) -> None:
        """`current_step` returns the step of the open window, recorded or not.
        Between windows it returns None.
        """
        start(backend="null", steps="3", **options)
        seen = []
        for step in (1, 2, 3, 4):
            seen.append(current_step())
            with profile_step(step):
                seen.append(current_step())
                with profile_step(step, role="actor"):
                    seen.append(current_step())
                seen.append(current_step())
        seen.append(current_step())
        assert seen == [None, 1, 1, 1, None, 2, 2, 2, None, 3, 3, 3, None, 4, 4, 4, None]

    @pytest.mark.parametrize("options", [{}, {"spans": False}])
    def test_windows_that_end_in_another_order(self, start, options) -> None:
        """If windows end in another order, the step that is still open is returned."""
        start(backend="null", steps="1000", **options)
        first, second, third = (profile_step(step, role=f"r{step}").start() for step in (1, 2, 3))
        second.stop()
        third.stop()
        assert current_step() == 1
        first.stop()
        assert current_step() is None

    def test_threads_follow_the_open_step_and_tasks_keep_theirs(self, session) -> None:
        """A thread has the step that is open, and a task the step in which it began. `bind` replaces both."""
        found = []

        async def late():
            await asyncio.sleep(0.01)
            found.append(current_step())

        async def main():
            with profile_step(5):
                task = asyncio.ensure_future(late())
                await asyncio.sleep(0)
            with profile_step(6):
                await task
                found.append(current_step())

        asyncio.run(main())
        with profile_step(7):
            thread = threading.Thread(target=lambda: found.append(current_step()))
            thread.start()
            thread.join()
            with stepprof.bind(step=4):
                found.append(current_step())
        assert found == [5, 6, 7, 4]

    def test_without_a_session_there_is_no_step(self) -> None:
        """Without a session, `current_step` returns None inside a window."""
        with profile_step(1):
            assert current_step() is None


class TestRefusals:
    def test_a_second_start(self, session, log) -> None:
        """A second start of an open window is logged with the reason, and the window continues."""
        window = profile_step(3, role="actor").start()
        window.start()
        window.stop()
        assert len(spans_of(session)) == 1
        assert [line["reason"] for line in log if line["event"] == "call.refused"] == [
            "this window of step 3 is already open"
        ]

    def test_a_stop_without_a_start(self, session, log) -> None:
        """A stop without a start, and a second stop, are logged with the reason."""
        window = profile_step(3)
        window.stop()
        window.start().stop()
        window.stop()
        assert len(spans_of(session)) == 1
        assert [line["reason"] for line in log if line["event"] == "call.refused"] == [
            "this window is not open"
        ] * 2

    def test_thousands_of_concurrent_windows(self, session) -> None:
        """4,000 tasks on two threads each start and stop their own window, and no window remains open."""

        async def one(number):
            window = await profile_step(number % 2, role="rollout").astart()
            await asyncio.sleep(0.001)
            await window.astop()

        async def main():
            await asyncio.gather(*(one(number) for number in range(2000)))

        threads = [threading.Thread(target=asyncio.run, args=(main(),), daemon=True) for _ in range(2)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert session.refusals.started._opened == session.refusals.started._ended == {}
        assert len(spans_of(session, "rollout")) == 4000


class TestDecorator:
    def test_the_step_by_the_arguments_name(self, session) -> None:
        """The step is the named argument, whether it is passed by position, by keyword, or by default."""

        @profile_step(step="n", role="actor")
        def f(batch, n=4, *rest, key=None):
            return n

        @profile_step(step="n")
        def keyword(*rest, n=5):
            return n

        @profile_step(step="n")
        def positional(n, /, **rest):
            return n

        @profile_step(step="n")
        def anything(**rest):
            return rest.get("n")

        assert [f(0, 1), f(0, n=2), f(0), f(0, 3, 9, 9), f(batch=0)] == [1, 2, 4, 3, 4]
        assert [keyword(9, 9, 9), keyword(n=6)] == [5, 6]
        assert [positional(7, n=1), anything(n=8), anything()] == [7, 8, None]
        assert [s["step"] for s in spans_of(session)] == [1, 2, 4, 3, 4, 5, 6, 7, 8, 8]

    def test_the_step_by_a_callable(self, session) -> None:
        """The step is computed from the call's arguments. If that raises an error, the
        function runs without a window.
        """

        class Trainer:
            global_step = 6

            @profile_step(step=lambda self, batch: self.global_step + batch["ahead"], role="actor")
            def update(self, batch):
                return "ran"

        assert Trainer().update({"ahead": 1}) == "ran"
        assert Trainer().update({}) == "ran"
        assert [s["step"] for s in spans_of(session)] == [7]

    def test_a_step_that_is_known(self, session) -> None:
        """The step of a decorator is a number, or without one the step that is open."""

        @profile_step(role="reward")
        def reward():
            return 1

        @profile_step(9)
        def nine():
            return reward()

        assert nine() == 1
        assert [(s["step"], s["role"]) for s in spans_of(session)] == [(9, None), (9, "reward")]

    def test_methods_and_kinds(self, session) -> None:
        """The named argument is found in coroutines, generators, class methods and static methods."""

        class Worker:
            @profile_step(step="n")
            async def coroutine(self, n):
                await asyncio.sleep(0.005)

            @profile_step(step="n")
            def generator(self, n):
                yield n

            @profile_step(step="n")
            @classmethod
            def class_method(cls, n):
                return n

            @staticmethod
            @profile_step(step="n")
            def static_method(n):
                return n

        worker = Worker()
        asyncio.run(worker.coroutine(1))
        assert list(worker.generator(2)) == [2]
        assert (worker.class_method(3), Worker.static_method(4)) == (3, 4)
        spans = spans_of(session)
        assert [s["step"] for s in spans] == [1, 2, 3, 4]
        assert spans[0]["dur"] >= 5_000_000

    def test_an_unknown_argument_name_is_refused(self) -> None:
        """A name that no argument has raises a TypeError with the existing names
        when the function is decorated.
        """
        with pytest.raises(TypeError, match=r'step="steps".*f has no such argument; it has: a, step'):

            @profile_step(step="steps")
            def f(a, step):
                pass

    def test_classes_and_missing_parentheses_are_refused(self) -> None:
        """Decorating something that is no function, or a class, raises a TypeError that names the mistake."""
        with pytest.raises(TypeError, match="expected a name or a function"):
            profile_step(1)(3)  # type: ignore[type-var]
        with pytest.raises(TypeError, match="decorate its methods"):
            profile_step(1)(Integer)


class TestConcurrency:
    def test_five_thousand_coroutines_over_two_overlapping_steps(self, session) -> None:
        """5,000 coroutines of two overlapping steps: each span has its own
        step, role, sample and duration.
        """
        chance = random.Random(0)
        pauses = [chance.uniform(0.001, 0.02) for _ in range(5000)]

        @region("tool_call")
        async def tool_call(pause):
            await asyncio.sleep(pause)

        async def sample(number, pause):
            async with stepprof.bind(sample=number):
                with region("generate", turn=1):
                    await asyncio.sleep(pause)
                    await tool_call(pause / 2)
                stepprof.counter("tokens", number)

        async def rollout(step, numbers):
            async with profile_step(step, role="rollout"):
                await asyncio.gather(
                    *(asyncio.create_task(sample(number, pauses[number])) for number in numbers)
                )

        async def main():
            first = asyncio.create_task(rollout(1, range(2500)))
            await asyncio.sleep(0.005)
            second = asyncio.create_task(rollout(2, range(2500, 5000)))
            async with profile_step(1, role="actor"):
                with region("update"):
                    await asyncio.sleep(0.01)
                await asyncio.gather(first, second)

        asyncio.run(main())
        spans = spans_of(session)
        by_name: dict = {}
        for span in spans:
            by_name.setdefault(span["name"], {})[span.get("attrs", {}).get("sample")] = span
        for name in ("generate", "tool_call", "tokens"):
            assert set(by_name[name]) == set(range(5000))
            for number, span in by_name[name].items():
                assert (span["step"], span["role"]) == (1 if number < 2500 else 2, "rollout")
        for number in range(5000):
            generate, call = by_name["generate"][number], by_name["tool_call"][number]
            pause = pauses[number] * 1e9
            assert generate["task"] == call["task"]
            assert generate["dur"] >= call["dur"] + 0.95 * pause
            assert call["dur"] >= 0.95 * pause / 2
            assert generate["start"] <= call["start"]
            assert call["start"] + call["dur"] <= generate["start"] + generate["dur"]
            assert by_name["tokens"][number]["value"] == number
        assert (by_name["update"][None]["step"], by_name["update"][None]["role"]) == (1, "actor")
        windows = {(s["step"], s["role"]): s for s in spans if s["kind"] == "window"}
        assert set(windows) == {(1, "rollout"), (2, "rollout"), (1, "actor")}
        first, second = windows[1, "rollout"], windows[2, "rollout"]
        assert first["start"] < second["start"] < first["start"] + first["dur"]

    def test_a_task_that_begins_after_a_window(self, session) -> None:
        """A task that begins after a window belongs to the step around it, or to none."""

        async def later():
            with region("later"):
                await asyncio.sleep(0)

        async def inside():
            with profile_step(1), profile_step(1, role="rollout"):
                pass
            await asyncio.create_task(later())
            with profile_step(2):
                with profile_step(2, role="rollout"):
                    pass
                await asyncio.create_task(later())

        async def outside():
            with stepprof.bind(sample=1), profile_step(4, role="rollout"):
                pass
            await asyncio.create_task(later())

        asyncio.run(inside())
        with profile_step(3, role="rollout"):
            pass
        asyncio.run(later())
        asyncio.run(outside())
        found = [(s["step"], s["role"], s.get("attrs")) for s in spans_of(session, "later")]
        assert found == [(None, None, None), (2, None, None), (None, None, None), (None, None, None)]

    def test_a_window_left_open_by_an_earlier_run(self, start) -> None:
        """A task in the next run belongs to no step, although a window of the previous run was left open."""

        async def later():
            with region("later"):
                await asyncio.sleep(0)

        async def main():
            await asyncio.create_task(later())

        with stepprof.bind(sample=7):
            start(backend="null")
            profile_step(3).start()
            stepprof.shutdown()
            session = start(run_id="next", backend="null")
            asyncio.run(main())
        (span,) = spans_of(session, "later")
        assert (span["step"], span["role"], span.get("attrs")) == (None, None, None)

    def test_windows_of_one_task_that_end_in_another_order(self, session) -> None:
        """A task belongs to the window that is open when the task begins."""

        async def later():
            with region("later"):
                await asyncio.sleep(0)

        async def main():
            rollout, actor = profile_step(1, role="rollout").start(), profile_step(1, role="actor").start()
            rollout.stop()
            await asyncio.create_task(later())
            actor.stop()
            await asyncio.create_task(later())

        asyncio.run(main())
        assert [(s["step"], s["role"]) for s in spans_of(session, "later")] == [(1, "actor"), (None, None)]

    def test_windows_of_threads_do_not_mix(self, session) -> None:
        """Windows and regions of eight threads have their own thread and step each."""

        def work(step):
            for _ in range(200):
                with profile_step(step, role="actor"), region("r"):
                    pass

        threads = [threading.Thread(target=work, args=(step,)) for step in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        spans = spans_of(session, "r")
        assert len(spans) == 1600
        assert len({(s["thread"], s["step"]) for s in spans}) == 8
        assert newest.window is None

    @pytest.mark.usefixtures("faulty")
    def test_coroutines_of_a_recorded_step(self, start) -> None:
        """The regions of the captured step are annotations with step, sample and duration,
        although other steps overlap.
        """
        session = start(steps="2")

        async def sample(number):
            with stepprof.bind(sample=number), region("generate"):
                await asyncio.sleep(0.001)

        async def rollout(step):
            async with profile_step(step, role="rollout"):
                await asyncio.gather(*(sample(number) for number in range(300)))

        async def main():
            await asyncio.gather(*(rollout(step) for step in (1, 2, 3)))

        asyncio.run(main())
        ended(session)
        assert control.calls.count("start") == 1
        notes = [note for note in control.annotations[0] if note.name == "generate"]
        mine = [note for note in notes if note.attributes["step"] == 2]
        assert sorted(note.attributes["sample"] for note in mine) == list(range(300))
        assert all(note.end_unix_ns - note.start_unix_ns >= 900_000 for note in mine)


class TestWaitingForAStop:
    @pytest.mark.usefixtures("faulty")
    def test_other_event_loops_wait_without_asyncio(self, start) -> None:
        """If an async window runs without asyncio's event loop, it waits for the target
        without asyncio, and is recorded.
        """
        session = start(steps="2")

        async def main():
            async with profile_step(2, role="rollout"):
                pass

        held = threading.Event()
        release = threading.Event()

        def hold():
            session.local.capturer.access.acquire(1)
            held.set()
            release.wait(5)
            session.local.capturer.access.release()

        thread = threading.Thread(target=hold)
        thread.start()
        held.wait(5)
        threading.Timer(0.2, release.set).start()
        session.calm = False
        with pytest.raises(StopIteration):
            main().send(None)
        thread.join()
        ended(session)
        assert outcomes(session) == [(2, "rollout", "complete")]
