"""Which exceptions are the job's, although they appear inside a call of stepprof."""

from __future__ import annotations

import asyncio
import functools
import os
import signal
from queue import SimpleQueue
from types import FunctionType

import isal.igzip
import msgspec
import numpy
import pytest

from stepprof.interrupts import ignored, is_interrupt, is_of_job, ours


class TimedOut(Exception):
    """The time-out of a job."""


def time_out(number, frame) -> None:
    raise TimeoutError


class Watchdog:
    """A time-out as an object."""

    def __call__(self, *arguments) -> None:
        raise TimedOut("too slow")

    def method(self, number, frame) -> None:
        raise OSError("too slow")


def raised_in(handler) -> BaseException:
    """Return the exception of a signal handler that interrupts this function."""
    before = signal.signal(signal.SIGUSR1, handler)
    try:
        os.kill(os.getpid(), signal.SIGUSR1)
        for _ in range(100_000):
            pass
    except Exception as error:  # noqa: BLE001 - any class
        return error
    finally:
        signal.signal(signal.SIGUSR1, before)
    raise AssertionError("the handler did not raise")


def caught(error: Exception) -> bool:
    """Raise an exception, and return True if it is caught."""
    try:
        raise error
    except ours(OSError, ValueError):
        return True


class TestIsOfJob:
    @pytest.mark.parametrize(
        "handler", [time_out, Watchdog(), Watchdog().method, functools.partial(time_out), lambda *_: 1 / 0]
    )
    def test_an_exception_of_a_signal_handler_is_the_jobs(self, handler) -> None:
        """A function, a bound method, an object or a partial function may handle the signal."""
        assert is_of_job(raised_in(handler))

    def test_a_failure_is_not_the_jobs(self) -> None:
        """An exception that a call raises, and one that was never raised, are not the job's."""

        def fail() -> None:
            raise TimedOut

        with pytest.raises(TimedOut) as raised:
            fail()
        assert not is_of_job(raised.value)
        assert not is_of_job(TimedOut())
        with pytest.raises(FileNotFoundError) as missing:
            os.stat("/nowhere")  # noqa: PTH116 - an exception of C code
        assert not is_of_job(missing.value)

    @pytest.mark.parametrize(
        "call",
        [
            lambda: msgspec.json.decode(b"{"),
            lambda: isal.igzip.decompress(b"no gzip file"),
            lambda: numpy.linalg.inv(numpy.zeros((2, 2))),
            lambda: SimpleQueue().get_nowait(),
        ],
    )
    def test_what_C_code_of_a_library_raises_is_not_the_jobs(self, call) -> None:  # noqa: N802
        """C code raises in the frame of its caller, where a sent exception would be too."""
        ours = FunctionType(call.__code__, {**globals(), "__name__": "stepprof.instrument"})
        with pytest.raises(Exception) as raised:  # noqa: PT011 - any class
            ours()
        assert not is_of_job(raised.value)

    @pytest.mark.parametrize("error", [TimedOut("x"), OSError(), asyncio.TimeoutError()])
    @pytest.mark.parametrize("done", [True, False])
    def test_the_failure_of_what_is_awaited_is_not_the_jobs(self, error: Exception, done: bool) -> None:
        """A future raises an exception that has no frame, for example one that has come from another process."""

        async def await_it() -> BaseException | None:
            loop = asyncio.get_running_loop()
            future = loop.create_future()
            if done:
                future.set_exception(error)
            else:
                loop.call_later(0.01, future.set_exception, error)
            try:
                await future
            except Exception as raised:  # noqa: BLE001 - any class
                return raised
            return None

        ours = FunctionType(
            await_it.__code__, {**globals(), "__name__": "stepprof.remote"}, None, None, await_it.__closure__
        )
        raised = asyncio.run(ours())
        assert raised is not None
        assert not is_of_job(raised)

    def test_an_exception_of_cython_is_not_the_jobs(self) -> None:
        """The frame of a Cython function has no instructions."""
        with pytest.raises(ValueError, match="sum to 1") as raised:
            numpy.random.default_rng(0).choice(2, p=[1.0, 1.0])
        assert not is_of_job(raised.value)

    def test_an_interrupt_must_reach_the_job(self) -> None:
        """KeyboardInterrupt and a time-out are interrupts."""
        assert is_interrupt(KeyboardInterrupt())
        assert is_interrupt(raised_in(time_out))
        assert not is_interrupt(OSError())


class TestOurs:
    def test_a_failure_is_caught(self) -> None:
        """Only the given classes are."""
        assert caught(ValueError("x"))
        with pytest.raises(KeyError):
            caught(KeyError("x"))

    def test_the_jobs_exception_passes(self) -> None:
        """It passes although it has the class that is caught."""
        with pytest.raises(TimeoutError):
            caught(raised_in(time_out))


class TestIgnored:
    def test_only_a_failure_is_ignored(self) -> None:
        """The job's exception passes."""
        with ignored(OSError):
            raise OSError("no space left")
        with pytest.raises(TimeoutError), ignored(OSError):
            raise raised_in(time_out)
