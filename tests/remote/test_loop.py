"""Where remote calls run, and the ways off it."""

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
        """A call that hangs must not keep the process from ending."""
        assert remote_loop() is remote_loop()
        thread = remote_loop().submit(where()).result(5)
        assert thread.daemon
        assert thread.name == "stepprof-remote"

    def test_a_coroutine_that_raises_system_exit_does_not_end_it(self):
        """A driver may call a library that does; the other engines still need the loop."""

        async def leaves():
            raise SystemExit(3)

        future = remote_loop().submit(leaves())
        with pytest.raises(SystemExit):
            future.result(5)
        assert remote_loop().submit(where()).result(5).name == "stepprof-remote"

    def test_a_process_with_a_hung_call_ends(self, run_script):
        """The interpreter joins the threads of executors, but none of ours."""
        script = """
            import time
            from stepprof.remote.loop import in_thread, remote_loop
            remote_loop().submit(in_thread(time.sleep, 600))
            time.sleep(0.2)
        """
        assert run_script(script, timeout=20).returncode == 0

    @pytest.mark.skipif(not hasattr(os, "fork"), reason="a system without fork has no forked child")
    def test_a_forked_child_makes_its_own(self, run_script):
        """The parent's thread does not exist in it."""
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
    """A hop to the loop that an engine lives on."""

    async def test_work_is_awaited_on_the_other_loop(self, other_loop):
        """On that loop's thread; the result comes back."""
        thread = await on_loop(other_loop, where)
        assert thread is not threading.current_thread()

    async def test_on_this_very_loop_it_is_just_awaited(self):
        """No hop, no deadlock."""
        assert await on_loop(asyncio.get_running_loop(), where) is threading.current_thread()

    async def test_a_loop_that_is_not_running_is_an_error(self):
        """The call would never be made."""
        loop = asyncio.new_event_loop()
        with pytest.raises(EngineFailure, match="not running") as failure:
            await on_loop(loop, where)
        assert failure.value.health == "unreachable"
        loop.close()
        with pytest.raises(EngineFailure, match="closed"):
            await on_loop(loop, where)

    async def test_an_exception_is_passed_on(self, other_loop):
        """The exception arrives as it was raised."""

        async def fails():
            raise KeyError("there")

        with pytest.raises(KeyError, match="there"):
            await on_loop(other_loop, fails)

    async def test_cancelling_the_waiter_does_not_cancel_the_call(self, other_loop):
        """A cancelled call of an engine would leave its state wrong."""
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
    """A blocking call on a thread of its own."""

    async def test_the_loop_goes_on_meanwhile(self):
        """It is awaited, not waited for."""
        began = time.monotonic()
        both = await asyncio.gather(in_thread(time.sleep, 1), in_thread(time.sleep, 1))
        assert both == [None, None]
        assert time.monotonic() - began < 1.9

    async def test_an_exception_is_passed_on(self):
        """The exception arrives as it was raised."""
        with pytest.raises(ValueError, match="invalid literal"):
            await in_thread(int, "x")

    async def test_cancelling_the_waiter_does_not_cancel_the_call(self):
        """It ends on its own, and its late result has no effect."""
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
