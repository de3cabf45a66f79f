"""What blocked a thread, by its stacks: the call and the line of the job's own code."""

from __future__ import annotations

import pytest
from digested import MS, T0, spans

from stepprof.analysis.findings.blocked import AWAITED
from stepprof.analysis.report.combine import combine
from stepprof.analysis.report.digest import digest
from stepprof.run.evidence import Call, CaptureUse, Evidence, Frame, StackStretch


def report(*sources, **more):
    return combine([digest(each) for each in sources], step=2, run_id="r", **more)


def sampled(start, end, call, *, frames, **more):
    """Return a stack stretch of the followed thread. Times are milliseconds."""
    more = {"samples": max(1, (end - start) // 25), "cpu_seconds": None, "run_queue_seconds": None, **more}
    return StackStretch(7, 2, None, T0 + start * MS, T0 + end * MS, frames=frames, call=call, **more)


def with_stacks(*stretches):
    """Return evidence of rank 0 with these stretches."""
    return [Evidence(0, "h", 100, stretches=stretches, captures=(CaptureUse(7, 2, None, T0, T0 + 100 * MS, None, None, 0),))]  # fmt: skip


def in_library(*modules):
    return tuple(Frame("work", module, 1) for module in modules)


MINE = Frame("parse", "train.py", 12, own=True)


class TestOwnLine:
    """Findings name the innermost line of the job's own code, and the call that it makes."""

    def test_a_library_called_back_in_many_ways(self):
        """Pickling a dict of tensors runs `copyreg` and torch; `pickle.dumps` has all of the time."""
        inner = ("copyreg.py", "_tensor.py", "_utils.py", "storage.py")
        stacks = [
            sampled(at, at + 25, None, frames=in_library(inner[at // 25 % 4]), caller=MINE, calls=(Call("pickle.dumps", "copyreg.py"),))
            for at in range(0, 400, 25)
        ]  # fmt: skip
        made = report(
            spans(0, ("window", "step", 0, 400, None), ("region", "send", 0, 400, None)),
            evidence=with_stacks(*stacks),
        )
        (found,) = [each for each in made.findings if each.topic == "pickle"]
        assert (found.region, round(1e3 * found.seconds)) == ("send", 400)
        assert found.why == "its stacks show pickle.dumps in parse (train.py:12)"

    @pytest.mark.parametrize(
        "name",
        [
            "msgspec.json.encode",
            "msgspec.json.Encoder().encode",
            "batch.model_dump_json",
            "json.loads",
            "pickle.Pickler().dump",
        ],
    )
    def test_libraries_that_serialise(self, name):
        """A call of a library that makes bytes of objects is named, whatever is innermost."""
        inside = sampled(
            0, 200, None, frames=in_library("main.py"), caller=MINE, calls=(Call(name, "main.py"),)
        )
        made = report(
            spans(0, ("window", "step", 0, 400, None), ("region", "send", 0, 400, None)),
            evidence=with_stacks(inside, sampled(200, 400, name, frames=(MINE,))),
        )
        (found,) = [each for each in made.findings if each.topic == "pickle"]
        assert (found.region, round(1e3 * found.seconds)) == ("send", 400)
        assert found.why == f"its stacks show {name} in parse (train.py:12)"

    def test_a_pickler_by_another_name(self):
        """A call that has called a function of pickle's protocol pickles, also where it runs in C."""
        back = (Frame("Tensor.__reduce_ex__", "_tensor.py", 1), MINE)
        stacks = [
            sampled(0, 50, None, frames=back, caller=MINE, calls=(Call("self._dump", "_tensor.py"),)),
            sampled(50, 400, "self._dump", frames=(MINE,)),
            sampled(400, 500, "self._check", frames=(MINE,)),
        ]
        made = report(
            spans(0, ("window", "step", 0, 500, None), ("region", "send", 0, 500, None)),
            evidence=with_stacks(*stacks),
        )
        (found,) = [each for each in made.findings if each.topic == "pickle"]
        assert (found.region, round(1e3 * found.seconds)) == ("send", 400)
        assert found.why == "its stacks show self._dump in parse (train.py:12)"

    @pytest.mark.parametrize(
        "name",
        [
            "self.pickled.sort",
            "pickle_path.exists",
            "self.loads_data",
            "tokenizer.encode",
            "text_encoder.encode",
        ],
    )
    def test_a_name_that_only_resembles_pickle(self, name):
        """A variable may have any name."""
        stack = sampled(0, 400, name, frames=(MINE,))
        made = report(
            spans(0, ("window", "step", 0, 400, None), ("region", "send", 0, 400, None)),
            evidence=with_stacks(stack),
        )
        assert [each for each in made.findings if each.topic == "pickle"] == []

    def test_the_reason_has_the_callers_line(self):
        """The call is that of the job's own code, and not the library's innermost."""
        stack = sampled(
            0, 400, "self.scan_once", frames=in_library("decoder.py"), caller=MINE, calls=(Call("json.loads", "__init__.py"),),
        )  # fmt: skip
        made = report(
            spans(0, ("window", "step", 0, 400, None), ("region", "load_batch", 0, 400, None)),
            evidence=with_stacks(stack),
        )
        (found,) = [each for each in made.findings if each.topic == "data"]
        assert found.why == "its name says so; its stacks: 100% in json.loads in parse (train.py:12)"

    def test_a_sleep_without_a_processor(self):
        """A thread that was ready for most of the time did not sleep meanwhile: the shares add up."""
        stack = sampled(
            0, 400, "time.sleep", frames=(MINE,), cpu_seconds=0.0, run_queue_seconds=0.336,
        )  # fmt: skip
        made = report(
            spans(0, ("window", "step", 0, 400, None), ("region", "load_batch", 0, 400, None)),
            evidence=with_stacks(stack),
        )
        (found,) = [each for each in made.findings if each.topic == "data"]
        assert found.why == (
            "its name says so; its stacks: 16% in time.sleep in parse (train.py:12); "
            "84% of the time the thread was ready to run and had no CPU"
        )


@pytest.mark.parametrize(
    ("call", "advice"),
    [("time.sleep", "wait for an event instead of a time"), ("self.event.wait", AWAITED), ("ray.get", AWAITED), ("process.join", AWAITED)],
)  # fmt: skip
def test_the_advice_about_a_wait(call, advice):
    """Only a sleep waits for a time; the other calls return as soon as what they wait for is there."""
    stack = sampled(0, 400, call, frames=(MINE,), cpu_seconds=0.0, run_queue_seconds=0.0)
    made = report(
        spans(0, ("window", "step", 0, 400, None), ("region", "collect", 0, 400, None)),
        evidence=with_stacks(stack),
    )
    (found,) = [each for each in made.findings if each.start is not None]
    assert (found.topic, found.advice) == ("sleep", advice)


class TestLoaderWithWorkers:
    FRAMES = in_library("selectors.py", "connection.py", "queues.py", "dataloader.py")

    def test_the_rank_waits_for_its_worker(self):
        """The calls of a loader follow each other by its nature: they are no serial calls."""
        stack = sampled(0, 400, "self._selector.poll", frames=self.FRAMES, caller=MINE, calls=(Call("next", "dataloader.py"),))  # fmt: skip
        calls = [("region", "take", at, 95, None) for at in range(0, 400, 100)]
        made = report(spans(0, ("window", "step", 0, 400, None), *calls), evidence=with_stacks(stack))
        found = [each for each in made.findings if each.topic in ("data", "serial")]
        assert [each.topic for each in found] == ["data"]
        assert found[0].text.endswith("for a worker process of its data loader in `take`")
        assert (
            found[0].why
            == "its stacks show the wait for a worker process of its data loader in parse (train.py:12)"
        )

    def test_a_rank_that_reads_what_its_worker_sent(self):
        """A thread that computes there does not wait."""
        stack = sampled(0, 400, "pickle.loads", frames=self.FRAMES, caller=MINE, cpu_seconds=0.4, run_queue_seconds=0.0)  # fmt: skip
        made = report(
            spans(0, ("window", "step", 0, 400, None), ("region", "take", 0, 400, None)),
            evidence=with_stacks(stack),
        )
        (found,) = [each for each in made.findings if each.topic == "data"]
        assert "waited" not in found.text
