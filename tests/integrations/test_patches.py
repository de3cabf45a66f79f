"""Patches of functions of every kind, of blocks, and of the results of functions."""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import pickle

import pytest

from stepprof.integrations.patches import Patches
from stepprof.integrations.timer_switch import timers

CALLS: list[object] = []


class Worker:
    """A class of a framework."""

    def update(self, batch):
        CALLS.append(("update", batch))
        return batch + 1

    async def sync(self, step):
        await asyncio.sleep(0)
        CALLS.append("synced")
        return step

    @classmethod
    def make(cls, value):
        return cls, value

    @staticmethod
    def double(value):
        return 2 * value


def timer(name):
    """Do work inside a generator."""
    CALLS.append(f"{name} begins")
    yield name
    CALLS.append(f"{name} ends")
    return "last"


@contextlib.contextmanager
def block(name):
    """Do work inside a block."""
    CALLS.append(f"{name} begins")
    try:
        yield name
    finally:
        CALLS.append(f"{name} ends")


class Lock:
    """A synchronous and asynchronous context manager; its synchronous enter raises."""

    def __enter__(self):
        raise RuntimeError("it is held")

    __exit__ = None

    async def __aenter__(self):
        return self

    async def __aexit__(self, *_):
        await asyncio.sleep(0)
        CALLS.append("released")


def lock():
    """Return a context manager that is not made from a generator."""
    return Lock()


def environment():
    """Return the environment of another process."""
    return {"A": "1"}


@pytest.fixture
def patches():
    """Return patches that are undone afterwards."""
    CALLS.clear()
    made = Patches("test")
    yield made
    made.undo()


def around(patches, name):
    """Patch a name of this module so that each call is recorded in CALLS."""
    patches.around(
        f"{__name__}:{name}",
        lambda instance, args, kwargs: CALLS.append(("before", type(instance).__name__, args, kwargs)) or "token",
        lambda token, error: CALLS.append((token, error)),
    )  # fmt: skip


class TestAround:
    def test_a_method_is_passed_its_instance_separately(self, patches) -> None:
        """The patch gets the instance of a method separately from its arguments."""
        around(patches, "Worker.update")
        assert Worker().update(batch=1) == 2
        assert CALLS == [("before", "Worker", (), {"batch": 1}), ("update", 1), ("token", None)]

    def test_a_coroutine_function_stays_one(self, patches) -> None:
        """A patched coroutine function is still one, because Ray checks that. The patch ends when the
        coroutine ends.
        """
        around(patches, "Worker.sync")
        assert inspect.iscoroutinefunction(Worker.sync)
        assert asyncio.run(Worker().sync(3)) == 3
        assert CALLS == [("before", "Worker", (3,), {}), "synced", ("token", None)]

    def test_a_generator_function_stays_one(self, patches) -> None:
        """A patched generator function is still one and keeps its return value. The patch covers it from
        its first value to its end.
        """
        around(patches, "timer")
        assert inspect.isgeneratorfunction(timer)

        def body():
            CALLS.append((yield from timer("gen")))

        assert list(body()) == ["gen"]
        assert CALLS == [
            ("before", "NoneType", ("gen",), {}),
            "gen begins",
            "gen ends",
            ("token", None),
            "last",
        ]

    def test_an_error_inside_a_generator(self, patches) -> None:
        """An exception that is thrown into the generator is raised by it, and the patch gets it."""
        around(patches, "timer")
        running = timer("gen")
        next(running)
        error = RuntimeError("the block failed")
        with pytest.raises(RuntimeError, match="the block failed"):
            running.throw(error)
        assert CALLS[-1] == ("token", error)

    def test_methods_of_a_class(self, patches) -> None:
        """Patched class methods and static methods keep their kind."""
        around(patches, "Worker.make")
        around(patches, "Worker.double")
        assert Worker.make(1) == (Worker, 1)
        assert Worker().double(2) == 4

    def test_pickling_finds_the_patch_by_its_name(self, patches) -> None:
        """A patched method is pickled by name. Pickled by value, it would contain the globals of its
        module.
        """
        around(patches, "Worker.update")
        assert pickle.loads(pickle.dumps(Worker.update)) is Worker.update

    def test_undoing_restores_the_original_functions(self, patches) -> None:
        """After `undo` the class has its original functions."""
        before = dict(vars(Worker))
        around(patches, "Worker.make")
        around(patches, "Worker.update")
        assert dict(vars(Worker)) != before
        patches.undo()
        assert dict(vars(Worker)) == before


def blocks(patches, name):
    """Patch a function of this module so that its blocks are recorded in CALLS."""
    patches.block(
        f"{__name__}:{name}",
        lambda instance, args, kwargs: CALLS.append(("before", args, kwargs)) or "token",
        lambda token, error: CALLS.append((token, error)),
    )


class TestBlock:
    def test_a_block_is_measured_while_open(self, patches) -> None:
        """The patch begins when the block is entered, not when it is made. The body gets the framework's
        value.
        """
        blocks(patches, "block")
        made = block("gen")
        assert CALLS == []
        with made as name:
            CALLS.append(name)
        assert CALLS == [("before", ("gen",), {}), "gen begins", "gen", "gen ends", ("token", None)]

    def test_an_error_passes_through_the_block(self, patches) -> None:
        """An exception of the body passes through the framework's context manager, and the patch gets it."""
        blocks(patches, "block")
        error = RuntimeError("the block failed")
        with pytest.raises(RuntimeError, match="the block failed"), block("gen"):
            raise error
        assert CALLS[-2:] == ["gen ends", ("token", error)]

    def test_a_block_that_cannot_be_entered_is_ended(self, patches) -> None:
        """If the framework's block cannot be entered, the patch ends with the same exception."""
        blocks(patches, "lock")
        with pytest.raises(RuntimeError, match="it is held") as raised, lock():
            pass
        assert [("before", (), {}), ("token", raised.value)] == CALLS

    def test_an_async_block_is_measured_until_its_exit_is_awaited(self, patches) -> None:
        """The patch of an asynchronous block ends after the block's exit."""
        blocks(patches, "lock")

        async def body():
            async with lock() as entered:
                assert isinstance(entered, Lock)

        asyncio.run(body())
        assert CALLS == [("before", (), {}), "released", ("token", None)]

    def test_unrecorded_steps_call_the_original_only(self, patches, monkeypatch) -> None:
        """If no timer is needed, the caller gets the framework's own block, and no hook is called."""
        monkeypatch.setattr(timers, "busy", 0)
        patches.block(f"{__name__}:lock", lambda *_: 1 / 0, lambda *_: None, timer=True)
        assert type(lock()) is Lock


class Clock:
    """A timer of a framework that is a block."""

    def __enter__(self):
        CALLS.append("enter")
        return self

    def __exit__(self, kind, error, traceback):
        CALLS.append(("exit", kind))


class TestTimerBlocks:
    """The enter and exit of a timer's block are patched without an additional frame."""

    @pytest.fixture
    def seen(self, patches):
        """Patch the enter and the exit; return the list of what the hooks get."""
        found: list[object] = []
        patches.around(f"{__name__}:Clock.__enter__", lambda *given: found.append(given), timer=True)
        patches.around(f"{__name__}:Clock.__exit__", lambda *given: found.append(given[1]), timer=True)
        return found

    def test_both_are_seen(self, seen) -> None:
        """The hooks get the block and the exception, and the original methods are called."""
        clock = Clock()
        with pytest.raises(KeyError), clock as entered:
            raise KeyError
        assert entered is clock
        assert seen[0] == (clock, (), {})
        assert seen[1][0] is KeyError
        assert ["enter", ("exit", KeyError)] == CALLS

    def test_unrecorded_steps_call_the_original_only(self, seen, monkeypatch) -> None:
        """If no timer is needed, only the original methods are called."""
        monkeypatch.setattr(timers, "busy", 0)
        with Clock():
            pass
        assert (len(seen), len(CALLS)) == (0, 2)

    def test_a_patch_that_fails(self, patches, log) -> None:
        """A hook that raises is logged once and not called again. The original methods run each time."""
        tried = []

        def fail(*_):
            tried.append(1)
            raise RuntimeError

        for method in ("enter", "exit"):
            patches.around(f"{__name__}:Clock.__{method}__", fail, timer=True)
        for _ in range(3):
            with Clock():
                pass
        assert (len(tried), len(CALLS)) == (2, 6)
        assert [line["target"].rpartition(".")[2] for line in log if line["event"] == "adapter.failed"] == [
            "__enter__",
            "__exit__",
        ]

    def test_an_undone_patch_below_another_does_nothing(self, seen, patches) -> None:
        """If another patch still holds an undone patch, the undone one calls no hook."""
        below = Clock.__enter__
        patches.undo()
        below(Clock())
        assert seen == []


class TestResult:
    def test_the_caller_gets_the_changed_result(self, patches) -> None:
        """The caller gets the result that the patch has changed."""
        patches.result(f"{__name__}:environment", lambda result, args, kwargs: {**result, "B": "2"})
        assert environment() == {"A": "1", "B": "2"}

    def test_a_change_that_fails(self, patches) -> None:
        """If the patch raises, the caller gets the original result, now and later."""
        patches.result(f"{__name__}:environment", lambda *_: 1 / 0)
        assert environment() == environment() == {"A": "1"}

    def test_the_result_of_a_coroutine_is_changed(self, patches) -> None:
        """For a coroutine function, the patch changes the result that the coroutine returns."""
        patches.result(f"{__name__}:Worker.sync", lambda result, args, kwargs: (result, args))
        assert inspect.iscoroutinefunction(Worker.sync)
        assert asyncio.run(Worker().sync(3)) == (3, (3,))
