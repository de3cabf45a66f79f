"""Regions as blocks: their spans, their windows and attributes, and that they
do not change the code inside.
"""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import enum
import threading
import time
from queue import SimpleQueue

import pytest
from faulty import control, ended
from spanning import only, spans_of

import stepprof
from stepprof import bind, counter, mark, profile_step, region
from stepprof.instrument.context import cell


class Phase(str, enum.Enum):
    ACTOR = "actor"


class Integer:
    """An integer of another type, as of numpy."""

    def __init__(self, number):
        self.number = number

    def __index__(self):
        return self.number


class Hostile:
    """An object whose methods raise errors."""

    def __str__(self):
        raise RuntimeError("no text")

    __repr__ = __str__

    def __eq__(self, other):
        raise RuntimeError("no comparison")

    __hash__ = object.__hash__


class Call(threading.Event):
    """A call in another thread, which ends when the event is set."""

    def __init__(self) -> None:
        super().__init__()
        self.begun, self.done = threading.Event(), threading.Event()

    def finish(self) -> None:
        """End the call, and wait until its region has ended."""
        self.set()
        assert self.done.wait(10)


def in_block(act) -> None:
    with region("late"):
        act()


async def in_async_block(act) -> None:
    async with region("late"):
        act()


@region("late")
async def in_coroutine(act) -> None:
    act()


@region("late")
def in_generator(act):
    yield act()


FORMS = {
    "block": in_block,
    "decorated": region("late")(lambda act: act()),
    "async block": lambda act: asyncio.run(in_async_block(act)),
    "async decorated": lambda act: asyncio.run(in_coroutine(act)),
    "generator": lambda act: list(in_generator(act)),
}
"""Calls of a function inside a region."""


@pytest.fixture
def session(start):
    return start(backend="null")


class TestBlock:
    def test_a_block_is_a_span(self, session) -> None:
        """The span of a block has its name, kind, attributes, thread, absolute time and duration."""
        before = time.time_ns()
        with region("reward", batch=64):
            time.sleep(0.01)
        after = time.time_ns()
        span = only(session, "reward")
        assert span["kind"] == "region"
        assert span["attrs"] == {"batch": 64}
        assert span["thread"] == threading.get_native_id()
        assert span["task"] is None
        assert "error" not in span
        assert before - 1_000_000 <= span["start"] < span["start"] + span["dur"] <= after + 1_000_000
        assert 10_000_000 <= span["dur"] < 5_000_000_000

    def test_an_async_block_is_one_too(self, session) -> None:
        """The span of an async block includes its awaits, and has the id of its task."""

        async def tool_call():
            async with region("tool_call"):
                await asyncio.sleep(0.01)
            return id(asyncio.current_task())

        task = asyncio.run(tool_call())
        span = only(session, "tool_call")
        assert span["dur"] >= 10_000_000
        assert span["task"] == task

    def test_nested_and_sibling_blocks(self, session) -> None:
        """Inner blocks lie within the outer one, and consecutive blocks do not overlap."""
        with region("outer"):
            with region("first"):
                pass
            with region("second"):
                pass
        outer, first, second = spans_of(session)
        assert [outer["name"], first["name"], second["name"]] == ["outer", "first", "second"]
        ends = [span["start"] + span["dur"] for span in (outer, first, second)]
        assert ends[1] <= second["start"]
        assert ends[2] <= ends[0]

    def test_an_exception_passes_through_unchanged(self, session) -> None:
        """The caller gets the same exception object, and the span has the error flag."""
        error = ValueError("mine")
        with pytest.raises(ValueError, match="mine") as caught, region("failing"):
            raise error
        assert caught.value is error
        assert error.__context__ is None
        assert only(session, "failing")["error"] is True

    def test_a_block_is_used_again_after_it_has_ended(self, session) -> None:
        """If a block is entered three times, it has three spans."""
        block = region("again")
        for _ in range(3):
            with block:
                pass
        assert len(spans_of(session, "again")) == 3

    def test_without_a_session_nothing_is_kept(self) -> None:
        """A block without a session passes its exception on and records nothing."""
        with pytest.raises(KeyError), region("early", x=1):
            raise KeyError
        assert cell.recorder is None

    def test_a_session_may_begin_or_end_inside(self, start) -> None:
        """A block that begins before the session, or ends after it, has no span."""
        with region("before"):
            first = start(backend="null")
        assert spans_of(first) == []
        second = start(backend="null", run_id="second")
        with region("after"):
            stepprof.shutdown()
        assert spans_of(second) == []

    def test_a_block_of_a_former_session(self, start) -> None:
        """A block that was entered in one session has no span in the next one,
        even if it is entered again.
        """
        first = start(backend="null")
        across, again = region("across"), region("again")
        with across, again:
            stepprof.shutdown()
            second = start(backend="null", run_id="second")
        with again:
            stepprof.shutdown()
        with again:
            third = start(backend="null", run_id="third")
        assert [spans_of(session, kind="region") for session in (first, second, third)] == [[], [], []]

    def test_spans_switched_off(self, start) -> None:
        """With `spans = false`, no file of spans is made, and windows and regions still work."""
        session = start(backend="null", spans=False, steps="9")
        with profile_step(1) as window, region("quiet"):
            pass
        assert window is not None
        profile_step(2).start().stop()
        assert not (session.path / "spans").exists()

    def test_a_subclass_of_str_is_a_name(self, session) -> None:
        """A member of a string enum names a region by its value."""
        with region(Phase.ACTOR):
            pass
        assert only(session)["name"] == "actor"

    @pytest.mark.parametrize(("thing", "name"), [(None, "None"), (17, "17"), (b"x", "<bytes>"), ([1], "[1]")])
    def test_a_name_that_is_no_string(self, session, log, thing, name) -> None:
        """A region in the loop raises nothing: another value than a string is the name as text, and is logged once."""
        for _ in range(2):
            with region(thing):
                pass
        assert [span["name"] for span in spans_of(session)] == [name, name]
        assert [line["what"] for line in log if line["event"] == "call.refused"] == ["region"]

    def test_a_property_is_not_decorated(self) -> None:
        """A property raises a TypeError that says what to do: its class would lose it otherwise."""
        with pytest.raises(TypeError, match="a property is decorated below @property"):
            region(property(lambda self: 1))

    def test_a_class_is_not_decorated(self) -> None:
        """Decorating a class raises a TypeError that says to decorate its methods."""
        with pytest.raises(TypeError, match="is a class; decorate its methods"):
            region(Hostile)
        with pytest.raises(TypeError, match="is a class; decorate its methods"):
            region("name")(Hostile)


class TestAttributes:
    @pytest.mark.parametrize(
        ("value", "kept"),
        [
            (1, 1),
            (True, True),
            (None, None),
            ("text", "text"),
            (1.5, 1.5),
            (float("nan"), "nan"),
            (float("-inf"), "-inf"),
            (Phase.ACTOR, "actor"),
            (enum.IntEnum("Number", {"TWO": 2}).TWO, 2),
            ([1, (2, None)], [1, [2, None]]),
            ({"a": {"b": 1}, 3: 4}, {"a": {"b": 1}, "3": 4}),
            ({1, 2}, "<set>"),
            (b"bytes", "<bytes>"),
            (Hostile(), "<Hostile>"),
            ([1, Hostile()], [1, "<Hostile>"]),
            ({Hostile(): 1}, {"<Hostile>": 1}),
            (10**5000, "<int of 16610 bits>"),
            ("\ud800", "\ud800"),
            (lambda: None, "<function>"),
        ],
        ids=lambda value: type(value).__name__,
    )
    def test_values(self, session, value, kept) -> None:
        """Plain values are kept, and other values are replaced by their type. No value raises an error."""
        with region("r", value=value), bind(bound=value):
            mark("m", value=value)
        spans = {span["name"]: span for span in spans_of(session)}
        assert spans["r"]["attrs"] == {"value": kept}
        assert spans["m"]["attrs"] == {"value": kept, "bound": kept}

    @pytest.mark.torch
    def test_numpy(self, session) -> None:
        """A numpy scalar is kept as its value, and an array as its type."""
        import numpy

        with region("r", scalar=numpy.int64(3), zero=numpy.array(2.5), many=numpy.zeros(3)):
            pass
        assert only(session)["attrs"] == {"scalar": 3, "zero": 2.5, "many": "<ndarray>"}

    @pytest.mark.torch
    def test_a_tensor_is_never_read(self, session) -> None:
        """The value of a tensor is not read; its type is kept. Reading this tensor on the meta
        device would raise an error.
        """
        import torch

        tensor = torch.ones(2, device="meta")
        with region("r", loss=tensor, losses=[tensor]):
            pass
        assert only(session)["attrs"] == {"loss": "<Tensor>", "losses": ["<Tensor>"]}

    def test_nothing_of_the_loop_is_held(self, start) -> None:
        """The arguments of a region can be freed as soon as it ends, before its span is written."""
        import gc
        import weakref

        session = start(backend="null")
        session.background.stop(5)

        class Batch:
            pass

        batch = Batch()
        gone = weakref.ref(batch)
        with region("r", batch=batch, inside=[batch]), bind(batch=batch):
            counter("c", batch)
            mark("m", batch=batch)
        del batch
        gc.collect()
        assert gone() is None

    def test_huge_values_are_cut(self, session) -> None:
        """Long strings and wide, deep or endless lists are cut."""
        endless: list = []
        endless.append(endless)
        wide = [[[["x"] * 1000] * 1000] * 1000] * 1000
        with region("r", text="x" * 1_000_000, wide=wide, endless=endless):
            pass
        attributes = only(session)["attrs"]
        assert len(attributes["text"]) < 5000
        assert len(str(attributes)) < 50_000

    def test_a_dict_that_raises_while_it_is_read(self, session) -> None:
        """If a mapping raises an error while it is read, its type is kept."""

        class Broken(dict):
            def items(self):
                raise RuntimeError("broken")

        with region("r", config=Broken(a=1), deep=[Broken(a=1)]):
            pass
        assert only(session)["attrs"] == {"config": "<Broken>", "deep": ["<Broken>"]}

    def test_a_name_in_the_attributes(self, session) -> None:
        """Attributes may have the names `name` and `self`."""
        with region("r", name="n", self=1):
            mark("m", name="k")
        assert [span["attrs"] for span in spans_of(session)] == [{"name": "n", "self": 1}, {"name": "k"}]


class TestScope:
    def test_step_and_role(self, session) -> None:
        """A region belongs to the innermost window around it. Outside of windows it belongs to none."""
        with region("before"):
            pass
        with profile_step(2):
            with region("step"):
                pass
            with profile_step(2, role="actor"), region("role"):
                pass
            with region("step again"):
                pass
        with region("after"):
            pass
        found = {s["name"]: (s["step"], s["role"]) for s in spans_of(session, kind="region")}
        assert found == {
            "before": (None, None),
            "step": (2, None),
            "role": (2, "actor"),
            "step again": (2, None),
            "after": (None, None),
        }

    def test_windows_that_overlap(self, session) -> None:
        """If windows overlap in any order, a region belongs to the latest one that is open."""
        one, two, three = (profile_step(step, role=f"r{step}") for step in (1, 2, 3))
        one.start()
        two.start()
        with region("1,2"):
            pass
        one.stop()
        with region("2"):
            pass
        three.start()
        two.stop()
        with region("3"):
            pass
        three.stop()
        with region("none"):
            pass
        found = {s["name"]: s["step"] for s in spans_of(session, kind="region")}
        assert found == {"1,2": 2, "2": 2, "3": 3, "none": None}

    def test_a_region_that_outlasts_its_window(self, session) -> None:
        """A region belongs to the window in which it began, whether it ends after it, in a window around it or in the next one."""
        late, across, inner, around = (region(name) for name in ("late", "across", "inner", "around"))
        with profile_step(2, role="actor"):
            late.__enter__()
        late.__exit__(None, None, None)
        with profile_step(3, role="actor"):
            across.__enter__()
        around.__enter__()
        with profile_step(4):
            across.__exit__(None, None, None)
            with profile_step(4, role="critic"):
                inner.__enter__()
            inner.__exit__(None, None, None)
        around.__exit__(None, None, None)
        found = {s["name"]: (s["step"], s["role"]) for s in spans_of(session, kind="region")}
        assert found == {
            "late": (2, "actor"),
            "across": (3, "actor"),
            "inner": (4, "critic"),
            "around": (None, None),
        }

    def test_a_region_of_another_thread_outlasts_a_window(self, session) -> None:
        """A region on a thread without context belongs to the window that was open when it began, although the next one is open at its end."""
        began, go = threading.Event(), threading.Event()

        def work() -> None:
            with region("elsewhere"):
                began.set()
                go.wait()

        with profile_step(2, role="actor"):
            thread = threading.Thread(target=work)
            thread.start()
            began.wait()
        with profile_step(3, role="critic"):
            go.set()
            thread.join()
        found = {s["name"]: s["step"] for s in spans_of(session, kind="region")}
        assert found == {"elsewhere": 2}

    def test_an_endless_pipeline_holds_nothing(self, session) -> None:
        """If each window overlaps with the next one, earlier windows are freed."""
        import gc

        from stepprof.instrument.step import StepWindow

        def alive() -> int:
            gc.collect()
            return sum(type(thing) is StepWindow for thing in gc.get_objects())

        before = alive()  # windows in contexts that other tests have left
        last = profile_step(0, role="even").start()
        for step in range(1, 500):
            window = profile_step(step, role="odd" if step % 2 else "even").start()
            last.stop()
            last = window
        last.stop()
        session.background.round()
        assert alive() - before < 20

    def test_threads_without_context(self, session) -> None:
        """A region on a thread without context belongs to the last window that was entered and is open."""
        found = []

        def elsewhere(name):
            def work():
                with region(name):
                    pass

            thread = threading.Thread(target=work)
            thread.start()
            thread.join()
            found.append(name)

        elsewhere("none yet")
        with profile_step(4):
            elsewhere("step")
            with profile_step(4, role="ref"):
                elsewhere("role")
            elsewhere("step again")
        elsewhere("over")
        spans = {s["name"]: (s["step"], s["role"]) for s in spans_of(session, kind="region")}
        assert [spans[name] for name in found] == [
            (None, None),
            (4, None),
            (4, "ref"),
            (4, None),
            (None, None),
        ]

    @pytest.mark.parametrize("form", ["block", "decorated", "async block", "async decorated", "generator"])
    def test_a_late_end_in_an_older_thread(self, session, form) -> None:
        """A region of a thread, or a task, that is older than the windows belongs to the window in which it began."""
        queue: SimpleQueue[tuple[threading.Event, threading.Event] | None] = SimpleQueue()

        def work() -> None:
            while (item := queue.get()) is not None:
                begun, go_on = item
                act = FORMS[form]
                act(lambda begun=begun, go_on=go_on: (begun.set(), go_on.wait(10)))
                go_on.done.set()

        worker = threading.Thread(target=work)
        worker.start()
        waiting = []
        for step in (3, 4):
            with profile_step(step, role="reward"):
                if waiting:
                    waiting.pop().finish()
                call = Call()
                queue.put((call.begun, call))
                assert call.begun.wait(10)
                waiting.append(call)
        waiting.pop().finish()
        queue.put(None)
        worker.join(10)
        found = [(span["step"], span["role"]) for span in spans_of(session) if span["name"] == "late"]
        assert found == [(3, "reward"), (4, "reward")]

    def test_a_window_ended_in_another_task_leaves_the_open_one(self, session) -> None:
        """After the window of one task has ended, a thread without context belongs to the
        open window of the other task.
        """

        async def rollout(step, seconds):
            async with profile_step(step, role="rollout"):
                await asyncio.sleep(seconds)

        async def both():
            long = asyncio.create_task(rollout(1, 0.1))
            await asyncio.sleep(0.01)
            await asyncio.create_task(rollout(2, 0.01))
            thread = threading.Thread(target=region("helper")(lambda: None))
            thread.start()
            thread.join()
            await long

        asyncio.run(both())
        assert only(session, "helper")["step"] == 1

    def test_a_task_that_outlives_its_window(self, session) -> None:
        """A task that outlives its window keeps its step, although the next step has begun."""

        async def sample(go_on):
            with region("early"):
                pass
            await go_on.wait()
            with region("late"):
                pass

        async def main():
            go_on = asyncio.Event()
            async with profile_step(5, role="rollout"):
                task = asyncio.create_task(sample(go_on))
                await asyncio.sleep(0)
            async with profile_step(6, role="rollout"):
                go_on.set()
                await task

        asyncio.run(main())
        found = {s["name"]: s["step"] for s in spans_of(session, kind="region")}
        assert found == {"early": 5, "late": 5}

    def test_work_sent_to_another_event_loop(self, session, other_loop) -> None:
        """Coroutines that are sent to the event loop of another thread belong to the
        window from which they were sent.
        """

        async def sample(go_on):
            await asyncio.to_thread(go_on.wait, 10)
            with region("sample"):
                pass

        go_on = threading.Event()
        with profile_step(1, role="rollout"):
            first = asyncio.run_coroutine_threadsafe(sample(go_on), other_loop)
        with profile_step(2, role="rollout"):
            second = asyncio.run_coroutine_threadsafe(sample(go_on), other_loop)
            go_on.set()
            first.result(30)
            second.result(30)
        assert sorted(s["step"] for s in spans_of(session, "sample")) == [1, 2]

    def test_a_window_of_a_former_session(self, start) -> None:
        """A window that was left open does not count in the next session."""
        start(backend="null")
        profile_step(3, role="actor").start()
        stepprof.shutdown()
        again = start(backend="null", run_id="again")
        with region("r"):
            pass
        assert only(again, "r")["step"] is None

    def test_a_context_that_was_copied(self, session) -> None:
        """A thread that runs in a copied context belongs to the window of that context."""
        with profile_step(3, role="critic"):
            context = contextvars.copy_context()
        thread = threading.Thread(target=context.run, args=(region("copied")(lambda: None),))
        thread.start()
        thread.join()
        assert only(session, "copied")["step"] == 3


class TestBind:
    def test_attributes_below(self, session) -> None:
        """Regions, marks, counters and windows inside a `bind` have its attributes. Inner
        attributes replace outer ones.
        """
        with bind(sample="a", turn=1), region("outer"), bind(turn=2), profile_step(4, role="rollout"):
            with region("inner", turn=3):
                pass
            with region("middle"):
                counter("tokens", 7)
                mark("eos")
        spans = {s["name"]: s.get("attrs") for s in spans_of(session)}
        assert spans == {
            "outer": {"sample": "a", "turn": 1},
            "rollout": {"sample": "a", "turn": 2},
            "inner": {"sample": "a", "turn": 3},
            "middle": {"sample": "a", "turn": 2},
            "tokens": {"sample": "a", "turn": 2},
            "eos": {"sample": "a", "turn": 2},
        }

    def test_a_bound_step_is_the_step(self, session) -> None:
        """A bound step replaces the step and keeps the role. It is no attribute,
        and an invalid one is ignored.
        """
        with profile_step(7, role="rollout"):
            with bind(step=6, sample=1), region("r"):
                pass
            with bind(step="six"), region("s"):
                pass
        found = {s["name"]: (s["step"], s["role"], s.get("attrs")) for s in spans_of(session, kind="region")}
        assert found == {"r": (6, "rollout", {"sample": 1}), "s": (7, "rollout", None)}

    @pytest.mark.parametrize(
        ("step", "reason"),
        [
            (-1, "step: a negative number"),
            (10**18, "step: a number of more than 18 digits"),
            ("six", "step: expected an integer"),
            (2.5, "step: expected an integer"),
        ],
    )
    def test_an_invalid_bound_step_is_logged_once(self, session, log, step, reason) -> None:
        """An invalid step is logged once, and the surrounding step and the other attributes are kept."""
        for _ in range(2):
            with profile_step(7), bind(step=step, sample=1), region("r"):
                pass
        assert {(s["step"], s["attrs"]["sample"]) for s in spans_of(session, "r")} == {(7, 1)}
        (line,) = [line for line in log if line["event"] == "call.refused"]
        assert line["what"] == "bind"
        assert line["reason"].startswith(reason)

    def test_steps_of_other_integer_types(self, session) -> None:
        """Integers of other types are bound as plain numbers. None does not change the step."""
        for step in (Integer(5), True, None):
            with profile_step(7), bind(step=step), region("r"):
                pass
        assert [s["step"] for s in spans_of(session, "r")] == [5, 1, 7]

    def test_across_awaits_and_tasks(self, session) -> None:
        """Each task has its own attributes, and a task that it creates inherits them."""

        async def child():
            await asyncio.sleep(0)
            with region("child"):
                pass

        async def sample(number):
            async with bind(sample=number):
                await asyncio.sleep(0.001 * (number % 3))
                await asyncio.create_task(child())
                with region("own"):
                    await asyncio.sleep(0)

        async def main():
            await asyncio.gather(*(sample(number) for number in range(20)))
            with region("outside"):
                pass

        asyncio.run(main())
        spans = spans_of(session)
        for name in ("own", "child"):
            assert sorted(s["attrs"]["sample"] for s in spans if s["name"] == name) == list(range(20))
        assert ["attrs" in s for s in spans if s["name"] == "outside"] == [False]

    def test_left_in_any_order(self, session) -> None:
        """If bindings are left out of order, twice, or inside themselves, one that
        has ended never applies again.
        """
        one, two = bind(a=1), bind(b=2)
        one.__enter__()
        two.__enter__()
        one.__exit__(None, None, None)
        with region("two"):
            pass
        two.__exit__(None, None, None)
        two.__exit__(None, None, None)
        with region("none"):
            pass
        with one, one, region("one"):
            pass
        with region("none"):
            pass
        found = [(s["name"], s.get("attrs")) for s in spans_of(session)]
        assert found == [("two", {"a": 1, "b": 2}), ("none", None), ("one", {"a": 1}), ("none", None)]

    def test_a_window_around_or_within(self, session) -> None:
        """If a window and a `bind` overlap, each applies until its own end."""
        window = profile_step(3, role="actor")
        with bind(sample=1):
            window.start()
        with region("in the window"):
            pass
        with bind(sample=2):
            window.stop()
            with region("bound"):
                pass
        with region("neither"):
            pass
        found = {s["name"]: (s["step"], s.get("attrs")) for s in spans_of(session, kind="region")}
        assert found["in the window"] == (3, {"sample": 1})
        assert found["bound"][1] == {"sample": 2}
        assert found["neither"] == (None, None)

    def test_without_a_session_nothing_is_bound(self) -> None:
        """Without a session, entering and leaving a `bind` has no effect and raises no error."""
        with bind(sample=1) as bound:
            assert bound is not None
        asyncio.run(self.enter_async())

    @staticmethod
    async def enter_async() -> None:
        async with bind(sample=2):
            pass


class TestPoints:
    def test_marks_and_counters(self, session) -> None:
        """A mark has a time and attributes, and a counter has a value."""
        with profile_step(2):
            mark("weights_synced", version=3)
            counter("queue_length", 17)
            counter("loss", float("inf"))
        spans = {s["name"]: s for s in spans_of(session) if s["kind"] in {"mark", "counter"}}
        assert (spans["weights_synced"]["kind"], spans["weights_synced"]["dur"]) == ("mark", 0)
        assert spans["weights_synced"]["attrs"] == {"version": 3}
        assert (spans["queue_length"]["kind"], spans["queue_length"]["value"]) == ("counter", 17)
        assert spans["loss"]["value"] == "inf"
        assert {s["step"] for s in spans.values()} == {2}

    def test_names_and_values_of_any_type(self, session) -> None:
        """Names and values of other types become strings or the name of their type."""
        mark(Phase.ACTOR)
        mark([1, 2])  # type: ignore[arg-type]
        counter("c", Hostile())  # type: ignore[arg-type]
        mark("fine")
        spans = spans_of(session)
        assert [s["name"] for s in spans] == ["actor", "[1, 2]", "c", "fine"]
        assert spans[2]["value"] == "<Hostile>"

    def test_without_a_session_points_do_nothing(self) -> None:
        """Without a session, marks and counters do nothing."""
        mark("m")
        counter("c", 1)
        assert cell.recorder is None


@pytest.mark.usefixtures("faulty")
class TestInACapture:
    def test_synchronous_regions_are_marked(self, start) -> None:
        """A region in the captured step is a range of the backend, and regions of other steps are not."""
        session = start(steps="2")
        for step in (1, 2, 3):
            with profile_step(step), region(f"r{step}"):
                pass
        ended(session)
        assert control.marks == ["r2"]

    @pytest.mark.parametrize("where", ["enter", "exit"])
    def test_a_backend_that_fails_at_a_mark(self, start, log, where) -> None:
        """If the backend fails to mark a region, this is logged once. Bodies run once,
        and exceptions are passed on.
        """
        session = start(steps="2")
        ran = []
        if where == "enter":
            control.fail("mark", RuntimeError("no mark"), RuntimeError("no mark"))

        class BadMark:
            def __enter__(self):
                return self

            def __exit__(self, *args):
                raise RuntimeError("no end")

        with profile_step(2):
            if where == "exit":
                session.local.capturer.capture.backend.mark = lambda name: BadMark()
            for number in range(2):
                with region("r"):
                    ran.append(number)
            error = KeyError("mine")
            with pytest.raises(KeyError) as caught, region("r"):
                raise error
        assert caught.value is error
        assert ran == [0, 1]
        assert len(spans_of(session, "r")) == 3
        assert sum(line["event"] == "region.not_marked" for line in log) == 1

    def test_suspendable_regions_are_annotations(self, start) -> None:
        """Blocks in coroutines and generators are annotations, because they would break the
        nesting of a thread's stack.
        """
        session = start(steps="2")

        def numbers():
            with region("in a generator"):
                yield 1

        @contextlib.contextmanager
        def managed():
            with region("in a context manager"):
                yield

        async def coroutine():
            with region("in a coroutine"):
                await asyncio.sleep(0)

        async def bare():
            with region("without an event loop"):
                pass

        with profile_step(2):
            list(numbers())
            with managed():
                pass
            asyncio.run(coroutine())
            with pytest.raises(StopIteration):
                bare().send(None)
            with region("plain"):
                pass
        ended(session)
        assert control.marks == ["in a context manager", "plain"]
        names = {note.name for note in control.annotations[0] if note.kind == "region"}
        assert names == {"in a generator", "in a coroutine", "without an event loop"}

    def test_attributes_reach_the_artifact(self, start) -> None:
        """The backend gets the attributes of regions, marks and counters, with
        step, role and bound attributes.
        """
        session = start(steps="2")
        with profile_step(2, role="actor"), bind(sample=9):
            with region("r", batch=4, bad=Hostile()):
                pass
            mark("m")
            counter("c", 3)
        ended(session)
        notes = {note.name: note for note in control.annotations[0]}
        assert control.marks == ["r"]
        assert notes["r"].attributes == {
            "step": 2,
            "role": "actor",
            "sample": 9,
            "batch": 4,
            "bad": "<Hostile>",
        }
        assert notes["m"].attributes == {"step": 2, "role": "actor", "sample": 9}
        assert notes["c"].attributes["value"] == 3
