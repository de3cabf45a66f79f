"""The findings of hand-made steps: their places and seconds. No two findings share a moment."""

from __future__ import annotations

import json
from dataclasses import replace
from itertools import pairwise

import pytest
from digested import MS, T0, engine, engine_entry, manifest, source, spans, trace, window

from stepprof.analysis.report.combine import combine
from stepprof.analysis.report.digest import digest
from stepprof.analysis.timeline.model import Origin
from stepprof.run.evidence import CaptureUse, Collection, Evidence, Frame, RegionCpu, StackStretch


def report(*sources, **more):
    return combine([digest(each) for each in sources], step=2, run_id="r", **more)


def causes(made):
    """Return (topic, process, region, milliseconds) of each finding that has a place."""
    return [
        (each.topic, each.process, each.region, round(1e3 * (each.seconds or 0)))
        for each in made.findings
        if each.start is not None
    ]


def evidence(*stretches, collections=()):
    """Return evidence of rank 0: stack stretches as (start, length, call) in milliseconds, and
    garbage collections.
    """
    at = (7, 2, None)
    return Evidence(
        0,
        "h",
        100,
        collections=tuple(
            Collection(*at, T0 + start * MS, T0 + (start + length) * MS, length / 1e3, 1, 2, 10)
            for start, length in collections
        ),
        stretches=tuple(
            StackStretch(*at, T0 + start * MS, T0 + (start + length) * MS, 3, (Frame("main", "train.py", 5),), call, None, None)
            for start, length, call in stretches
        ),
        captures=(CaptureUse(*at, T0, T0 + 100 * MS, None, None, 0),),
    )  # fmt: skip


def test_the_path_has_each_moment_of_the_step_once():
    """Rank 1 enters the all-reduce 40 ms after rank 0, because its `load` is longer. The path
    covers the step without gaps or overlaps.
    """

    def rank(number, late):
        return [
            spans(number, ("window", "actor", 0, 100, "actor"), ("region", "load", 10, late, "actor")),
            trace(number, ("thread", "user_annotation", "gloo:all_reduce", 10 + late, 80 - late), world=2),
        ]

    reported = manifest(*(window(number, end=100) for number in range(2)))
    made = report(*rank(0, 30), *rank(1, 70), manifests=[reported])
    assert made.path[0].start == 0
    assert all(
        round(one.start + one.seconds, 9) == round(other.start, 9) for one, other in pairwise(made.path)
    )
    assert sum(segment.seconds for segment in made.path) == pytest.approx(made.seconds)
    assert causes(made)[0] == ("straggler", "actor rank 1", "load", 40)
    (late,) = [each for each in made.findings if each.topic == "straggler"]
    assert late.why == "70 ms against 30 ms; actor rank 0 waited 40 ms for it"
    assert (late.saves, late.start, late.end) == (0.04, 0.04, 0.08)


def test_no_two_findings_share_a_moment():
    made = report(
        spans(0, ("window", "step", 0, 100, None), ("region", "save_checkpoint", 10, 20, None), ("region", "fetch", 40, 50, None)),
        evidence=[evidence((10, 20, "pickle.dumps"), (40, 25, "time.sleep"), collections=[(12, 5)])],
    )  # fmt: skip
    assert causes(made) == [
        ("data", "rank 0", "fetch", 50),
        ("checkpoint", "rank 0", "save_checkpoint", 15),
        ("gc", "rank 0", "save_checkpoint", 5),
    ]
    (data,) = [each for each in made.findings if each.topic == "data"]
    assert data.why == "its name says so; its stacks: 50% in time.sleep in main (train.py:5)"
    (saved,) = [each for each in made.findings if each.topic == "checkpoint"]
    assert saved.text == (
        "a checkpoint took 15 ms of the step: rank 0 in `save_checkpoint`, not counting 5 ms of other findings"
    )
    placed = sorted((each.start, each.end) for each in made.findings if each.start is not None)
    assert all(one[1] <= other[0] for one, other in pairwise(placed))


def test_a_run_of_short_collections_lasts_as_long_as_its_pauses():
    """A run of 40 collections lasts from 10 to 90 ms, but pauses the process for 8 ms. The finding
    has the pauses only, because the process works between them.
    """
    at = (7, 2, None)
    run = Collection(*at, T0 + 10 * MS, T0 + 90 * MS, 0.008, 40, 0, 0)
    made = report(
        spans(0, ("window", "step", 0, 100, None), ("region", "parse", 10, 40, None), ("region", "score", 50, 40, None)),
        evidence=[replace(evidence(), collections=(run,))],
    )  # fmt: skip
    assert causes(made) == [("gc", "rank 0", "parse", 4), ("gc", "rank 0", "score", 4)]


def test_pauses_of_the_collector_hide_no_stacks():
    """Between the pauses of the collector the process copies. The copy is found also where no
    sample was taken between two pauses.
    """
    run = Collection(7, 2, None, T0, T0 + 300 * MS, 0.06, 100, 0, 0)
    of = evidence(*((at, 30, "copy.deepcopy") for at in range(0, 300, 30)))
    stretches = tuple(replace(each, samples=1) for each in of.stretches)
    made = report(
        spans(0, ("window", "step", 0, 300, None), ("region", "stack", 0, 300, None)),
        evidence=[replace(of, stretches=stretches, collections=(run,))],
    )
    assert causes(made) == [("copy", "rank 0", "stack", 240), ("gc", "rank 0", "stack", 60)]


def test_stacks_before_a_region_do_not_count_in_it():
    """A stretch lasts until the next sample. Its part inside `wait` is not counted there, because
    the thread enters `wait` during the stretch.
    """
    made = report(
        spans(0, ("window", "step", 0, 300, None), ("region", "wait", 110, 120, None)),
        evidence=[evidence((0, 125, "torch.mm"), (125, 100, "time.sleep"))],
    )
    (found,) = [each for each in made.findings if each.start is not None]
    assert (found.topic, found.region, round(1e3 * found.seconds)) == ("sleep", "wait", 115)


def test_samples_of_another_region_are_not_assigned_to_a_short_one():
    """Both samples were taken in `backward`, which alternates with `forward` every 10 ms. Equal
    stacks of `backward` do not show the calls of `forward`.
    """
    turns = [("region", ("forward", "backward")[at % 2], 10 * at, 10, None) for at in range(30)]
    made = report(
        spans(0, ("window", "actor", 0, 300, None), *turns),
        spans(1, ("window", "actor", 0, 300, None), *(each for each in turns if each[1] == "backward")),
        evidence=[evidence((15, 280, "run_backward"))],
    )
    (found,) = [each for each in made.findings if each.topic == "straggler"]
    assert (found.region, round(1e3 * found.seconds)) == ("forward", 150)
    assert "run_backward" not in found.why


@pytest.mark.parametrize(
    ("call", "topic"),
    [
        ("copy.deepcopy", "copy"),
        ("pickle.dumps", "pickle"),
        ("self.lock.acquire", "lock"),
        ("file.read", "io"),
        ("time.sleep", "sleep"),
    ],
)
def test_a_wait_is_named_by_the_call_in_the_stack(call, topic):
    made = report(
        spans(0, ("window", "step", 0, 100, None), ("region", "between", 20, 60, None)),
        evidence=[evidence((20, 60, call))],
    )
    assert causes(made) == [(topic, "rank 0", "between", 60)]


@pytest.mark.parametrize(
    ("file", "call", "topic"),
    [("copy.py", "self.data.clone", "copy"), ("dataloader.py", "self._poll", "data")],
)
def test_work_is_named_by_an_outer_frame(file, call, topic):
    """An outer frame names the work: `copy.deepcopy` of a tensor ends in torch, and a data loader
    in the connection to its worker.
    """
    of = evidence((20, 60, call))
    frames = (Frame("f", "connection.py", 5), Frame("g", file, 6), Frame("main", "train.py", 7))
    made = report(
        spans(0, ("window", "step", 0, 100, None), ("region", "between", 20, 60, None)),
        evidence=[replace(of, stretches=tuple(replace(each, frames=frames) for each in of.stretches))],
    )
    assert causes(made) == [(topic, "rank 0", "between", 60)]


@pytest.mark.parametrize(("length", "topics"), [(15, ["serial"]), (40, [])])
def test_calls_that_overlap_are_not_one_after_the_other(length, topics):
    """Coroutines of one thread share a row, where their regions may overlap. Calls that overlap are
    not serial.
    """
    calls = [("region", "score", 20 * number, length, None) for number in range(4)]
    made = report(
        spans(0, ("window", "step", 0, 100, None), *calls),
        evidence=[evidence((0, 100, "self._selector.poll"))],
    )
    assert [topic for topic, *_ in causes(made)] == topics


@pytest.mark.parametrize(("other", "operators", "topics"), [(2, 0, ["serial"]), (14, 0, []), (2, 80, [])])
def test_calls_without_a_cpu_are_no_waits_if_the_other_rank_or_operators_show_that_they_compute(
    other, operators, topics
):
    """Without stacks, the CPU time of four calls of 20 ms is known, 2 ms each in rank 0: it waits, or has no CPU."""

    def rank(number, cpu):
        calls = [("region", "work", 20 * at, 20, None) for at in range(4)]
        uses = tuple(
            RegionCpu(7, 2, None, T0 + 20 * at * MS, T0 + 20 * (at + 1) * MS, "work", cpu / 1e3)
            for at in range(4)
        )
        return spans(number, ("window", "step", 0, 100, None), *calls), Evidence(
            number, "h", 100 + number, regions=uses
        )

    (first, used), (second, others) = rank(0, 2), rank(1, other)
    ran = [trace(number, ("thread", "cpu_op", "aten::mm", 0, operators)) for number in range(2) if operators]
    windows = [manifest(*(window(number, None, end=100) for number in range(2)))] if ran else []
    made = report(first, second, *ran, evidence=[used, others], manifests=windows)
    assert [topic for topic, *_ in causes(made) if topic == "serial"] == topics


@pytest.mark.parametrize(("milliseconds", "file"), [(40, "train.py"), (60, "distributed_c10d.py")])
def test_gaps_between_samples_and_waits_for_ranks_are_not_named(milliseconds, file):
    """Neither case is named: 40 ms that no two samples cover, and 60 ms that a rank waits for other ranks."""
    of = evidence((20, milliseconds, "work.wait"))
    stretches = [replace(each, frames=(Frame("all_gather", file, 5),)) for each in of.stretches]
    made = report(
        spans(0, ("window", "step", 0, 100, None), ("region", "between", 20, milliseconds, None)),
        evidence=[replace(of, stretches=tuple(stretches))],
    )
    assert causes(made) == []


@pytest.mark.parametrize(
    ("region", "text"),
    [("get_batch", "rank 0 spent {seconds} on data in `get_batch`"), ("tokenize", "rank 0 prepared data for {seconds} in `tokenize`")],
)  # fmt: skip
def test_the_name_of_a_region_shows_no_wait(region, text):
    made = report(spans(0, ("window", "step", 0, 100, None), ("region", region, 20, 60, None)))
    assert causes(made) == [("data", "rank 0", region, 60)]
    (found,) = [each for each in made.findings if each.topic == "data"]
    assert found.text == text.format(seconds="60 ms")


def test_work_of_a_single_process_is_not_a_finding():
    made = report(
        spans(0, ("window", "step", 0, 100, None), ("region", "update", 20, 40, None)),
        evidence=[evidence((0, 100, "model.forward"))],
    )
    assert causes(made) == []


def test_a_driver_that_stays_in_the_rollout_after_its_engines():
    """The engine is done after 40 of 90 ms. The other 50 ms are a wait of the driver."""
    entry = engine_entry(start_unix_ns=T0, end_unix_ns=T0 + 90 * MS)
    made = report(
        spans("driver", ("window", "rollout", 0, 90, "rollout"), ("region", "gen", 0, 90, "rollout")),
        engine(0, (0, 20, 8), (20, 20, 8)),
        manifests=[manifest(engines=[entry])],
    )
    assert causes(made) == [("poll", "rollout driver", "gen", 50)]
    assert [segment.kind for segment in made.path] == ["engine", "handover"]


def test_a_capped_engine_is_not_said_to_have_finished():
    entry = engine_entry(start_unix_ns=T0, end_unix_ns=T0 + 40 * MS, capped_by="max_seconds")
    made = report(
        spans("driver", ("window", "rollout", 0, 90, "rollout")),
        engine(0, (0, 20, 8), (20, 20, 8)),
        manifests=[manifest(engines=[entry])],
    )
    assert causes(made) == []


def test_the_tail_of_samples():
    """Seven samples take 20 ms and the eighth takes 60 ms. The tail is the 40 ms between them."""
    origin = Origin("spans", "spans/rank-0.000001.jsonl", None, 0, None, "h", 100)
    samples = [(("sample", str(n)), "region", "generate", 0, 20) for n in range(7)]
    made = report(
        source(
            origin,
            ("thread", "window", "rollout", 0, 60, "rollout"),
            *((*sample, "rollout") for sample in samples),
            (("sample", "7"), "region", "generate", 0, 60, "rollout"),
        )
    )
    assert causes(made) == [("tail", "rollout rank 0", "generate", 40)]


def test_a_step_that_is_short_next_to_its_recording():
    made = report(
        spans(0, ("window", "actor", 100, 3, "actor"), ("region", "load", 100, 3, "actor")),
        manifests=[manifest(window(start=100, end=103, start_seconds=0.05))],
    )
    assert [each.topic for each in made.findings] == ["step", "short"]


def test_ranks_that_leave_a_region_together_met_in_it():
    """Rank 0 is in `meet` for 50 ms, waiting for rank 1, which is in `load` for 50 ms longer. Only
    `load` is a straggler.
    """
    made = report(
        spans(0, ("window", "actor", 0, 100, "actor"), ("region", "load", 0, 40, "actor"), ("region", "meet", 40, 60, "actor")),
        spans(1, ("window", "actor", 0, 100, "actor"), ("region", "load", 0, 90, "actor"), ("region", "meet", 90, 10, "actor")),
    )  # fmt: skip
    assert causes(made)[0] == ("straggler", "actor rank 1", "load", 50)
    assert "meet" not in [each.region for each in made.findings]


def test_where_no_role_divides_the_step_its_regions_do():
    made = report(
        spans(0, ("window", "step", 0, 100, None), ("region", "update", 0, 70, None), ("region", "forward", 10, 40, None), ("region", "save", 80, 20, None))
    )  # fmt: skip
    assert made.findings[0].text == "the step took 100 ms: `update` 70%, `save` 20%, no region 10%"
    (bare,) = report(spans(0, ("window", "step", 0, 100, None))).findings
    assert bare.text == "the step took 100 ms, and no role or region divides it"
    assert "stepprof.region" in (bare.advice or "")


def test_a_rank_that_leaves_a_barrier_late_did_not_cause_the_wait_in_it():
    """Rank 0 waits in `meet` for rank 1, which is in `load` until 90 ms. A busy machine lets rank 0
    continue 7 ms after rank 1.
    """
    made = report(
        spans(0, ("window", "actor", 0, 100, "actor"), ("region", "load", 0, 40, "actor"), ("region", "meet", 40, 60, "actor")),
        spans(1, ("window", "actor", 0, 93, "actor"), ("region", "load", 0, 90, "actor"), ("region", "meet", 90, 3, "actor")),
    )  # fmt: skip
    assert causes(made)[0] == ("straggler", "actor rank 1", "load", 50)
    assert not [each for each in made.findings if each.region == "meet" and (each.seconds or 0) > 0.01]


def test_the_advice_for_a_rank_that_was_late_once_does_not_blame_its_machine():
    """In the neighbouring steps rank 1 takes as long as rank 0, so its machine is not blamed."""
    made = report(
        spans(0, ("window", "actor", 0, 100, "actor"), ("region", "load", 0, 40, "actor"), ("region", "meet", 40, 60, "actor")),
        spans(1, ("window", "actor", 0, 100, "actor"), ("region", "load", 0, 90, "actor"), ("region", "meet", 90, 10, "actor")),
        neighbours=Same(0.04),
    )  # fmt: skip
    (late,) = [each for each in made.findings if each.topic == "straggler"]
    assert "in this step alone" in (late.why or "")
    assert "compare its machine" not in (late.advice or "")


class Same:
    """Neighbouring steps in which rank 1 takes a given time, and the other ranks `others` seconds."""

    def __init__(self, mine, others=0.04):
        self.mine, self.others = mine, others

    def seconds(self, origin, role, region):
        return dict.fromkeys((1, 3, 4), self.mine if origin.rank == 1 else self.others)

    def having(self, origin, name):
        return None


def late(load, other=40, *, call="torch.mm", attributes=None):
    """Return the straggler finding about rank 1, which is in `load` for `load` milliseconds."""
    loads = [("region", "load", 0, length, "actor") for length in (other, load)]
    ranks = [
        spans(number, ("window", "actor", 0, 100, "actor"), each, ("region", "meet", each[3], 100 - each[3], "actor"))
        for number, each in enumerate(loads)
    ]  # fmt: skip
    for made in ranks:
        if attributes is not None:
            made.slices.args = [json.dumps({"role": "actor", **attributes}).encode()] * len(made.slices)
    of = replace(evidence((0, load, call)), rank=1, pid=101)
    made = report(*ranks, neighbours=Same(load / 1e3, other / 1e3), evidence=[of])
    return next(each for each in made.findings if each.topic == "straggler")


def test_a_rank_that_is_late_in_each_step():
    """The report calls the rank slow only if all ranks have the same number of tokens. Otherwise
    the rank may have more to do.
    """
    assert "the rank is slow, or has more to do" in late(90).why
    assert "tokens" in late(90).advice
    assert "the rank is slow;" in late(90, attributes={"tokens": 10}).why


def test_a_rank_that_makes_more_calls_is_not_called_slow():
    """Rank 1 makes six calls of 10 ms, rank 0 four. The finding gives the number of calls and does
    not call the rank slow.
    """
    ranks = [
        spans(
            number,
            ("window", "actor", 0, 100, "actor"),
            *(("region", "micro_batch", 10 * at, 10, "actor") for at in range(calls)),
            ("region", "meet", 10 * calls, 100 - 10 * calls, "actor"),
        )
        for number, calls in enumerate((4, 6))
    ]
    made = report(*ranks, neighbours=Same(0.06, 0.04))
    (found,) = [each for each in made.findings if each.topic == "straggler"]
    assert found.why.startswith("it made 6 calls, the others 4; ")
    assert "slow" not in found.why
    assert "machine" not in found.advice


def test_a_rank_that_waits_is_not_called_slow():
    """The stacks of rank 1 show that it slept, so neither the rank nor its machine is called slow."""
    found = late(90, call="time.sleep")
    assert "slow" not in found.why
    assert "machine" not in found.advice


def test_work_that_only_one_rank_does_is_not_called_slow():
    """Rank 0 is in the region for 1 ms only, so it does not do the work of rank 1, such as writing a file."""
    found = late(90, 1, call="os.fsync")
    assert "slow" not in found.why
    assert (
        found.advice
        == "the other ranks do next to nothing there: do it concurrently with the next phase, or share it among the ranks"
    )


def test_leaving_a_collective_late_is_not_work():
    """The thread of rank 1 is still in the collective for 90 ms. That is not its own work: there is
    no straggler.
    """
    frames = (Frame("wait", "distributed_c10d.py", 9), Frame("main", "train.py", 5))
    of = evidence((0, 90, "work.wait"))
    stacks = tuple(replace(each, frames=frames) for each in of.stretches)
    ranks = [
        spans(number, ("window", "actor", 0, 100, "actor"), ("region", "sync", 0, length, "actor"))
        for number, length in enumerate((10, 90))
    ]
    for made, found in ((report(*ranks), 1), (report(*ranks, evidence=[replace(of, rank=1, pid=101, stretches=stacks)]), 0)):  # fmt: skip
        assert [(each.topic, each.region) for each in made.findings if each.start is not None].count(
            ("straggler", "sync")
        ) == found


def test_neighbouring_steps_are_not_compared_for_a_region_with_a_collective():
    """In neighbouring steps the other ranks wait inside the region for the late rank, so the region
    is equally long on all ranks.
    """

    def rank(number, length):
        return [
            spans(number, ("window", "actor", 0, 100, "actor"), ("region", "train", 0, 100, "actor")),
            trace(number, ("thread", "user_annotation", "gloo:all_reduce", length, 100 - length), world=2),
        ]

    reported = manifest(*(window(number, end=100) for number in range(2)))
    made = report(*rank(0, 20), *rank(1, 90), manifests=[reported], neighbours=Same(0.1, 0.1))
    (found,) = [each for each in made.findings if each.topic == "straggler"]
    assert "steps around it" not in found.why


def stretch(call, *, cpu, file="train.py", function="main"):
    """Return a stack from 20 to 80 ms with `cpu` seconds of its thread's CPU time."""
    of = evidence((20, 60, call))
    made = [
        replace(each, frames=(Frame(function, file, 5),), cpu_seconds=cpu, run_queue_seconds=0.0)
        for each in of.stretches
    ]
    return replace(of, stretches=tuple(made))


def test_a_wait_in_subprocess_is_a_wait_for_another_program():
    """A wait below a frame of `subprocess` is a wait for another program, regardless of what calls it."""
    frames = (
        Frame("Popen._try_wait", "subprocess.py", 1900),
        Frame("run", "subprocess.py", 1),
        Frame("pack", "train.py", 5),
    )
    of = evidence((20, 60, "os.waitpid"))
    stretches = tuple(replace(each, frames=frames) for each in of.stretches)
    made = report(
        spans(0, ("window", "step", 0, 100, None), ("region", "pack", 20, 60, None)),
        evidence=[replace(of, stretches=stretches)],
    )
    (found,) = [each for each in made.findings if each.start is not None]
    assert (found.topic, found.text) == ("io", "rank 0 waited 60 ms for another program in `pack`")


def test_a_thread_without_a_cpu():
    """The thread of rank 0 is ready to run without a CPU for 75% of its time. The finding gives
    that as the reason for being late.
    """
    of = evidence((20, 60, "torch.mm"))
    stretches = tuple(replace(each, cpu_seconds=0.015, run_queue_seconds=0.045) for each in of.stretches)
    made = report(
        spans(0, ("window", "actor", 0, 100, "actor"), ("region", "pack", 20, 60, "actor")),
        spans(1, ("window", "actor", 0, 100, "actor"), ("region", "pack", 20, 10, "actor")),
        evidence=[replace(of, stretches=stretches)],
    )
    (found,) = [each for each in made.findings if each.topic == "straggler"]
    assert found.why.endswith("75% of the time the thread was ready to run and had no CPU")
    assert found.advice.startswith("give it CPUs of its own")


def test_ranks_that_all_lack_cpus_need_other_advice():
    """Both ranks wait 20 ms for a CPU, so that does not explain why one of them takes 30 ms longer."""
    made = report(
        spans(0, ("window", "actor", 0, 100, "actor"), ("region", "pack", 20, 60, "actor")),
        spans(1, ("window", "actor", 0, 100, "actor"), ("region", "pack", 20, 30, "actor")),
        evidence=[
            replace(
                of,
                stretches=tuple(
                    replace(each, cpu_seconds=0.01, run_queue_seconds=0.02) for each in of.stretches
                ),
            )
            for of in (
                evidence((20, 60, "torch.mm")),
                replace(evidence((20, 30, "torch.mm")), rank=1, pid=101),
            )
        ],
    )
    (found,) = [each for each in made.findings if each.topic == "straggler"]
    assert not found.advice.startswith("give it CPUs of its own")


@pytest.mark.parametrize(("cpu", "topics"), [(0.001, ["lock"]), (0.05, [])])
def test_a_with_block_that_cannot_be_entered(cpu, topics):
    """A thread in `__enter__` that uses no CPU waits for a lock, regardless of the lock's name."""
    made = report(
        spans(0, ("window", "step", 0, 100, None), ("region", "log", 20, 60, None)),
        evidence=[stretch("self.mutex.__enter__", cpu=cpu)],
    )
    assert [topic for topic, *_ in causes(made)] == topics


@pytest.mark.parametrize(
    "call", ["self.meta.get", "', '.join", "torch.select", "self.buffer.read", "rows.send"]
)
@pytest.mark.parametrize(("cpu", "waits"), [(0.001, True), (0.05, False), (None, False)])
def test_a_call_that_uses_the_cpu_is_no_wait(call, cpu, waits):
    """Calls with names like `get`, `join` or `send` are waits only if the thread used little CPU time."""
    made = report(
        spans(0, ("window", "step", 0, 100, None), ("region", "log", 20, 60, None)),
        evidence=[stretch(call, cpu=cpu)],
    )
    assert bool(causes(made)) == waits


@pytest.mark.parametrize("function", ["Scorer.loads.<locals>.<listcomp>", "Lines.read", "Lock.wait", "poll"])
@pytest.mark.parametrize(
    "file",
    ["copy.py", "dataloader.py", "serialization.py", "reduction.py", "client.py", "queue.py", "threading.py"],
)
def test_the_job_may_have_files_named_like_modules(file, function):
    """Functions of the job's own files are not waits, even if file and function are named like
    those of Python's library.
    """
    of = stretch(None, cpu=0.001)
    frames = (Frame(function, file, 5, own=True), Frame("main", "train.py", 7, own=True))
    made = report(
        spans(0, ("window", "step", 0, 100, None), ("region", "score", 20, 60, None)),
        evidence=[replace(of, stretches=[replace(each, frames=frames) for each in of.stretches])],
    )
    assert causes(made) == []


@pytest.mark.parametrize("call", ["self.block", "deadlock", "self.condition", "unlock"])
def test_a_name_that_contains_a_lock_is_none(call):
    made = report(
        spans(0, ("window", "step", 0, 100, None), ("region", "log", 20, 60, None)),
        evidence=[stretch(call, cpu=0.001)],
    )
    assert causes(made) == []


@pytest.mark.parametrize(
    ("call", "assumption"),
    [
        ("copy.deepcopy", "nothing is copied"),
        ("torch.serialization.dumps", "nothing is serialised"),
        ("file.write", "this runs concurrently with the step"),
    ],
)
def test_work_is_not_assumed_to_be_a_wait(call, assumption):
    made = report(
        spans(0, ("window", "step", 0, 100, None), ("region", "log", 20, 60, None)),
        evidence=[stretch(call, cpu=0.06)],
    )
    assert [each.assumption for each in made.findings if each.start is not None] == [assumption]


@pytest.mark.parametrize(("cpu", "how"), [(0.001, "pool of threads"), (0.06, "pool of processes")])
def test_calls_that_compute_need_processes(cpu, how):
    """Coroutines and threads that compute run one after another, so the advice is a pool of processes."""
    calls = [("region", "score", at, 15, None) for at in range(20, 80, 15)]
    made = report(
        spans(0, ("window", "step", 0, 100, None), *calls),
        evidence=[stretch("time.sleep" if cpu < 0.01 else "re.findall", cpu=cpu)],
    )
    (found,) = [each for each in made.findings if each.topic == "serial"]
    assert how in found.advice


@pytest.mark.parametrize(("module", "topics"), [("client.py", ["serial"]), ("distributed_c10d.py", [])])
def test_calls_that_wait_for_other_ranks_are_not_serial(module, topics):
    """Micro-batches that end in a collective wait for the other ranks: at the same time they would do so too."""
    calls = [("region", "backward", at, 15, None) for at in range(20, 80, 15)]
    of = stretch("work.wait", cpu=0.001)
    frames = (Frame("reduce", module, 9), Frame("main", "train.py", 5, own=True))
    made = report(
        spans(0, ("window", "step", 0, 100, None), *calls),
        evidence=[replace(of, stretches=[replace(each, frames=frames) for each in of.stretches])],
    )
    assert [topic for topic, *_ in causes(made) if topic == "serial"] == topics


@pytest.mark.parametrize("call", ["file.read", "self._log_file.write", "f.readlines", "os.write"])
def test_a_file_in_the_page_cache(call):
    """The kernel copies a file in the page cache with CPU time. The finding says that the rank read
    or wrote, not that it waited.
    """
    made = report(
        spans(0, ("window", "step", 0, 100, None), ("region", "log", 20, 60, None)),
        evidence=[stretch(call, cpu=0.055)],
    )
    (found,) = [each for each in made.findings if each.start is not None]
    assert (found.topic, found.text) == ("io", "rank 0 read or wrote files for 60 ms in `log`")


def test_a_wait_for_another_thread_is_not_idle():
    """The thread waits for another thread whose work is unknown. The finding does not say that the
    process was idle.
    """
    made = report(
        spans(0, ("window", "step", 0, 100, None), ("region", "log", 20, 60, None)),
        evidence=[stretch("waiter.acquire", cpu=0.0, file="threading.py", function="Condition.wait")],
    )
    (found,) = [each for each in made.findings if each.start is not None]
    assert (
        found.text == "rank 0 waited 60 ms for another thread or process, a coroutine or a timeout, in `log`"
    )


def test_a_region_around_a_collective_is_not_counted_as_a_wait():
    """Both ranks compute for 20 ms in `update` before its all-reduce; rank 1 enters 40 ms later.
    Only rank 0 has slack.
    """

    def rank(number, late):
        return [
            spans(number, ("window", "actor", 0, 100, "actor"), ("region", "load", 0, late, "actor"), ("region", "update", late, 100 - late, "actor")),
            trace(number, ("thread", "user_annotation", "gloo:all_reduce", 20 + late, 80 - late), world=2),
        ]  # fmt: skip

    reported = manifest(*(window(number, end=100) for number in range(2)))
    made = report(*rank(0, 10), *rank(1, 50), manifests=[reported])
    assert {each.process: round(1e3 * each.seconds) for each in made.slack} == {
        "actor rank 0": 40,
        "actor rank 1": 0,
    }
    assert causes(made)[0] == ("straggler", "actor rank 1", "load", 40)


def waits(*regions, other, call):
    """Return why rank 1 is a straggler, by region.

    Rank 1 is in `regions`, each (name, start, milliseconds), and rank 0 in `other`. Both end an
    all-reduce at `call`.
    """

    def rank(number, those, came):
        return [
            spans(number, ("window", "actor", 0, ends[number], "actor"), *(("region", *each, "actor") for each in those)),
            trace(number, ("thread", "user_annotation", "gloo:all_reduce", came, call - came), world=2),
        ]  # fmt: skip

    ends = [max(call, *(begin + length for _, begin, length in those)) for those in (other, regions)]
    early, late = max(begin + length for _, begin, length in other if begin < call), call - 5
    reported = manifest(*(window(number, end=ends[number]) for number in range(2)))
    made = report(*rank(0, other, early), *rank(1, regions, late), manifests=[reported])
    return {each.region: each.why for each in made.findings if each.topic == "straggler"}


def test_a_region_after_the_last_collective_keeps_no_rank_waiting():
    """Rank 0 waited 20 ms for rank 1, which was longer in `forward` before the collective.
    `optimizer` comes after it and has no wait.
    """
    why = waits(
        ("forward", 0, 35), ("optimizer", 40, 60),
        other=[("forward", 0, 15), ("optimizer", 40, 20)], call=40,
    )  # fmt: skip
    assert why["forward"].endswith("actor rank 0 waited 20 ms for it")
    assert "waited" not in why["optimizer"]


def test_a_wait_is_named_by_one_finding():
    """Of the 40 ms that rank 0 waited, 25 ms belong to `forward` and 15 ms to `loss`."""
    why = waits(
        ("forward", 0, 35), ("loss", 35, 25),
        other=[("forward", 0, 10), ("loss", 10, 10)], call=65,
    )  # fmt: skip
    assert why["forward"].endswith("actor rank 0 waited 25 ms for it")
    assert why["loss"].endswith("actor rank 0 waited 15 ms for it")


@pytest.mark.parametrize(("failed", "topics"), [(0, ["serial"]), (3, [])])
def test_retries_of_a_failed_call_are_not_reported_as_serial(failed, topics):
    """Four calls of 20 ms follow one another. If each but the last one raised, they are retries and
    not serial work.
    """
    made = spans(
        0,
        ("window", "step", 0, 100, None),
        *(("region", "call_reward", 20 * at, 20, None) for at in range(4)),
    )
    places = [None, *range(4)]
    made.slices.args = [
        json.dumps({"error": True} if at is not None and at < failed else {}).encode() for at in places
    ]
    assert [topic for topic, *_ in causes(report(made))] == topics


@pytest.mark.parametrize(("called", "advice"), [("queues.py", "its worker processes are too slow"), ("fetch.py", "load ahead")])  # fmt: skip
def test_a_loader_with_workers_needs_other_advice(called, advice):
    """Torch's loader waits in a queue for its workers. Without workers it fetches the samples itself."""
    files = ("selectors.py", called, "dataloader.py", "train.py")
    of = evidence((20, 60, "self._selector.poll"))
    stacks = [replace(each, frames=tuple(Frame("f", file, 5) for file in files)) for each in of.stretches]
    for name in ("micro_batch", "next_batch"):
        made = report(
            spans(0, ("window", "step", 0, 100, None), ("region", name, 20, 60, None)),
            evidence=[replace(of, stretches=tuple(stacks))],
        )
        (found,) = [each for each in made.findings if each.topic == "data"]
        assert found.advice.startswith(advice)


def test_stacks_between_short_pauses_of_the_collector_count():
    """The collector pauses the region every 20 ms, so each piece of the region is shorter than the
    time between two samples.
    """
    at = (7, 2, None)
    pauses = [
        Collection(*at, T0 + start * MS, T0 + (start + 5) * MS, 0.005, 1, 2, 0)
        for start in range(20, 400, 20)
    ]
    made = report(
        spans(0, ("window", "step", 0, 400, None), ("region", "load_batch", 0, 400, None)),
        evidence=[replace(evidence((0, 400, "parse")), collections=tuple(pauses))],
    )
    (found,) = [each for each in made.findings if each.topic == "data"]
    assert found.why == "its name says so; its stacks: 100% in parse in main (train.py:5)"


def test_memory_pressure():
    """The allocator calls the CUDA driver in `forward` three times. Two threads do so at once for 5
    ms, which count once.
    """
    calls = [("cudaMalloc", 10, 20), ("cudaFree", 40, 10), ("cudaMalloc", 45, 10), ("cudaMallocAsync", 60, 5)]
    made = report(
        spans(0, ("window", "actor", 0, 100, "actor"), ("region", "forward", 0, 80, "actor")),
        trace(0, *(("thread" if number != 2 else "other", "cuda_runtime", *call) for number, call in enumerate(calls))),
        manifests=[manifest(window())],
    )  # fmt: skip
    assert causes(made) == [("memory", "actor rank 0", "forward", 35)]
    (found,) = [each for each in made.findings if each.topic == "memory"]
    assert found.saves == 0.035


@pytest.mark.parametrize(("kind", "found"), [("rank", ["data"]), ("engine", [])])
def test_an_engine_that_picks_its_next_batch_loads_no_data(kind, found):
    """SGLang's annotation `scheduler.get_next_batch` has a name like that of a data loader. Only a
    rank's region of that name is data.
    """
    origin = Origin(kind, "step-000002/a/rank-0.trace.json.gz", "rollout", 0, 0, "h", None)
    regions = [
        ("thread", "region", "scheduler.event_loop", 0, 100),
        ("thread", "region", "scheduler.get_next_batch", 10, 60),
    ]
    step = ("iterations", "iteration", "step[DECODE bs=1]", 0, 100)
    made = report(source(origin, *regions, step), manifests=[manifest(engines=[engine_entry()])])
    assert [topic for topic, *_ in causes(made)] == found


def test_what_another_finding_explains_is_no_second_time_of_a_slow_rank():
    """Rank 1 is in `forward` for 60 ms longer, and collects garbage for 60 ms of its 100 ms there. The
    remaining 40 ms are those of rank 0.
    """
    pause = Collection(7, 2, None, T0 + 20 * MS, T0 + 80 * MS, 0.06, 1, 2, 0)
    made = report(
        *(
            spans(
                rank, ("window", "actor", 0, 120, "actor"), ("region", "forward", 0, 40 + 60 * rank, "actor")
            )
            for rank in range(2)
        ),
        evidence=[replace(evidence(), rank=1, pid=101, collections=(pause,))],
    )
    assert causes(made) == [("gc", "actor rank 1", "forward", 60)]


def test_the_finding_with_the_largest_gain_comes_first():
    """Rank 0 waits 2.5 s for its data, and rank 1 would be the last one to meet 0.3 s earlier. The checkpoint of
    both ranks takes 2 s, and saves them.
    """

    def rank(number, data):
        return [
            spans(number, ("window", "actor", 0, 10_000, "actor"), ("region", "load_batch", 0, data, "actor"), ("region", "forward", data, 5000 - number * 300 - data, "actor"), ("region", "save_checkpoint", 6000, 2000, "actor")),
            trace(number, ("thread", "user_annotation", "gloo:all_reduce", 5000 - number * 300, 500 + number * 300), world=2),
        ]  # fmt: skip

    reported = manifest(*(window(number, end=10_000) for number in range(2)))
    made = report(*rank(0, 2500), *rank(1, 0), manifests=[reported])
    assert [(each.topic, round(each.seconds, 2), each.saves and round(each.saves, 2)) for each in made.findings if each.start is not None] == [
        ("checkpoint", 2.0, 2.0),
        ("overlap", 0.5, 0.5),
        ("data", 2.5, 0.3),
    ]  # fmt: skip


def test_ranks_meet_in_their_collective_and_not_when_the_last_one_enters_its_region():
    """Both ranks compute until they enter the all-reduce at 100 ms. Rank 1 enters the region around it 50 ms later than rank 0,
    which does not wait for that. Its `backward` is longer by as much, so that neither would make the step shorter.
    """

    def rank(number, load):
        return [
            spans(number, ("window", "actor", 0, 120, "actor"), ("region", "load", 0, load, "actor"), ("region", "backward", load, 115 - load, "actor")),
            trace(number, ("thread", "user_annotation", "gloo:all_reduce", 100 - number, 15 + number), world=2),
        ]  # fmt: skip

    made = report(*rank(0, 20), *rank(1, 70), manifests=[manifest(*(window(n, end=120) for n in range(2)))])
    assert [each for each in causes(made) if each[0] == "straggler"] == []
    assert [(each.process, each.seconds) for each in made.slack] == [
        ("actor rank 1", 0.001),
        ("actor rank 0", 0.0),
    ]
