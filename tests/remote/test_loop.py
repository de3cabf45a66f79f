"""The event loop of this process for remote calls, and calls to other loops and threads."""

from __future__ import annotations

import asyncio
import os
import threading
import time

import pytest

from stepprof.remote.base import EngineFailure
from stepprof.remote.loop import in_thread, on_loop, remote_loop


async def where():
    return threading.current_thread()


class TestRemoteLoop:
    """The loop of this process."""

    def test_there_is_one_loop_on_a_daemon_thread(self):
        """The process has one loop, on a daemon thread, so that a hung call does not keep the process from
        ending.
        """
        assert remote_loop() is remote_loop()
        thread = remote_loop().submit(where()).result(5)
        assert thread.daemon
        assert thread.name == "stepprof-remote"

    def test_a_coroutine_that_raises_system_exit_does_not_end_it(self):
        """A coroutine that raises SystemExit does not end the loop, which the other engines still need."""

        async def leaves():
            raise SystemExit(3)

        future = remote_loop().submit(leaves())
        with pytest.raises(SystemExit):
            future.result(5)
        assert remote_loop().submit(where()).result(5).name == "stepprof-remote"

    def test_a_process_with_a_hung_call_ends(self, run_script):
        """The process ends although a call in a thread of stepprof hangs for 600 s."""
        script = """
            import time
            from stepprof.remote.loop import in_thread, remote_loop
            remote_loop().submit(in_thread(time.sleep, 600))
            time.sleep(0.2)
        """
        assert run_script(script).returncode == 0

    @pytest.mark.skipif(not hasattr(os, "fork"), reason="a system without fork has no forked child")
    def test_a_forked_child_makes_its_own(self, run_script):
        """A forked child makes its own loop, because the parent's thread does not exist in the child."""
        script = """
            import os, warnings
            from stepprof.remote.loop import in_thread, remote_loop
            warnings.simplefilter("ignore")
            remote_loop().submit(in_thread(int, "1")).result(5)
            child = os.fork()
            if child == 0:
                os._exit(remote_loop().submit(in_thread(int, "7")).result(5))
            assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
        """
        run_script(script).check()


class TestOnLoop:
    """Calls on the loop that an engine lives on."""

    async def test_work_is_awaited_on_the_other_loop(self, other_loop):
        """The call runs on the other loop's thread, and its result is returned."""
        thread = await on_loop(other_loop, where)
        assert thread is not threading.current_thread()

    async def test_on_this_very_loop_it_is_just_awaited(self):
        """A call on the current loop is awaited directly, without a deadlock."""
        assert await on_loop(asyncio.get_running_loop(), where) is threading.current_thread()

    async def test_a_loop_that_is_not_running_is_an_error(self):
        """A loop that does not run, or is closed, would never make the call, so EngineFailure is raised."""
        loop = asyncio.new_event_loop()
        with pytest.raises(EngineFailure, match="not running") as failure:
            await on_loop(loop, where)
        assert failure.value.health == "unreachable"
        loop.close()
        with pytest.raises(EngineFailure, match="closed"):
            await on_loop(loop, where)

    async def test_an_exception_is_passed_on(self, other_loop):
        """An exception on the other loop is raised unchanged in the caller."""

        async def fails():
            raise KeyError("there")

        with pytest.raises(KeyError, match="there"):
            await on_loop(other_loop, fails)

    async def test_cancelling_the_waiter_does_not_cancel_the_call(self, other_loop):
        """If the waiter is cancelled, the call continues, because a cancelled call would leave an engine
        in a wrong state.
        """
        done = threading.Event()

        async def slow():
            await asyncio.sleep(0.1)
            done.set()

        waiting = asyncio.ensure_future(on_loop(other_loop, slow))
        await asyncio.sleep(0.02)
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        assert done.wait(5)


class TestInThread:
    """Blocking calls, each on its own thread."""

    async def test_the_loop_goes_on_meanwhile(self):
        """The loop is not blocked: two calls of one second run at the same time."""
        began = time.monotonic()
        both = await asyncio.gather(in_thread(time.sleep, 1), in_thread(time.sleep, 1))
        assert both == [None, None]
        assert time.monotonic() - began < 1.9

    async def test_an_exception_is_passed_on(self):
        """An exception in the thread is raised unchanged in the caller."""
        with pytest.raises(ValueError, match="invalid literal"):
            await in_thread(int, "x")

    async def test_cancelling_the_waiter_does_not_cancel_the_call(self):
        """If the waiter is cancelled, the call runs to its end, and its late result is ignored."""
        done = threading.Event()

        def slow():
            time.sleep(0.1)
            done.set()

        waiting = asyncio.ensure_future(in_thread(slow))
        await asyncio.sleep(0.02)
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        assert done.wait(5)
        await asyncio.sleep(0.02)
