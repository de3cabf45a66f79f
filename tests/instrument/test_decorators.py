"""Decorated functions keep their behaviour, run once, and are measured from start to end."""

from __future__ import annotations

import abc
import asyncio
import functools
import inspect
import itertools
import pickle
import textwrap
import types

import cloudpickle
import pytest
from faulty import ended
from spanning import only, spans_of

import stepprof
from stepprof import profile_step, region
from stepprof.instrument.context import cell
from stepprof.run.outermost_spans import Outermost


@region("module_level")
def module_level(x, *, y=1):
    """Add."""
    return x + y


@pytest.fixture
def session(start):
    return start(backend="null")


@pytest.fixture(params=["off", "on"])
def either(request, start):
    """Run a test without a session and with one: the results must be the same."""
    return start(backend="null", steps="5") if request.param == "on" else None


DECORATORS = pytest.mark.parametrize(
    "decorate",
    [region, region("named", batch=4), profile_step(5, role="actor")],
    ids=["bare", "named", "step"],
)


@pytest.mark.usefixtures("either")
@DECORATORS
class TestSameFunction:
    def test_a_function(self, decorate) -> None:
        """A decorated function has the arguments, result, name, docstring and signature of the original."""

        def f(a: int, /, b: str = "x", *c: int, d: float, **e: bool) -> list:
            """Doc."""
            return [a, b, c, d, e]

        g = decorate(f)
        assert g(1, "y", 2, 3, d=4.0, z=True) == [1, "y", (2, 3), 4.0, {"z": True}]
        assert (g.__name__, g.__qualname__, g.__doc__, g.__module__) == (
            f.__name__,
            f.__qualname__,
            f.__doc__,
            f.__module__,
        )
        assert inspect.signature(g) == inspect.signature(f)
        assert g.__wrapped__ is f
        assert inspect.isfunction(g)
        for is_kind in (inspect.iscoroutinefunction, inspect.isgeneratorfunction, inspect.isasyncgenfunction):
            assert not is_kind(g)

    def test_an_exception(self, decorate) -> None:
        """The caller gets the same exception object, and the function ran once."""
        ran = []
        error = KeyError("mine")

        @decorate
        def f():
            ran.append(1)
            raise error

        with pytest.raises(KeyError) as caught:
            f()
        assert caught.value is error
        assert error.__context__ is None
        assert ran == [1]

    def test_wrong_arguments(self, decorate) -> None:
        """A call with wrong arguments raises the function's own TypeError."""

        @decorate
        def f(a):
            return a

        with pytest.raises(TypeError, match=r"f\(\) missing 1 required positional argument"):
            f()

    def test_a_coroutine_function(self, decorate) -> None:
        """A decorated coroutine function stays one, and returns or raises as before."""

        @decorate
        async def f(x):
            await asyncio.sleep(0)
            if x < 0:
                raise ValueError(x)
            return x + 1

        assert inspect.iscoroutinefunction(f)
        assert asyncio.run(f(1)) == 2
        with pytest.raises(ValueError, match="-1"):
            asyncio.run(f(-1))

    def test_a_cancelled_coroutine_may_clean_up(self, decorate) -> None:
        """A cancelled coroutine gets the cancellation at its await, and can clean up."""
        cleaned = []

        @decorate
        async def f():
            try:
                await asyncio.sleep(60)
            finally:
                await asyncio.sleep(0)
                cleaned.append(True)

        async def main():
            task = asyncio.create_task(f())
            await asyncio.sleep(0.01)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task

        asyncio.run(main())
        assert cleaned == [True]

    def test_a_generator(self, decorate) -> None:
        """A decorated generator gets `send`, `throw` and `close`, and its return value is passed on."""
        seen = []

        @decorate
        def f(n):
            try:
                for number in range(n):
                    try:
                        seen.append((yield number))
                    except KeyError:
                        seen.append("thrown")
            finally:
                seen.append("closed")
            return "result"

        assert inspect.isgeneratorfunction(f)
        g = f(3)
        assert inspect.isgenerator(g)
        assert next(g) == 0
        assert g.send("sent") == 1
        assert g.throw(KeyError) == 2
        with pytest.raises(StopIteration) as stop:
            next(g)
        assert stop.value.value == "result"
        h = f(3)
        next(h)
        h.close()
        assert seen == ["sent", "thrown", None, "closed", "closed"]
        assert list(f(2)) == [0, 1]

    def test_a_generator_that_raises(self, decorate) -> None:
        """The caller that iterates gets the same exception object."""
        error = OSError("mine")

        @decorate
        def f():
            yield 1
            raise error

        with pytest.raises(OSError, match="mine") as caught:
            list(f())
        assert caught.value is error

    def test_an_async_generator(self, decorate) -> None:
        """A decorated async generator gets `asend`, `athrow` and `aclose`."""
        seen = []

        @decorate
        async def f(n):
            try:
                for number in range(n):
                    await asyncio.sleep(0)
                    try:
                        seen.append((yield number))
                    except KeyError:
                        seen.append("thrown")
            finally:
                await asyncio.sleep(0)
                seen.append("closed")

        async def main():
            g = f(3)
            assert inspect.isasyncgen(g)
            assert await anext(g) == 0
            assert await g.asend("sent") == 1
            assert await g.athrow(KeyError) == 2
            with pytest.raises(StopAsyncIteration):
                await anext(g)
            h = f(3)
            await anext(h)
            await h.aclose()
            return [number async for number in f(2)]

        assert inspect.isasyncgenfunction(f)
        assert asyncio.run(main()) == [0, 1]
        assert seen == ["sent", "thrown", None, "closed", "closed", None, None, "closed"]

    def test_an_async_generator_that_raises(self, decorate) -> None:
        """The caller gets the same exception object. A generator that does not
        close raises Python's own error.
        """
        error = OSError("mine")

        @decorate
        async def f(stubborn):
            try:
                yield 1
            except GeneratorExit:
                if stubborn:
                    yield 2
                raise
            raise error

        async def main():
            with pytest.raises(OSError, match="mine") as caught:
                async for _ in f(False):
                    pass
            assert caught.value is error
            g = f(True)
            await anext(g)
            with pytest.raises(RuntimeError, match="async generator ignored GeneratorExit"):
                await g.aclose()

        asyncio.run(main())

    def test_a_generator_based_coroutine(self, decorate) -> None:
        """A function that `types.coroutine` has made awaitable stays awaitable."""

        @decorate
        @types.coroutine
        def f():
            return (yield from asyncio.sleep(0, "slept").__await__())

        async def main():
            return await f()

        assert asyncio.run(main()) == "slept"

    def test_methods(self, decorate) -> None:
        """Methods, static and class methods and properties are bound as before, with
        the decorator above or below.
        """

        class Worker:
            @decorate
            def method(self, x):
                return self, x

            @decorate
            @staticmethod
            def static_below(x):
                return x

            @staticmethod
            @decorate
            def static_above(x):
                return x

            @decorate
            @classmethod
            def class_below(cls, x):
                return cls, x

            @classmethod
            @decorate
            def class_above(cls, x):
                return cls, x

            @property
            @decorate
            def value(self):
                return 7

            @decorate
            async def coroutine(self, x):
                return self, x

        class Child(Worker):
            def method(self, x):
                return super().method(x + 1)

        worker = Child()
        assert worker.method(1) == (worker, 2)
        assert Worker.static_below(1) == worker.static_above(1) == 1
        assert Child.class_below(1) == worker.class_above(1) == (Child, 1)
        assert worker.value == 7
        assert asyncio.run(worker.coroutine(1)) == (worker, 1)
        assert isinstance(inspect.getattr_static(Worker, "static_below"), staticmethod)
        assert isinstance(inspect.getattr_static(Worker, "class_below"), classmethod)

    def test_attributes_of_the_function_are_kept(self, decorate) -> None:
        """Attributes, abstract methods, partial functions and builtins are kept."""

        class Base(abc.ABC):
            @decorate
            @abc.abstractmethod
            def f(self):
                """Do it."""

        with pytest.raises(TypeError, match="abstract"):
            Base()

        def g(x, y):
            return x, y

        g.num_returns = 2  # type: ignore[attr-defined]
        assert decorate(g).num_returns == 2
        assert decorate(functools.partial(g, 1))(2) == (1, 2)
        assert decorate(len)([1]) == 1

    def test_objects_that_can_be_called(self, decorate) -> None:
        """An object with a synchronous or asynchronous `__call__` can be decorated."""

        class Sync:
            def __call__(self, x):
                return x

        class Async:
            async def __call__(self, x):
                await asyncio.sleep(0)
                return x

        assert decorate(Sync())(1) == 1
        assert asyncio.run(decorate(Async())(2)) == 2
        assert asyncio.run(decorate(Async().__call__)(3)) == 3


class TestRealLife:
    def test_the_qualified_name_is_the_default(self, session) -> None:
        """A decorator without a name uses the qualified name of the function."""

        class Worker:
            @region
            def update(self):
                pass

            @region
            @staticmethod
            def static():
                pass

        Worker().update()
        Worker.static()
        names = [span["name"].rpartition(".<locals>.")[2] for span in spans_of(session)]
        assert names == ["Worker.update", "Worker.static"]

    @pytest.mark.parametrize("kind", ["coroutine", "generator", "async generator"])
    def test_coroutines_and_generators_last_until_their_end(self, session, kind) -> None:
        """The span of a coroutine or generator lasts from its start to its end, not from its creation."""

        @region("coroutine")
        async def coroutine():
            await asyncio.sleep(0.02)

        @region("generator")
        def generator():
            yield 1
            yield 2

        @region("async generator")
        async def async_generator():
            yield 1
            await asyncio.sleep(0.01)
            yield 2

        async def main():
            made = {
                "coroutine": coroutine,
                "generator": generator,
                "async generator": async_generator,
            }[kind]()
            await asyncio.sleep(0.2)  # created, not started
            if kind == "coroutine":
                await made
            elif kind == "generator":
                for _ in made:
                    await asyncio.sleep(0.01)
            else:
                async for _ in made:
                    await asyncio.sleep(0.005)

        asyncio.run(main())
        span = only(session, kind)
        assert 18_000_000 <= span["dur"] < 180_000_000
        assert "error" not in span

    def test_errors_are_flagged(self, session) -> None:
        """The span of a function that raises or is cancelled has the error flag. A
        generator that is closed has none.
        """

        @region("raised")
        def raised():
            raise KeyError

        @region("closed")
        def closed():
            yield 1

        @region("thrown")
        def thrown():
            yield 1

        @region("cancelled")
        async def cancelled():
            await asyncio.sleep(60)

        @region("aclosed")
        async def aclosed():
            yield 1

        async def main():
            task = asyncio.create_task(cancelled())
            await asyncio.sleep(0)
            task.cancel()
            await asyncio.wait([task])
            g = aclosed()
            await anext(g)
            await g.aclose()

        with pytest.raises(KeyError):
            raised()
        g = closed()
        next(g)
        g.close()
        g = thrown()
        next(g)
        with pytest.raises(KeyError):
            g.throw(KeyError)
        asyncio.run(main())
        flags = {span["name"]: span.get("error", False) for span in spans_of(session)}
        assert flags == {
            "raised": True,
            "closed": False,
            "thrown": True,
            "cancelled": True,
            "aclosed": False,
        }

    def test_generators_that_interleave(self, session) -> None:
        """If two generators overlap, each span lasts until its own generator ends."""

        @region("g")
        def g():
            yield
            yield

        first, second = g(), g()
        next(first)
        next(second)
        list(first)
        list(second)
        a, b = spans_of(session, "g")
        assert a["start"] <= b["start"] < a["start"] + a["dur"] <= b["start"] + b["dur"]

    def test_generators_inside_each_other_in_time(self, session) -> None:
        """Generators that are advanced in turn are calls of their own, also if the last one ends first. What a
        generator calls itself is a recursion.
        """

        @region("g")
        def g(depth: int):
            yield
            if depth:
                yield from g(depth - 1)

        opened = [g(2) for _ in range(3)]
        for each in opened:
            next(each)
        for each in reversed(opened):
            list(each)
        list(g(1))
        opened[0] = g(0)
        next(opened[0])
        opened[0].close()
        outermost = Outermost()
        for span in sorted(spans_of(session, "g"), key=lambda span: span["start"] + span["dur"]):
            outermost.add(span)
        assert len(spans_of(session, "g")) == 3 * 3 + 2 + 1
        assert len(outermost.seconds_of_each) == 3 + 1 + 1

    def test_a_recursive_function(self, session) -> None:
        """Each recursive call has a span inside that of its caller."""

        @region("fact")
        def fact(n):
            return n * fact(n - 1) if n else 1

        assert fact(4) == 24
        spans = spans_of(session, "fact")
        assert len(spans) == 5
        assert all(
            outer["start"] + outer["dur"] >= inner["start"] + inner["dur"]
            for outer, inner in itertools.pairwise(spans)
        )

    @pytest.mark.usefixtures("faulty")
    def test_coroutines_are_annotations_not_ranges(self, start) -> None:
        """In a capture, decorated coroutines and generators are annotations. Plain
        functions are ranges of the backend.
        """
        from faulty import control

        session = start(steps="2")

        @region("coroutine")
        async def coroutine():
            await asyncio.sleep(0)
            return helper()

        @region("generator")
        def generator():
            yield helper()

        @region("helper")
        def helper():
            return 1

        with profile_step(2):
            asyncio.run(coroutine())
            list(generator())
            helper()
        ended(session)
        # a plain function cannot be suspended, whatever calls it
        assert control.marks == ["helper", "helper", "helper"]
        notes = [note.name for note in control.annotations[0] if note.kind == "region"]
        assert sorted(notes) == ["coroutine", "generator"]


LOADING = """
    import pickle, sys, json, pathlib
    import stepprof

    session = stepprof.init({"output_dir": "there", "backend": "null"}, rank=0, world_size=1)
    functions = pickle.loads(pathlib.Path(sys.argv[1]).read_bytes())
    assert functions["plain"](2) == 3
    assert list(functions["generator"](2)) == [0, 1]
    import asyncio
    assert asyncio.run(functions["coroutine"](2)) == 4
    assert functions["update"](None, global_step=7) == 7
    assert functions["Worker"]().run(5) == 5
    stepprof.shutdown()
    names = set()
    for path in (session.path / "spans").glob("*.jsonl"):
        for line in path.read_text().splitlines()[1:]:
            span = json.loads(line)
            names.add((span["name"], span["step"]))
    print(sorted(names, key=str))
"""

MAKING = """
    import cloudpickle, pathlib, sys
    import stepprof

    if sys.argv[2] == "on":
        stepprof.init({"output_dir": "here", "backend": "null"}, rank=0, world_size=1)

    @stepprof.region("plain")
    def plain(x):
        return x + 1

    @stepprof.region("generator", batch=4)
    def generator(n):
        yield from range(n)

    @stepprof.region("coroutine")
    async def coroutine(x):
        return x * 2

    @stepprof.profile_step(step="global_step", role="actor")
    def update(batch, global_step):
        return global_step

    class Worker:
        @stepprof.region
        def run(self, x):
            return x

    functions = dict(plain=plain, generator=generator, coroutine=coroutine, update=update, Worker=Worker)
    for function in functions.values():
        if function is not Worker:
            cloudpickle.loads(cloudpickle.dumps(function))
    pathlib.Path(sys.argv[1]).write_bytes(cloudpickle.dumps(functions))
"""


class TestPickling:
    def test_functions_are_pickled_by_name(self) -> None:
        """A decorated function of a module is pickled by its name."""
        assert pickle.loads(pickle.dumps(module_level)) is module_level
        assert cloudpickle.loads(cloudpickle.dumps(module_level))(1) == 2

    @pytest.mark.parametrize("session", ["on", "off"])
    def test_functions_are_pickled_by_value(self, run_script, tmp_path, session) -> None:
        """Functions of a script that are pickled by value, as Ray does, record into the
        session of the receiving process.
        """
        path = tmp_path / "functions.pickle"
        run_script(textwrap.dedent(MAKING), str(path), session).check()
        done = run_script(textwrap.dedent(LOADING), str(path)).check()
        expected = [
            ("Worker.run", None),
            ("actor", 7),
            ("coroutine", None),
            ("generator", None),
            ("plain", None),
        ]
        assert done.stdout.strip() == str(expected)

    def test_the_cell_is_never_copied(self) -> None:
        """Unpickling or copying the cell returns the cell of this process."""
        import copy

        assert pickle.loads(pickle.dumps(cell)) is cell
        assert copy.deepcopy(cell) is cell
        assert copy.copy(cell) is cell


@pytest.mark.usefixtures("faulty")
class TestOurOwnFailures:
    @pytest.mark.parametrize("call", ["arm", "start", "stop", "export", "mark", "abort", "export_mode"])
    def test_a_backend_that_raises(self, start, call) -> None:
        """If a call of the backend raises an error, the function still runs once and returns its result."""
        from faulty import control

        session = start(steps="1,2,3")
        ran = []

        @profile_step(step="n", role="actor")
        @region("work")
        def work(n):
            ran.append(n)
            return n

        control.fail(call, *[RuntimeError("plug-in")] * 3)
        assert [work(n) for n in (1, 2, 3)] == [1, 2, 3]
        assert ran == [1, 2, 3]
        stepprof.shutdown()
        assert session is not None

    @pytest.mark.parametrize("call", ["start", "stop", "mark"])
    def test_the_functions_exception_wins(self, start, call) -> None:
        """If the function and the backend raise an error, the caller gets the function's."""
        from faulty import control

        start(steps="1", strict=call == "stop")
        control.fail(call, RuntimeError("plug-in"))
        error = KeyError("mine")

        @profile_step(1)
        @region("work")
        def work():
            raise error

        with pytest.raises(KeyError) as caught:
            work()
        assert caught.value is error
