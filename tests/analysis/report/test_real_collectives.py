"""Jobs of real ranks over gloo, one of which is late by a known time.

The report says how long each other rank waited, inside which collective and for which rank, or it
names no rank. Each rank notes when it entered and left every call, by the machine's clock; the
report is compared with these notes.
"""

from __future__ import annotations

import io
import json
import os
import re
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest
from rich.console import Console
from warm import Warm

from stepprof.analysis.report.analyse import analyse
from stepprof.analysis.report.terminal import print_report
from stepprof.analysis.timeline.find import find
from stepprof.run.manifest import read_step
from stepprof.run.runs import list_runs

pytestmark = pytest.mark.torch

LATE = 0.2
"""Delay of the late rank before a call, in seconds."""
CLOSE = 0.1
"""Permitted difference between the report and a rank's measurement, not counting the time that its
threads waited for a processor.
"""
NAMED = re.compile(r" for actor rank (\d+)")
LAST = re.compile(r"actor rank (\d+) was the last")

STARVED = """
import os
def starved():
    '''How long the threads of this rank have waited for a processor: between a note and its call, say.'''
    nanoseconds = 0
    for task in os.listdir("/proc/self/task"):
        try:
            with open(f"/proc/self/task/{task}/schedstat") as file:
                nanoseconds += int(file.read().split()[1])
        except OSError:  # it has ended
            pass
    return nanoseconds / 1e9
"""

JOB = (
    STARVED
    + """
import json, os, sys, time
import torch, torch.distributed as dist, stepprof

LATE = float(os.environ["LATE"])
R, W = (int(os.environ[name]) for name in ("RANK", "WORLD_SIZE"))
if "STORE" in os.environ:
    dist.init_process_group("gloo", init_method="file://" + os.environ["STORE"], rank=R, world_size=W)
else:
    dist.init_process_group("gloo")

def tensor(count=1):
    return torch.ones(4 * count)

def gathered():
    return [tensor() for _ in range(W)]

def awaited(work):
    time.sleep(0.01)
    with stepprof.region(f"{current}: await"):
        work.wait()

class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layer, self.norm = torch.nn.Linear(8, 8), torch.nn.BatchNorm1d(8)
    def forward(self, x):
        return self.norm(self.layer(x))

model = torch.nn.parallel.DistributedDataParallel(Model())

synchronising = {
    "all_reduce": lambda: dist.all_reduce(tensor()),
    "all_reduce async": lambda: awaited(dist.all_reduce(tensor(), async_op=True)),
    "all_gather": lambda: dist.all_gather(gathered(), tensor()),
    "all_gather_into_tensor": lambda: dist.all_gather_into_tensor(tensor(W), tensor()),
    "all_gather_into_tensor async": lambda: awaited(dist.all_gather_into_tensor(tensor(W), tensor(), async_op=True)),
    "reduce_scatter_tensor": lambda: dist.reduce_scatter_tensor(tensor(), tensor(W)),
    "all_to_all": lambda: dist.all_to_all(gathered(), gathered()),
    "all_to_all_single": lambda: dist.all_to_all_single(tensor(W), tensor(W)),
    "barrier": lambda: dist.barrier(),
    "ddp": lambda: model(torch.ones(4, 8)).sum().backward(),
}
rooted = {
    f"{kind} {root}": (lambda call=call, root=root: call(root))
    for root in range(W)
    for kind, call in {
        "broadcast": lambda root: dist.broadcast(tensor(), root),
        "reduce": lambda root: dist.reduce(tensor(), root),
        "gather": lambda root: dist.gather(tensor(), gathered() if R == root else None, dst=root),
        "scatter": lambda root: dist.scatter(tensor(), gathered() if R == root else None, src=root),
    }.items()
}
others = {
    "broadcast 0 async": lambda: awaited(dist.broadcast(tensor(), 0, async_op=True)),
    "broadcast 1 async": lambda: awaited(dist.broadcast(tensor(), 1, async_op=True)),
    "all_gather_object": lambda: dist.all_gather_object([None] * W, {"rank": R}),
    "broadcast_object_list 0": lambda: dist.broadcast_object_list([{"rank": R}], src=0),
    "broadcast_object_list 1": lambda: dist.broadcast_object_list([{"rank": R}], src=1),
}
point_to_point = {
    "send": lambda: dist.send(tensor(), 1) if R == 0 else dist.recv(tensor(), 0),
    "isend": lambda: awaited(dist.isend(tensor(), 0) if R == 1 else dist.irecv(tensor(), 1)),
    "batch": lambda: [work.wait() for work in dist.batch_isend_irecv(
        [dist.P2POp(dist.isend, tensor(), 1 - R), dist.P2POp(dist.irecv, tensor(), 1 - R)]
    )],
}
if os.environ["CALLS"] == "groups":
    pairs = [dist.new_group(ranks) for ranks in ([0, 1], [2, 3])][R // 2]
    across = [dist.new_group(ranks) for ranks in ([0, 2], [1, 3])][R % 2]
groups = {
    "pairs": lambda: dist.all_reduce(tensor(), group=pairs),
    "across": lambda: dist.all_reduce(tensor(), group=across),
    "chain": lambda: [dist.all_reduce(tensor(), group=group) for group in (pairs, across, None, pairs)],
    "all": lambda: dist.all_reduce(tensor()),
}
calls = {name: call for which in os.environ["CALLS"].split() for name, call in globals()[which].items()}
truth, store = {}, dist.FileStore("meeting", W)

def meet(where):
    # not a collective: what one call leaves of a rank's lateness is not of the next one
    store.set(f"{where} {R}", "")
    store.wait([f"{where} {rank}" for rank in range(W)])

def step(number, late):
    global current
    if os.environ["CALLS"] != "groups":
        with stepprof.region("settle"):  # the profiler started later on one rank: the first collective shows that, and no later one
            dist.barrier()
    for name, call in calls.items():
        current = name
        meet(f"{number} {name}")
        waited = starved()
        if late == R:
            with stepprof.region("late"):
                time.sleep(LATE)
        with stepprof.region(name):
            entered = time.monotonic()
            call()
            left = time.monotonic()
        truth.setdefault(number, {})[name] = (entered, left, starved() - waited)

stepprof.init({"steps": f"2-{W + 1}", "output_dir": "runs", "ranks": "all"})
for number in range(1, W + 2):  # the first one sets up the connections
    with stepprof.profile_step(number, role="actor"):
        step(number, late=number - 2)
with open(f"truth-{R}.json", "w") as file:
    json.dump(truth, file)
dist.barrier()
stepprof.shutdown()
time.sleep(0.2)  # torch 2.13 hangs where gloo's thread still lets go of its last work: that wants the GIL, which destroying the group holds
os._exit(0)
"""
)

ENVIRON = {"LATE": str(LATE), "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"}


@dataclass(frozen=True)
class Job:
    """A finished job: its run, and the times at which each rank entered and left each call. It also
    has how long each rank waited for a processor.
    """

    run: Path
    truth: list[dict[str, dict[str, tuple[float, float, float]]]]

    @classmethod
    def of(cls, folder: Path) -> Job:
        """Read the files of a job from a folder."""
        (run,) = list_runs(folder / "runs")
        files = sorted(folder.glob("truth-*.json"))
        return cls(run, [json.loads(file.read_text()) for file in files])

    def stood(self, step: int, name: str) -> list[float]:
        """Return how long each rank was in a call."""
        return [left - entered for entered, left, _ in (rank[str(step)][name] for rank in self.truth)]

    def close(self, step: int, *names: str) -> float:
        """Return the permitted difference between the report and the ranks' own measurements in these
        calls.
        """
        return CLOSE + sum(rank[str(step)][name][2] for rank in self.truth for name in names)

    def quiet(self, step: int, name: str) -> bool:
        """Return whether the late rank entered last: no rank waited for a processor as long as that
        rank was late.
        """
        return self.close(step, name) < LATE


def report_of(run: Path, step: int = 2):
    """Return the report of a step."""
    return analyse(find([run], output_dir=run.parent, step=step), workers=1)


def printed(report) -> str:
    """Return what the terminal prints of a report, with single spaces between words."""
    console = Console(file=io.StringIO(), width=10_000)
    print_report(report, console)
    return " ".join(console.file.getvalue().split())


def ranks_of(times) -> dict[int, float]:
    """Return the seconds by rank."""
    return {int(time.label.rpartition(" ")[2]): time.seconds for time in times}


def waits_in(report) -> dict[str, tuple[int, dict[int, float]]]:
    """Return for each region which ranks the others waited for inside its collectives, and how long."""
    rows = [row for row in report.skew if row.basis == "collectives"]
    assert all(row.region is not None for row in rows)
    # on a busy machine, an asynchronous call may begin on its own thread only in the region that
    # awaits it
    regions = [row.region.removesuffix(": await") for row in rows]
    assert len(regions) == len(set(regions))
    waits = [(int(row.straggler.rpartition(" ")[2]), ranks_of(row.waited)) for row in rows]
    return dict(zip(regions, waits, strict=True))


def causes_of(report, rank: int) -> dict[str, float]:
    """Return the causes of a rank's time in the step."""
    (row,) = (row for row in report.idle if row.label == f"actor rank {rank}")
    assert row.busy + sum(row.causes.values()) == pytest.approx(row.wall, abs=1e-6)
    return {"busy": row.busy, **row.causes}


def named_in(report, starved: float = 0.0) -> set[int]:
    """Return the ranks that a sentence calls slower or awaited. Short delays by a busy machine and
    the first meeting do not count, nor what the ranks waited for a processor.
    """
    said = [
        finding
        for finding in report.findings
        if (finding.seconds or 0) > 0.6 * LATE + starved and "collectives of settle" not in finding.text
    ]
    slower = [each.process for each in said if each.topic == "straggler" and each.process is not None]
    waited_for = {int(rank) for each in said for rank in NAMED.findall(each.text)}
    return waited_for | {int(label.rpartition(" ")[2]) for label in slower}


def start_ranks(warm: Warm, count: int, script: str, **env: str):
    """Start the ranks of a job; they meet in a file store."""
    address = {
        **ENVIRON,
        "WORLD_SIZE": str(count),
        "STORE": str(warm.folder / "store"),
        "STEPPROF_RUN_ID": "job",
    }
    return [
        warm.start(script, env={**address, "RANK": str(rank), "LOCAL_RANK": str(rank), **env})
        for rank in range(count)
    ]


@pytest.fixture(scope="module")
def two_ranks(tmp_path_factory) -> Job:
    """Run every call on two ranks under torchrun. Rank 0 is late in step 2, rank 1 in step 3."""
    folder = tmp_path_factory.mktemp("two")
    (folder / "job.py").write_text(JOB)
    ran = subprocess.run(
        [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2", "job.py"],
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=250,
        check=False,
        env={**os.environ, **ENVIRON, "CALLS": "synchronising rooted others point_to_point"},
    )
    assert ran.returncode == 0, ran.stderr
    return Job.of(folder)


@pytest.fixture(scope="module")
def three_ranks(tmp_path_factory, torch_server) -> Job:
    """Run the calls with a root on three ranks. Rank 0 is late in step 2, rank 1 in step 3, rank 2
    in step 4.
    """
    warm = Warm(torch_server, tmp_path_factory.mktemp("three"))
    for rank in start_ranks(warm, 3, JOB, CALLS="rooted"):
        rank.wait().check()
    return Job.of(warm.folder)


@pytest.fixture(scope="module")
def four_ranks(tmp_path_factory, torch_server) -> Job:
    """Run four ranks whose groups cross. Rank 0 is late in step 2, rank 1 in step 3, and so on."""
    warm = Warm(torch_server, tmp_path_factory.mktemp("four"))
    for rank in start_ranks(warm, 4, JOB, CALLS="groups"):
        rank.wait().check()
    return Job.of(warm.folder)


@pytest.mark.parametrize("late", [0, 1])
class TestTwoRanks:
    def test_each_kind(self, two_ranks, late):
        """In every collective, with any root, the other rank waited for the late one, in the region
        of the call.

        The wait is as long as the late rank slept, and no longer than the waiting rank measured. On
        a busy machine a rank measures more, while its threads are not scheduled. A rank that waits
        long for a processor may enter last itself.
        """
        waits = waits_in(report_of(two_ranks.run, late + 2))
        stood = {name: two_ranks.stood(late + 2, name) for name in two_ranks.truth[0]["2"]}
        waits["ddp"] = waits.pop("DistributedDataParallel.forward")  # torch's annotation is the innermost
        for name in ("send", "isend", "batch"):
            assert name not in waits
            del stood[name]
        quiet = {name: seconds for name, seconds in stood.items() if two_ranks.quiet(late + 2, name)}
        assert {name: waits[name][0] for name in quiet} == dict.fromkeys(quiet, late)
        for name, seconds in quiet.items():
            ((rank, waited),) = waits[name][1].items()
            close = two_ranks.close(late + 2, name)
            assert rank == 1 - late
            assert LATE - close < waited < seconds[rank] + close, name
            assert seconds[rank] > LATE - close / 2

    def test_sends_and_receives_are_not_matched(self, two_ranks, late):
        """Sends and receives are not matched: the report gives the time of each rank in them and
        names no rank.
        """
        report = report_of(two_ranks.run, late + 2)
        rows = {row.region: row for row in report.unmatched}
        assert set(rows) == {"send", "isend", "batch"}
        for name, row in rows.items():
            stood = two_ranks.stood(late + 2, name)
            close = two_ranks.close(late + 2, name)
            assert ranks_of(row.spent) == {rank: pytest.approx(stood[rank], abs=close) for rank in (0, 1)}

    def test_sums_of_a_rank_are_those_of_its_calls(self, two_ranks, late):
        """Waiting is not work: the sums of a rank equal the times of its calls. The late rank
        hardly waited.
        """
        report = report_of(two_ranks.run, late + 2)
        stood = {name: two_ranks.stood(late + 2, name) for name in two_ranks.truth[0]["2"]}
        unmatched = ("send", "isend", "batch")
        between = sum(stood.pop(name)[1 - late] for name in unmatched)
        matched = sum(seconds[1 - late] for seconds in stood.values())
        waited, was_late = causes_of(report, 1 - late), causes_of(report, late)
        assert 0.8 * LATE * len(stood) < waited["collective"] < 1.1 * matched + LATE
        close = two_ranks.close(late + 2, *unmatched)
        assert waited["collective_unmatched"] == pytest.approx(between, abs=close)
        assert was_late.get("collective", 0) < 0.1 * matched
        assert waited["busy"] < 0.25 * matched
        assert was_late["busy"] < 0.25 * matched  # it slept

    def test_sentences_name_only_the_late_rank(self, two_ranks, late):
        """The sentences name the late rank and no other rank. The terminal prints the same sentences."""
        report = report_of(two_ranks.run, late + 2)
        starved = two_ranks.close(late + 2, *two_ranks.truth[0]["2"]) - CLOSE
        assert named_in(report, starved) <= {late}
        assert late in named_in(report)
        text = printed(report)
        for finding in report.findings:
            assert finding.text in text


@pytest.mark.parametrize("late", [0, 1, 2])
class TestThreeRanks:
    def test_each_kind_with_each_root(self, three_ranks, late):
        """In a call with a root only some ranks wait for the late one, each as long as it measured.
        No other rank is named.
        """
        report = report_of(three_ranks.run, late + 2)
        waits = waits_in(report)
        for name in three_ranks.truth[0]["2"]:
            if not three_ranks.quiet(late + 2, name):
                continue
            stood = three_ranks.stood(late + 2, name)
            straggler, waited = waits[name]
            close = three_ranks.close(late + 2, name)
            assert (name, straggler) == (name, late)
            assert waited == {
                rank: pytest.approx(seconds, abs=close) for rank, seconds in enumerate(stood) if rank != late
            }
        starved = three_ranks.close(late + 2, *three_ranks.truth[0]["2"]) - CLOSE
        assert named_in(report, starved) <= {late}
        assert late in named_in(report)
        # a rank that only waited is not called the last one either
        said = [finding for finding in report.findings if finding.topic == "straggler"]
        last = {
            rank
            for finding in said
            if finding.seconds > LATE / 4 + starved
            for rank in LAST.findall(finding.text)
        }
        assert last <= {str(late)}


@pytest.mark.parametrize("late", [0, 1, 2, 3])
class TestGroupsThatCross:
    def test_only_ranks_that_others_waited_for_are_named(self, four_ranks, late):
        """gloo's traces do not state the group of a call. A rank may stay unnamed; if one is named,
        the other ranks really waited for it.
        """
        pair, across = late ^ 1, late ^ 2
        waited_for = {(pair, late), (across, late), (across ^ 1, pair)}
        everybody = {(rank, late) for rank in range(4)}
        allowed = {"pairs": {(pair, late)}, "across": {(across, late)}, "chain": waited_for, "all": everybody}
        report = report_of(four_ranks.run, late + 2)
        for region, (straggler, waited) in waits_in(report).items():
            for rank, seconds in waited.items():
                if seconds > LATE / 4:
                    assert (region, rank, straggler) in {(region, *each) for each in allowed[region]}

    def test_time_in_calls_is_waiting_or_unmatched(self, four_ranks, late):
        """The whole time of a rank in its calls is either waiting or unmatched."""
        report = report_of(four_ranks.run, late + 2)
        for rank in range(4):
            names = four_ranks.truth[0]["2"]
            stood = sum(four_ranks.stood(late + 2, name)[rank] for name in names)
            causes = causes_of(report, rank)
            inside = causes.get("collective", 0) + causes.get("collective_unmatched", 0)
            assert inside == pytest.approx(stood, abs=four_ranks.close(late + 2, *names))


ROUNDS = (
    STARVED
    + """
import json, os, signal, time
import torch, torch.distributed as dist, stepprof

R, LATE = int(os.environ["RANK"]), float(os.environ["LATE"])
dist.init_process_group("gloo", init_method="file://" + os.environ["STORE"], rank=R, world_size=2)
dist.all_reduce(torch.ones(4))
if os.environ.get("SLOW_START") == str(R):
    kind = torch.profiler._KinetoProfile
    start_trace = kind.start_trace
    kind.start_trace = lambda self: (time.sleep(LATE), start_trace(self))
options = json.loads(os.environ.get("OPTIONS", "{}")).get(str(R), {})
stepprof.init({"steps": "2", "output_dir": "runs", "ranks": "all", **options})
rounds, matrix = [], torch.ones(200, 200)
for number in (1, 2):
    if R == 1 and "LATE_STEP" in os.environ:
        time.sleep(LATE)
    with stepprof.profile_step(number, role="actor"):
        if "LATE_STEP" in os.environ:
            for name in ("first", "last"):
                with stepprof.region(name):
                    dist.broadcast(torch.ones(4), 0)
            continue
        if R == 1 and "HIDDEN" in os.environ:
            time.sleep(LATE)
        if "HIDDEN" in os.environ:
            with stepprof.region("hidden"):
                work = dist.all_reduce(torch.ones(4), async_op=True)
                until = time.monotonic() + LATE
                while R == 0 and time.monotonic() < until:
                    matrix @ matrix
                work.wait()
            continue
        for turn in range(3 if number == 2 else 1):
            waited = starved()
            with stepprof.region("work"):
                if R == 1 and "SLOW_START" not in os.environ:
                    time.sleep(LATE)
            if os.environ.get("KILLED") == str(R) and turn == 1:
                os.kill(os.getpid(), signal.SIGKILL)
            with stepprof.region("sync"):
                entered = time.monotonic()
                alone = False
                try:
                    dist.all_reduce(torch.ones(4))
                except RuntimeError:
                    assert "KILLED" in os.environ
                    alone = True
                rounds.append((entered, time.monotonic(), starved() - waited))
                if alone:
                    time.sleep(LATE)
                    break
with open(f"truth-{R}.json", "w") as file:
    json.dump({"2": dict(enumerate(rounds[1:]))}, file)
stepprof.shutdown()
time.sleep(0.2)
os._exit(0)
"""
)


class TestCaptures:
    def test_a_member_that_was_not_recorded(self, warm):
        """The time of the recorded rank in calls cannot be split into waiting and work. The report
        gives the total and the number of recorded members, and names no rank.
        """
        for rank in start_ranks(
            warm, 2, ROUNDS, OPTIONS=json.dumps({rank: {"ranks": "0"} for rank in (0, 1)})
        ):
            rank.wait().check()
        job = Job.of(warm.folder)
        turns = ("0", "1", "2")
        stood, close = sum(job.stood(2, turn)[0] for turn in turns), job.close(2, *turns)
        report = report_of(job.run)
        assert waits_in(report) == {}
        (row,) = report.unmatched
        assert (row.role, row.region, row.recorded, row.members) == ("actor", "sync", 1, 2)
        assert ranks_of(row.spent) == {0: pytest.approx(stood, abs=close)}
        assert causes_of(report, 0)["collective_unmatched"] == pytest.approx(stood, abs=close)
        assert "collective" not in causes_of(report, 0)
        assert "1 of 2 members were recorded" in printed(report)
        assert named_in(report) == set()

    def test_after_a_cap_no_calls_are_known(self, warm):
        """After the cap the calls of the rank are unknown, and a sentence says so. Earlier matches stay."""
        options = {0: {"max_seconds": 0.75}}  # in the middle of the second call
        for rank in start_ranks(warm, 2, ROUNDS, LATE="0.5", OPTIONS=json.dumps(options)):
            rank.wait().check()
        (run,) = list_runs(warm.folder / "runs")
        (entry,) = (window for window in read_step(run, 2)["windows"] if window["rank"] == 0)
        assert entry["capped_by"] == "max_seconds"
        recorded = (entry["end_unix_ns"] - entry["start_unix_ns"]) / 1e9
        report = report_of(run)
        causes = causes_of(report, 0)
        assert causes["not_recorded"] == pytest.approx(report.seconds - recorded, abs=CLOSE)
        assert causes["not_recorded"] > 0.5
        assert "host" not in causes
        inside = causes["collective"] + causes.get("collective_unmatched", 0)
        assert inside == pytest.approx(recorded, abs=CLOSE)  # rank 0 waits all the time
        assert causes["collective"] == pytest.approx(0.5, abs=CLOSE)
        assert waits_in(report)["sync"] == (1, {0: pytest.approx(causes["collective"], abs=0.001)})
        assert named_in(report) == {1}
        said = [finding.text for finding in report.findings if finding.topic == "coverage"]
        assert any("actor rank 0" in text and "max_seconds" in text for text in said)

    def test_a_killed_rank_is_lost_and_not_blamed(self, warm):
        """A rank that was killed while recording left no trace. It is reported as lost and its time
        as not recorded; no rank is blamed for the other rank's wait.
        """
        first, second = start_ranks(warm, 2, ROUNDS, KILLED="1")
        assert second.wait().returncode == -9
        first.wait().check()
        job = Job.of(warm.folder)
        assert {(window["rank"], window["status"]) for window in read_step(job.run, 2)["windows"]} == {
            (0, "complete"),
            (1, "lost"),
        }
        report = report_of(job.run)
        assert waits_in(report) == {}
        assert named_in(report) == set()
        turns = ("0", "1")
        stood, close = sum(job.stood(2, turn)[0] for turn in turns), job.close(2, *turns)
        assert stood > 2 * LATE - close
        assert causes_of(report, 0)["collective_unmatched"] == pytest.approx(stood, abs=close)
        assert "collective" not in causes_of(report, 0)
        assert set(causes_of(report, 1)) <= {"busy", "not_recorded", "peers", "profiler", "unknown"}
        assert causes_of(report, 1)["not_recorded"] > LATE
        said = [finding for finding in report.findings if "actor rank 1" in finding.text]
        assert "coverage" in {finding.topic for finding in said}
        assert not any(LAST.search(finding.text) for finding in report.findings)

    @pytest.mark.parametrize("slow", [0, 1])
    def test_a_profiler_that_starts_later_on_one_rank(self, warm, slow):
        """If the profiler of one rank took longer to start, the resulting wait of the other rank
        counts as `profiler`, and no rank is named.
        """
        for rank in start_ranks(warm, 2, ROUNDS, SLOW_START=str(slow)):
            rank.wait().check()
        job = Job.of(warm.folder)
        assert job.stood(2, "0")[1 - slow] > LATE - CLOSE
        report = report_of(job.run)
        assert causes_of(report, 1 - slow).get("collective", 0) < CLOSE
        assert causes_of(report, 1 - slow)["profiler"] > LATE - CLOSE
        assert all(seconds < CLOSE for _, waited in waits_in(report).values() for seconds in waited.values())

    def test_waiting_that_work_hides(self, warm):
        """While an asynchronous call runs, rank 0 computes. This time counts as work and not as waiting."""
        for rank in start_ranks(warm, 2, ROUNDS, HIDDEN="1"):
            rank.wait().check()
        report = report_of(Job.of(warm.folder).run)
        assert causes_of(report, 0)["busy"] == pytest.approx(LATE, abs=CLOSE)
        assert causes_of(report, 0).get("collective", 0) < CLOSE
        assert all(seconds < CLOSE for _, waited in waits_in(report).values() for seconds in waited.values())

    def test_a_rank_that_begins_its_step_late(self, warm):
        """Rank 1 begins its step late. Rank 0 waits for it in the first broadcast, although the
        capture of rank 1 began later.
        """
        for rank in start_ranks(warm, 2, ROUNDS, LATE_STEP="1"):
            rank.wait().check()
        report = report_of(Job.of(warm.folder).run)
        assert waits_in(report)["first"] == (1, {0: pytest.approx(LATE, abs=CLOSE)})
        assert causes_of(report, 0)["collective"] == pytest.approx(LATE, abs=CLOSE)
        assert named_in(report) == {1}
