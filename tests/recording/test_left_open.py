"""Test which windows are closed because no code will close them: their task has ended, or their block was left without an exit. tests/real/integrations has the cells of a notebook."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from types import FrameType

import pytest
from faulty import ended

from stepprof import profile_step, state


@pytest.mark.usefixtures("faulty")
class TestTasks:
    @pytest.mark.parametrize("end", ["raises", "is cancelled", "returns"])
    async def test_a_task_that_ended_leaves_its_window(self, start, end: str) -> None:
        """If the task of a step has ended without a stop, the next start of the role in another task
        closes its window, and is captured itself.
        """
        session = start(steps="2-3")

        async def lost() -> None:
            await profile_step(2, role="actor").astart()
            if end == "raises":
                raise ValueError
            if end == "is cancelled":
                raise asyncio.CancelledError

        async def whole() -> None:
            window = await profile_step(3, role="actor").astart()
            await window.astop()

        await asyncio.wait([asyncio.create_task(lost())])
        await asyncio.create_task(whole())
        assert [(w["step"], w["status"]) for w in ended(session)] == [(2, "partial"), (3, "complete")]

    @pytest.mark.parametrize("role", ["ref", None])
    async def test_a_failed_task_and_a_block(self, start, role: str | None) -> None:
        """If the task has failed, the next window closes it, also a block of another role: no code is left that stops it."""
        session = start(steps="2-3")

        async def lost() -> None:
            profile_step(2, role="actor").start()
            raise ValueError

        await asyncio.wait([asyncio.create_task(lost())])
        async with profile_step(3, role):
            pass
        found = ended(session)
        assert [(w["step"], w["status"]) for w in found] == [(2, "partial"), (3, "complete")]
        assert found[0]["error"] == "the window was left open, and the task or cell that opened it failed"

    async def test_a_task_that_returned_may_be_stopped_by_another(self, start) -> None:
        """A window that one task starts and another one stops is complete, also with windows of other roles inside."""
        session = start(steps="2")
        window = profile_step(2)
        await asyncio.create_task(window.astart())
        async with profile_step(2, role="actor"):
            pass
        profile_step(2, role="ref").start().stop()
        await asyncio.create_task(window.astop())
        assert [w["status"] for w in ended(session)] == ["complete", "joined", "joined"]

    async def test_the_exception_of_a_task_is_still_reported(self, start) -> None:
        """asyncio reports the exception of a task that no code has looked at, as without stepprof."""
        start(steps="2-3")
        reported: list[dict[str, object]] = []
        asyncio.get_running_loop().set_exception_handler(lambda loop, context: reported.append(context))

        async def lost() -> None:
            profile_step(2).start()
            raise ValueError

        task = asyncio.create_task(lost())
        await asyncio.wait([task])
        with profile_step(3):
            pass
        del task
        assert [str(each["message"]) for each in reported] == ["Task exception was never retrieved"]


class Interrupt(BaseException):
    """An exception that arrives at any time, such as KeyboardInterrupt."""


def interrupted(act: Callable[[], object], name: str = "__exit__") -> None:
    """Run the function, and raise at the first instruction of the first method of a window with this name."""

    def look(frame: FrameType, event: str, argument: object) -> None:
        if event == "call" and frame.f_code.co_name == name and frame.f_code.co_filename.endswith("step.py"):
            sys.settrace(None)
            raise Interrupt

    before = sys.gettrace()
    sys.settrace(look)
    try:
        with pytest.raises(Interrupt):
            act()
    finally:
        sys.settrace(before)


def step(number: int, role: str | None = "actor") -> None:
    """Run one step as a block."""
    with profile_step(number, role):
        pass


@pytest.mark.usefixtures("faulty")
class TestBlocks:
    """An exception at the first instruction of the exit of a block."""

    @pytest.mark.parametrize(
        "act",
        [step, profile_step("number", "actor")(lambda number: None), lambda number: step(number, None)],
        ids=["block", "decorated", "another-role"],
    )
    def test_the_next_window_closes_it(self, start, act: Callable[[int], object]) -> None:
        """Its function has ended, so the next window closes it, and is captured itself. No later window joins it."""
        session = start(steps="2-3")
        interrupted(lambda: act(2))
        assert state().status == "recording"
        step(3)
        step(4)
        assert [(w["step"], w["status"]) for w in ended(session)] == [(2, "partial"), (3, "complete")]

    def test_in_a_loop(self, start) -> None:
        """The block is entered anew in the same function."""
        session = start(steps="2-3")

        def loop() -> None:
            for number in (2, 3, 4):
                try:
                    with profile_step(number):
                        pass
                except Interrupt:
                    pass
            raise Interrupt

        interrupted(loop)
        assert [(w["step"], w["status"]) for w in ended(session)] == [(2, "partial"), (3, "complete")]

    def test_a_window_of_start_is_closed_by_the_next_one(self, start) -> None:
        """An interrupt in the stop of a window leaves it to the next start of its role."""
        session = start(steps="2-3")
        window = profile_step(2).start()
        interrupted(window.stop)
        profile_step(3).start().stop()
        assert [(w["step"], w["status"]) for w in ended(session)] == [(2, "partial"), (3, "complete")]

    @pytest.mark.parametrize("kind", ["generator", "stack", "recursion", "two"])
    def test_an_open_block_stays_open(self, start, kind: str) -> None:
        """Windows inside it join: also if a generator is suspended in it, or a stack of contexts holds it."""
        session = start(steps="2")

        def suspended() -> Iterator[None]:
            with profile_step(2):
                yield

        def recursive(depth: int) -> None:
            with profile_step(2, f"role{depth}"):
                if depth:
                    recursive(depth - 1)

        if kind == "generator":
            generator = suspended()
            next(generator)
            step(2)
            assert list(generator) == []
        elif kind == "stack":
            with ExitStack() as stack:
                stack.enter_context(profile_step(2))
                step(2)
        elif kind == "recursion":
            recursive(1)
        else:
            with profile_step(2), profile_step(2, "actor"):
                pass
        assert sorted(w["status"] for w in ended(session)) == ["complete", "joined"]
