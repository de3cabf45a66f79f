"""Test which windows of `start` are closed because their task has ended. tests/real/integrations has the cells of a notebook."""

from __future__ import annotations

import asyncio

import pytest
from faulty import ended

from stepprof import profile_step


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
