"""Time in which a process kept waiting for what had finished, of hand-made steps. Times are in milliseconds."""

from __future__ import annotations

from dataclasses import replace

import pytest
from combined import found, path, report, stacks, topics
from digested import manifest, spans, window

from stepprof.analysis.findings.poll import POLLS, RECEIVES
from stepprof.run.evidence import Frame


def led(*more, end=5000):
    """Return a driver in its window of the role `actor` until 5 s, and two ranks that have finished at 3 s."""
    return [
        spans("driver", ("window", "actor", 0, end, "actor"), *more),
        *(
            spans(rank, ("window", "actor", 0, 3000, "actor"), ("region", "update", 0, 3000, "actor"))
            for rank in range(2)
        ),
    ]


class TestPoll:
    @pytest.mark.parametrize(
        ("call", "advice"),
        [("time.sleep", POLLS), ("ray.get", RECEIVES), ("future.result", RECEIVES), ("self.queue.get", RECEIVES)],
    )  # fmt: skip
    def test_a_driver_that_waits_on(self, call, advice):
        """A call that returns when the result is there does not poll for it."""
        made = report(*led(), evidence=[stacks("driver", (0, 5000, call, 0.0))])
        assert found(made, "poll") == [("actor driver", None, 2.0, 2.0)]
        (poll,) = [each for each in made.findings if each.topic == "poll"]
        assert poll.advice == advice

    def test_a_driver_that_asks_and_sleeps_polls(self):
        """Most of the time is in `requests.get`, and the loop sleeps in between."""
        turns = [(at, 600, "requests.get", 0.0) for at in range(0, 5000, 1000)]
        pauses = [(at + 600, 400, "time.sleep", 0.0) for at in range(0, 5000, 1000)]
        made = report(*led(), evidence=[stacks("driver", *sorted([*turns, *pauses]))])
        (poll,) = [each for each in made.findings if each.topic == "poll"]
        assert poll.advice == POLLS

    def test_a_driver_that_computes_on_the_cpu_waits_for_nothing(self):
        made = report(
            *led(), evidence=[stacks("driver", (0, 3000, "ray.get", 0.0), (3000, 2000, "np.percentile", 1.0))]
        )
        assert topics(made) == []
        assert path(made)[-1] == ("actor driver", 3.0, 5.0, "work", "actor")

    def test_where_cpu_time_is_not_known_the_call_says_it(self):
        made = report(*led(), evidence=[stacks("driver", (0, 5000, "np.percentile", None))])
        assert topics(made) == []

    def test_only_the_time_without_computing_is_a_wait(self):
        """It computes for 1.5 s, then sleeps for 0.5 s."""
        of = stacks(
            "driver",
            (0, 3000, "ray.get", 0.0),
            (3000, 1500, "np.percentile", 1.0),
            (4500, 500, "time.sleep", 0.0),
        )
        made = report(*led(), evidence=[of])
        assert found(made, "poll") == [("actor driver", None, 0.5, 0.5)]

    @pytest.mark.parametrize("call", ["os.fsync", "file.write"])
    def test_a_driver_that_writes_a_file_does_not_poll(self, call):
        made = report(*led(), evidence=[stacks("driver", (0, 3000, "ray.get", 0.0), (3000, 2000, call, 0.0))])
        assert topics(made) == ["io"]

    def test_a_driver_that_runs_a_program_does_not_poll(self):
        """It evaluates in a process of its own, of which nothing is recorded."""
        of = stacks("driver", (0, 3000, "ray.get", 0.0), (3000, 2000, "subprocess.run", 0.0))
        waits, runs = of.stretches
        frames = (Frame("wait", "subprocess.py", 9), Frame("run", "subprocess.py", 8), *runs.frames)
        runs = replace(runs, frames=frames, call="os.waitpid", caller=runs.frames[0])
        made = report(*led(), evidence=[replace(of, stretches=(waits, runs))])
        assert found(made, "io") == [("actor driver", None, 2.0, 2.0)]
        assert topics(made) == ["io"]

    @pytest.mark.parametrize(("begins", "topic"), [(3000, "threads"), (3300, "threads"), (4500, "poll")])
    def test_a_driver_whose_thread_works_does_not_poll(self, begins, topic):
        """It joins the thread from 3 s on; a sample shows late that the thread works."""
        of = stacks("driver", (0, 3000, "ray.get", 0.0), (3000, 2000, "thread.join", 0.0))
        waits, joins = of.stretches
        joins = replace(joins, frames=(Frame("join", "threading.py", 9), *joins.frames))
        (works,) = stacks("driver", (begins, 5000 - begins, "verify", 1.0)).stretches
        works = replace(works, thread=8, task="verify")
        made = report(*led(), evidence=[replace(of, stretches=(waits, joins, works))])
        assert topic in topics(made)
        assert ("poll" in topics(made)) == (topic == "poll")

    def test_a_driver_whose_threads_work_does_not_poll(self):
        """Its thread waits for a pool that scores the samples."""
        of = stacks("driver", (0, 5000, "future.result", 0.0))
        (pool,) = stacks("driver", (3000, 2000, "verify", 1.0)).stretches
        of = replace(of, stretches=(*of.stretches, replace(pool, thread=8, task="score", pool=True)))
        assert "poll" not in topics(report(*led(), evidence=[of]))

    def test_without_stacks_the_advice_has_a_condition(self):
        (poll,) = [each for each in report(*led()).findings if each.topic == "poll"]
        assert poll.why == "no work was recorded in this time"
        assert poll.advice.startswith("if it waits there: ")

    @pytest.mark.parametrize(("cpu", "topic"), [(1.9, []), (0.2, ["poll"]), (None, ["poll"])])
    def test_without_stacks_its_cpu_time_contradicts_a_wait(self, cpu, topic):
        """The thread of its window used a CPU for 1.9 s, which may be in the 2 s after its ranks. A window around it uses more."""
        own = window("driver", "actor", end=5000, backend="null", artifacts=[], thread_cpu_seconds=cpu)
        around = window("driver", None, end=6000, backend="null", artifacts=[], thread_cpu_seconds=3.0)
        windows = [own] if cpu is None else [own, around]
        assert topics(report(*led(), manifests=[manifest(*windows)])) == topic

    def test_time_in_a_step_window_after_its_ranks_is_other_work(self):
        """A step window is about more than its ranks: nothing says that its rest is a wait for them."""
        made = report(
            spans("driver", ("window", "step", 0, 5000, None)),
            *(
                spans(rank, ("window", "actor", 0, 3000, "actor"), ("region", "update", 0, 3000, "actor"))
                for rank in range(2)
            ),
        )
        assert topics(made) == []
        assert path(made)[-1] == ("driver", 3.0, 5.0, "work", None)
