"""Calls of stepprof in a function under torch.compile: one graph, and no compilation
between recorded and other steps.
"""

from __future__ import annotations

import pytest
from spanning import spans_of

import stepprof
from stepprof import bind, counter, mark, profile_step, region, tick

torch = pytest.importorskip("torch")

pytestmark = [pytest.mark.torch, pytest.mark.filterwarnings("ignore")]

X = torch.arange(8.0)


@region("helper")
def helper(x):
    return x.cos()


@region
def bare_helper(x, *, scale=2.0):
    return x * scale


@profile_step(step="n", role="actor")
def stepped_helper(x, n):
    return x - n


def plain_block(x):
    with region("plain"):
        return x.sin() + 1


def with_attributes(x):
    with region("attributes", batch=x.shape[0], name="n", values=[1, 2]):
        return x.sin() + 1


def nested(x):
    with region("outer"):
        y = x.sin()
        with region("inner", a=1):
            y = y + 1
        with region("sibling"):
            return y


def decorated_inside(x):
    return bare_helper(helper(x), scale=1.0) + helper(x)


def window_inside(x):
    with profile_step(2, role="actor"):
        y = x + 1
    with profile_step(3):
        return y * 2


def stepped_inside(x):
    return stepped_helper(x, 2) + stepped_helper(x, n=3)


def started_inside(x):
    window = profile_step(2, role="ref").start()
    y = x + 1
    window.stop()
    return y


def points_inside(x):
    with bind(sample=1, step=2):
        mark("mark", a=1)
        counter("counter", 17)
        tick()
        y = x * 3
    mark("again")
    return y


def everything(x):
    with profile_step(2), bind(sample=1), region("r", a=1):
        tick()
        return decorated_inside(nested(x)) + points_inside(x)


FUNCTIONS = [
    plain_block,
    with_attributes,
    nested,
    decorated_inside,
    window_inside,
    stepped_inside,
    started_inside,
    points_inside,
    everything,
]


class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = torch.nn.Linear(8, 8)

    @region("forward", kind="mlp")
    def forward(self, x):
        with region("linear"):
            x = self.linear(x)
        return self.activation(x)

    @region
    def activation(self, x):
        return torch.relu(x)


@pytest.fixture
def counted():
    """Yield a backend of torch.compile that counts the compilations."""
    torch._dynamo.reset()
    from torch._dynamo.testing import CompileCounter

    yield CompileCounter()
    torch._dynamo.reset()


@pytest.fixture
def begin(tmp_path):
    def begin(backend, **config):
        return stepprof.init(
            {
                "output_dir": str(tmp_path / "runs"),
                "backend": backend,
                "steps": "2, 4",
                "min_free_memory": "none",
                **config,
            },
            rank=0,
            world_size=1,
            run_id="run",
        )

    yield begin
    stepprof.shutdown()


def loop(compiled, steps, *arguments):
    """Call the function in every step of a loop, and return the results."""
    results = []
    for step in steps:
        with profile_step(step), profile_step(step, role="actor"), region("around"):
            results.append(compiled(*arguments))
    return results


class TestInside:
    @pytest.mark.parametrize("function", FUNCTIONS)
    def test_without_a_session_nothing_is_recompiled(self, counted, function) -> None:
        """Without a session, the function has one graph and the same results, and is compiled once."""
        compiled = torch.compile(function, backend=counted, fullgraph=True)
        for result in loop(compiled, range(4), X):
            assert torch.equal(result, function(X))
        assert counted.frame_count == 1

    @pytest.mark.parametrize("backend", ["null", "torch"])
    @pytest.mark.parametrize("function", FUNCTIONS)
    def test_with_a_session_it_is_compiled_once(self, counted, begin, function, backend) -> None:
        """With a session, the function is compiled once for recorded and other steps."""
        begin(backend)
        compiled = torch.compile(function, backend=counted, fullgraph=True)
        expected = function(X)
        results = loop(compiled, range(1, 6), X)
        assert all(torch.equal(result, expected) for result in results)
        assert counted.frame_count == 1
        stepprof.shutdown()
        assert stepprof.state().recorded_steps == (2, 4)

    @pytest.mark.parametrize("function", FUNCTIONS)
    def test_a_session_that_begins_and_ends(self, counted, begin, function) -> None:
        """The begin and the end of a session cause at most one more compilation each."""
        compiled = torch.compile(function, backend=counted, fullgraph=True)
        loop(compiled, [1, 2, 3], X)
        begin("null")
        loop(compiled, [1, 2, 3], X)
        first = counted.frame_count
        assert first <= 2
        stepprof.shutdown()
        loop(compiled, [1, 2, 3], X)
        assert counted.frame_count <= first + 1

    @pytest.mark.parametrize("how", ["region", "schedule"])
    def test_single_regions_that_are_captured(self, counted, begin, how) -> None:
        """Captures of regions around the compiled call cause no compilation."""
        begin(
            "torch",
            **(
                {"capture_per": "region", "regions": ["around"]}
                if how == "region"
                else {"schedule": {"region": "around", "active": 1}}
            ),
        )
        compiled = torch.compile(everything, backend=counted, fullgraph=True)
        loop(compiled, range(1, 6), X)
        assert counted.frame_count == 1

    def test_names_and_attributes_cause_no_recompilation(self, counted, begin) -> None:
        """Other names, attributes and steps around the compiled call cause no compilation."""
        begin("null")
        compiled = torch.compile(everything, backend=counted, fullgraph=True)
        for number in range(5):
            with bind(sample=number, step=number), region(f"r{number}", number=number):
                compiled(X)
        assert counted.frame_count == 1

    def test_gradients(self, counted, begin) -> None:
        """The gradients of a compiled model with regions equal those of the plain model."""
        begin("torch")
        model = Model()
        compiled = torch.compile(model, backend=counted, fullgraph=True)
        for result in loop(compiled, range(1, 6), X):
            model.zero_grad()
            result.sum().backward()
            found = model.linear.weight.grad.clone()
            model.zero_grad()
            model(X).sum().backward()
            assert torch.equal(found, model.linear.weight.grad)
        assert counted.frame_count == 1


class TestOutside:
    @pytest.mark.parametrize("backend", ["null", "torch"])
    def test_a_decorated_compiled_function(self, counted, begin, backend) -> None:
        """Decorating a compiled function gives a span for each call, and no further compilation."""
        session = begin(backend)
        compiled = region("compiled")(torch.compile(plain_block, backend=counted, fullgraph=True))
        loop(compiled, range(1, 6), X)
        assert counted.frame_count == 1
        stepprof.shutdown()
        assert len(spans_of(session, "compiled", "region")) == 5
        assert spans_of(session, "plain") == []

    def test_a_compiled_decorated_function(self, counted, begin) -> None:
        """A decorated function is compiled once and has the same result, with a region and with a window."""
        begin("torch")
        for decorated in (region("r", a=1)(plain_block), profile_step(2, role="actor")(plain_block)):
            before = counted.frame_count
            compiled = torch.compile(decorated, backend=counted, fullgraph=True)
            results = loop(compiled, range(1, 6), X)
            assert torch.equal(results[0], plain_block(X))
            assert counted.frame_count == before + 1

    def test_a_module(self, counted, begin) -> None:
        """A module with a decorated `forward` is compiled from outside and in
        place, with the same results.
        """
        begin("torch")
        model = Model()
        expected = model(X)
        for compiled in (torch.compile(model, backend=counted, fullgraph=True), model):
            if compiled is model:
                model.compile(backend=counted, fullgraph=True)
            assert all(torch.equal(result, expected) for result in loop(compiled, range(1, 6), X))
        assert counted.frame_count <= 2

    def test_a_decorated_compiled_module(self, counted, begin) -> None:
        """Each call of a decorated compiled module is a span."""
        session = begin("null")
        call = region("call")(torch.compile(Model(), backend=counted, fullgraph=True))
        loop(call, range(1, 4), X)
        stepprof.shutdown()
        assert len(spans_of(session, "call", "region")) == 3


class TestLateTorch:
    def test_a_session_that_began_before_torch(self, run_script) -> None:
        """If torch is imported after `init`, a function that is compiled right after the
        import has at most two graphs.
        """
        run_script(
            """
            import stepprof
            session = stepprof.init({"output_dir": "runs", "backend": "null", "steps": "2"}, rank=0, world_size=1)
            session.background.stop(5)  # nobody looks for torch meanwhile
            import warnings
            warnings.simplefilter("ignore")
            import torch
            from torch._dynamo.testing import CompileCounter

            @stepprof.region("f")
            def f(x):
                with stepprof.profile_step(2), stepprof.bind(a=1), stepprof.region("r", a=1):
                    stepprof.mark("m")
                    stepprof.tick()
                    return x + 1

            def g(x):
                with stepprof.region("r"):
                    return x + 1

            # the very first thing that happens after the import
            counter = CompileCounter()
            compiled = torch.compile(f, backend=counter, fullgraph=True)
            compiled(torch.ones(3))
            for step in range(1, 4):
                with stepprof.profile_step(step):
                    compiled(torch.ones(3))
            assert counter.frame_count <= 2, counter.frame_count

            # a region came before it
            counter = CompileCounter()
            compiled = torch.compile(g, backend=counter, fullgraph=True)
            for step in range(1, 4):
                with stepprof.profile_step(step):
                    compiled(torch.ones(3))
            assert counter.frame_count == 1, counter.frame_count
            stepprof.shutdown()
            """,
            timeout=110,
        ).check()
