"""The recorded step compared with the other steps of its run."""

from __future__ import annotations

import json

import pytest
import runs

from stepprof.analysis import run_windows
from stepprof.analysis.report.neighbourhood import neighbourhood
from stepprof.analysis.report.unrecorded import Unrecorded
from stepprof.cli.main import main

SECOND = 10**9
START = 1_700_000_000 * SECOND
ALL = ("rollout", "actor")


def spans(run, rank, steps, *, host="h") -> None:
    """Write consecutive windows of steps, each step as (number, {role: seconds})."""
    lines = [{"kind": "spans", "rank": rank, "host": host, "pid": 7, "run_id": "r", "world_size": 2}]
    at = START
    for step, roles in steps:
        for role, seconds in roles.items():
            length = int(seconds * SECOND)
            window = {"name": role or "step", "kind": "window", "dur": length, "thread": 1, "task": None}
            lines.append({**window, "step": step, "role": role, "start": at})
            at += length
        at += SECOND
    folder = run.path / "spans"
    folder.mkdir(exist_ok=True)
    (folder / f"rank-{rank}.000001.jsonl").write_text("".join(f"{json.dumps(line)}\n" for line in lines))


def both(rollout: float, actor: float) -> dict[str, float]:
    return {"rollout": rollout, "actor": actor}


@pytest.fixture
def run(tmp_path):
    made = runs.make_run(tmp_path)
    runs.record(made, step=3)
    return made


class TestTypical:
    def test_a_step_like_the_others(self, run) -> None:
        """The first step of the run and recorded steps are listed, but the step is not compared with them."""
        steps = [
            (0, both(60, 60)),
            (1, both(2.0, 1.0)),
            (2, both(2.2, 1.1)),
            (3, both(2.1, 1.0)),
            (4, both(2.4, 1.0)),
        ]
        spans(run, 0, steps)
        found = neighbourhood([run.path], 3)
        assert [each.step for each in found.steps] == [0, 1, 2, 3, 4]
        assert [each.recorded for each in found.steps] == [False, False, False, True, False]
        assert found.others == [1, 2, 4]
        whole, *roles = found.parts
        assert (whole.seconds, whole.median, whole.shortest, whole.longest) == pytest.approx(
            (3.1, 3.3, 3.0, 3.4)
        )
        assert [(each.role, each.typical) for each in roles] == [("rollout", True), ("actor", True)]
        assert found.text == (
            "step 3 took 3.10 s in rank 0: typical; the 3 other steps that were not recorded took 3.30 s (3.00 s to 3.40 s)"
        )

    @pytest.mark.parametrize(
        ("length", "text"),
        [
            (5.8, "typical, but longer than each of them; "),
            (5.05, "typical; "),  # by less than 2 %
            (1.2, "typical, but shorter than each of them; "),
        ],
    )
    def test_a_typical_step_at_the_edge(self, run, length, text) -> None:
        """The others vary so much that the step is typical; that no other one is as long, or as short, is said."""
        others = [3.0, 2.0, 4.0, 5.0, 1.5, 4.4]
        runs.record(run, step=6)
        spans(run, 0, [(number, {None: each}) for number, each in enumerate([*others, length, *others])])
        assert text in neighbourhood([run.path], 6).text

    def test_a_longer_step_names_its_role(self, run) -> None:
        spans(run, 0, [(number, both(2.0, 3.0 if number == 3 else 1.0)) for number in range(6)])
        found = neighbourhood([run.path], 3)
        assert [each.typical for each in found.parts] == [False, True, False]
        assert ": longer than usual; " in found.text
        assert found.text.endswith("; actor 3.00 s instead of 1.00 s")

    def test_one_long_step_makes_no_other_usual(self, run) -> None:
        """Ten times the median is longer than usual, although one other step took as long."""
        spans(run, 0, [(number, {None: 10.0 if number in (3, 12) else 1.0}) for number in range(20)])
        found = neighbourhood([run.path], 3)
        assert not found.parts[0].typical
        assert ": longer than usual, as 1 of 18 other steps; " in found.text

    def test_steps_at_a_period(self, run) -> None:
        """Steps 3, 10, 17 and 24 are long: the sentence names the period."""
        spans(run, 0, [(number, {None: 3.0 if number % 7 == 3 else 1.0}) for number in range(28)])
        assert ": longer than usual, as every 7th step; " in neighbourhood([run.path], 3).text
        spans(run, 0, [(number, {None: 3.0 if number in (3, 10) else 1.0}) for number in range(14)])
        assert ": longer than usual, as 1 of 12 other steps; " in neighbourhood([run.path], 3).text

    def test_the_first_steps_warm_the_run_up(self, run) -> None:
        """No step is compared with them, nor is the range theirs."""
        lengths = [60.0, 20.0, 5.0, *[1.0] * 10]
        runs.record(run, step=8)
        spans(run, 0, [(number, {None: length}) for number, length in enumerate(lengths)])
        found = neighbourhood([run.path], 8)
        assert found.others == [4, 5, 6, 7, 9, 10, 11, 12]
        assert "(1.00 s to 1.00 s)" in found.text

    def test_the_profiler_held_the_step_up(self, run) -> None:
        """The profiler started for 4 s between the two windows of the step: the step took 3 s."""
        spans(run, 0, [(number, both(2.0, 5.0 if number == 3 else 1.0)) for number in range(8)])
        begin = START + 4 * SECOND * 3 + 2 * SECOND
        window = {
            "host": "h", "pid": 7, "start_unix_ns": begin + 4 * SECOND, "start_seconds": 4.0,
            "end_unix_ns": None, "stall_seconds": 0.0,
        }  # fmt: skip
        found = neighbourhood([run.path], 3, unrecorded=Unrecorded.of([window], {}))
        assert found.parts[0].seconds == pytest.approx(3.0)
        assert found.text.startswith(
            "step 3 took 3.00 s in rank 0, not counting 4.00 s by profilers: typical; "
        )

    @pytest.mark.parametrize(
        ("held", "length", "typical"),
        [
            ((1.0, 2.0), 3.5, None), ((1.0, 2.0), 4.5, False), ((1.0, 2.0), 2.5, False),
            ((2.0, 1.0), 2.5, None), ((2.0, 1.0), 1.5, False), ((2.0, 1.0), 3.5, False),
        ],
    )  # fmt: skip
    def test_the_profiler_held_processes_up_for_different_times(self, run, held, length, typical) -> None:
        """By 1 s: a process may wait up to so much longer for one that was held up for longer, and less long for others after its own delay."""
        spans(run, 0, [(number, {"actor": length if number == 3 else 3.0}) for number in range(8)])
        windows = [
            {
                "host": "h", "pid": pid, "start_unix_ns": START, "start_seconds": start, "end_unix_ns": START + SECOND,
                "stall_seconds": 9.0,
            }
            for pid, start in zip((7, 8), held, strict=True)
        ]  # fmt: skip
        found = neighbourhood([run.path], 3, unrecorded=Unrecorded.of(windows, {}))
        assert [each.typical for each in found.parts] == [typical, typical]
        assert ("whether that is usual is not known" in found.text) == (typical is None)
        assert ("instead of" in found.text) == (typical is False)

    def test_profilers_held_up_what_it_waited_for(self, run) -> None:
        """In the role `actor`, the process waited for 4 s until the profiler of another one had started."""
        spans(run, 0, [(number, both(2.0, 5.0 if number == 3 else 1.0)) for number in range(8)])
        wait = START + 4 * SECOND * 3 + 7 * SECOND, -4 * SECOND
        found = neighbourhood([run.path], 3, unrecorded=Unrecorded.of([], {"h 7": [wait]}))
        assert [part.seconds for part in found.parts] == pytest.approx([3.0, 2.0, 1.0])
        assert found.text.startswith(
            "step 3 took 3.00 s in rank 0, not counting 4.00 s by profilers: typical; "
        )

    def test_a_shorter_step(self, run) -> None:
        spans(run, 0, [(number, both(2.0, 0.5 if number == 3 else 1.0)) for number in range(6)])
        found = neighbourhood([run.path], 3)
        assert ": shorter than usual; " in found.text
        assert "recording" not in found.text.partition("recorded took")[2]

    def test_a_step_is_compared_with_steps_of_the_same_roles(self, run) -> None:
        """Steps without a rollout are not compared with a step that has one; the sentence counts them."""
        steps = [(number, both(8.0, 1.0) if number % 3 == 0 else {"actor": 1.0}) for number in range(16)]
        spans(run, 0, steps)
        found = neighbourhood([run.path], 3)
        assert found.others == [6, 9, 12, 15]
        assert found.parts[0].typical
        assert found.text.endswith("; 10 of 14 other steps have no rollout")
        runs.record(run, step=4)
        found = neighbourhood([run.path], 4)
        assert "; it has no rollout, as 9 of 13 other steps" in found.text

    def test_too_few_steps(self, run) -> None:
        spans(run, 0, [(number, both(2.0, 1.0)) for number in range(1, 5)])
        found = neighbourhood([run.path], 3)
        assert found.parts == []
        assert "too few other steps to compare it with: 2 without recording" in found.text

    def test_a_number_of_several_steps(self, run) -> None:
        """The step number was used twice. Which of the two steps was recorded is unknown, so there
        is no comparison.
        """
        spans(run, 0, [(number, {None: 1.0}) for number in (1, 2, 3, 4, 1, 2, 3, 4)])
        assert neighbourhood([run.path], 3) is None

    def test_no_spans(self, run) -> None:
        assert neighbourhood([run.path], 3) is None

    def test_the_driver_has_the_steps(self, run) -> None:
        spans(run, 0, [(number, {"actor": 1.0}) for number in range(6)])
        spans(run, "driver", [(number, {"step": 5.0}) for number in range(6)])
        assert neighbourhood([run.path], 3).process == "driver"

    def test_the_preferred_rank(self, run) -> None:
        """Without a driver, the steps are those of the preferred rank; of the lowest one if it has no spans."""
        for rank in (0, 1, 2, 3, 4):
            spans(run, rank, [(number, both(2.0, 1.0 + rank)) for number in range(6)])
        assert neighbourhood([run.path], 3, [4, 1]).process == "rank 4"
        assert neighbourhood([run.path], 3, [7]).process == "rank 0"
        spans(run, "driver", [(number, both(2.0, 1.0)) for number in range(6)])
        assert neighbourhood([run.path], 3, [4]).process == "driver"

    def test_roles_that_nest_or_overlap_count_once(self, run) -> None:
        """Two windows of a role at the same time count once."""
        spans(run, 0, [(number, {"actor": 1.0}) for number in range(6)])
        file = run.path / "spans" / "rank-0.000001.jsonl"
        lines = [json.loads(line) for line in file.read_text().splitlines()]
        file.write_text("".join(f"{json.dumps(line)}\n" for line in [*lines, *lines[1:]]))
        found = neighbourhood([run.path], 3)
        assert [each.roles["actor"] for each in found.steps] == [1.0] * 6


def add_regions(run, rank, regions) -> None:
    """Add regions to the spans of a rank. `regions` returns (name, seconds after the window's
    start, seconds, fields) for a step.
    """
    file = run.path / "spans" / f"rank-{rank}.000001.jsonl"
    lines = [json.loads(line) for line in file.read_text().splitlines()]
    for window in lines[1:]:
        for name, after, seconds, fields in regions(window["step"]):
            start, length = window["start"] + int(after * SECOND), int(seconds * SECOND)
            lines.append({**window, "name": name, "kind": "region", "start": start, "dur": length, **fields})
    file.write_text("".join(f"{json.dumps(line)}\n" for line in lines))


class TestRegions:
    """Steps that no role divides are divided by their regions."""

    @pytest.fixture(params=[None, "actor"])
    def role(self, request):
        return request.param

    def test_regions_take_the_place_of_roles(self, run, role) -> None:
        """The step is divided by the outermost regions of the window's thread, in the order in
        which they begin.
        """
        spans(run, 0, [(number, {role: 10.0}) for number in range(6)])
        add_regions(run, 0, lambda step: [
            ("update", 4, 8 if step == 3 else 5, {}), ("forward", 5, 2, {}), ("load", 0, 3, {}),
            ("loader", 0, 9, {"thread": 2}), ("reward", 0, 9, {"task": 1}), ("tiny", 9.99, 0.001, {}),
        ])  # fmt: skip
        found = neighbourhood([run.path], 3)
        assert [each.regions for each in found.steps] == [
            {"load": 3.0, "update": 8.0 if each.step == 3 else 5.0} for each in found.steps
        ]
        parts = {(each.role, each.region): each.typical for each in found.parts}
        assert parts == {
            **{(name, None): True for name in (None, role)},
            (None, "load"): True,
            (None, "update"): False,
        }
        assert found.text.endswith("; `update` 8.00 s instead of 5.00 s")

    def test_roles_that_divide_the_step_stay(self, run) -> None:
        spans(run, 0, [(number, both(2.0, 1.0)) for number in range(6)])
        add_regions(run, 0, lambda _: [("load", 0, 0.5, {})])
        found = neighbourhood([run.path], 3)
        assert not any(each.regions for each in found.steps)
        assert {each.region for each in found.parts} == {None}

    @pytest.mark.parametrize(("windows", "shown"), [([5], True), ([5, 6], False)])
    def test_a_loop_that_is_a_coroutine(self, run, windows, shown) -> None:
        """Its regions divide the step if no other coroutine has windows of it: regions of several overlap."""
        spans(run, 0, [(number, {None: 10.0}) for number in range(6)])
        add_regions(run, 0, lambda _: [("load", 0, 3, {"task": 5}), ("score", 3, 2, {"task": 7})])
        path = run.path / "spans" / "rank-0.000001.jsonl"
        first, *lines = map(json.loads, path.read_text().splitlines())
        opened = [{**each, "task": task} for each in lines if each["kind"] == "window" for task in windows]
        others = [each for each in lines if each["kind"] == "region"]
        path.write_text("".join(f"{json.dumps(line)}\n" for line in (first, *opened, *others)))
        found = neighbourhood([run.path], 3)
        assert [each.regions for each in found.steps] == [{"load": 3.0} if shown else {}] * 6

    def test_a_number_in_a_name_counts_the_steps(self, run) -> None:
        """`rollout_3` of step 3 is `rollout_2` of step 2. Parts that each step has are compared by their whole names."""
        spans(run, 0, [(number, {None: 10.0}) for number in range(8)])
        add_regions(run, 0, lambda step: [
            (f"rollout_{step}", 0, 5 if step == 3 else 3, {}), ("shard_0", 6, 1, {}), ("shard_1", 7, 2, {}),
        ])  # fmt: skip
        found = neighbourhood([run.path], 3)
        assert {each.region: (each.steps, each.median) for each in found.parts[1:]} == {
            "rollout_3": (6, 3.0), "shard_0": (6, 1.0), "shard_1": (6, 2.0)
        }  # fmt: skip
        assert found.text.endswith("; `rollout_3` 5.00 s instead of 3.00 s")

    def test_two_numbers_of_one_kind_are_not_compared(self, run) -> None:
        """Which region of another step is `sample_30`, and which one `sample_31`, is not known."""
        spans(run, 0, [(number, {None: 10.0}) for number in range(8)])
        add_regions(run, 0, lambda step: [(f"sample_{10 * step + at}", 4 * at, 4, {}) for at in (0, 1)])
        found = neighbourhood([run.path], 3)
        assert [each.region for each in found.parts] == [None]

    def test_a_region_that_few_steps_have(self, run, capsys) -> None:
        """Every third step evaluates: its usual time is that of two of the six other steps, which the row and the sentence say."""
        spans(run, 0, [(number, {None: 10.0}) for number in range(13)])
        add_regions(run, 0, lambda step: [
            ("train", 0, 4, {}), *([("assess", 4, 4, {})] if step % 3 == 0 else []), *([("hook", 8, 1, {})] if step == 3 else []),
        ])  # fmt: skip
        found = neighbourhood([run.path], 3)
        assert found.text.endswith("; 8 of 11 other steps have no `assess`")
        assert main(["report", str(run.path)]) == 0
        assert "4.00 s (4.00 s to 4.00 s) in 3 of 11" in " ".join(capsys.readouterr().out.split())

    def test_too_many_to_be_read(self, run, monkeypatch) -> None:
        monkeypatch.setattr(run_windows, "MOST_REGIONS", 5)
        spans(run, 0, [(number, {None: 10.0}) for number in range(6)])
        add_regions(run, 0, lambda _: [("load", 0, 3, {})])
        assert not any(each.regions for each in neighbourhood([run.path], 3).steps)


def test_the_terminal_draws_the_steps(run, capsys) -> None:
    """The terminal draws a bar for each step, this one in brackets, in a row for the whole step and
    for each role.
    """
    steps = [(number, both(4.0, 1.0) if number == 3 else both(2.0, 1.0)) for number in range(8)]
    spans(run, 0, [*steps, (8, {"actor": 1.0})])
    assert main(["report", str(run.path)]) == 0
    lines = capsys.readouterr().out.splitlines()
    heads = next(at for at, line in enumerate(lines) if "steps 0 to 8" in line)
    whole, rollout, actor = lines[heads + 2 : heads + 5]
    assert whole.split()[2] == "▅▅▅[█]▅▅▅▅▂"
    assert rollout.split()[1] == "▄▄▄[█]▄▄▄▄"  # the last step has no rollout
    assert actor.split()[1] == "███[█]█████"
    assert "usually" in lines[heads]


def test_terminal_and_markdown_have_a_line(run, capsys) -> None:
    spans(run, 0, [(number, both(2.0, 1.0)) for number in range(6)])
    assert main(["report", str(run.path)]) == 0
    assert "among the steps of the run: step 3 took 3.00 s in rank 0: typical" in " ".join(
        capsys.readouterr().out.split()
    )
    assert main(["report", str(run.path), "--markdown"]) == 0
    assert "Among the steps of the run: step 3 took 3.00 s in rank 0: typical" in capsys.readouterr().out


class TestRestart:
    def test_a_step_that_another_process_of_the_rank_did_again(self, run) -> None:
        """The rank finished the rollout of step 5 and was started again a day later: step 5 did not last a day, and each
        occurrence is among the steps of its own process.
        """
        spans(run, 0, [(step, both(2, 1)) for step in range(5)] + [(5, {"rollout": 2})])
        first = run.path / "spans" / "rank-0.000001.jsonl"
        lines = first.read_text().replace('"pid": 7', '"pid": 8')
        spans(run, 0, [(5, both(2, 1)), (6, both(2, 1))])
        second = (
            first.read_text()
            .replace('"pid": 7', '"pid": 8')
            .replace(f'"start": {START // 10**14}', f'"start": {START // 10**14 + 1}')
        )
        first.write_text(lines.replace('"pid": 8', '"pid": 7'))
        first.with_name("rank-0.000002.jsonl").write_text(second)
        found = neighbourhood([run.path], 3)
        assert {each.step: each.seconds for each in found.steps} == {0: 3, 1: 3, 2: 3, 3: 3, 4: 3, 5: 2}
        again = neighbourhood([run.path], 5, processes={"h 8"})
        assert {each.step: each.seconds for each in again.steps} == {5: 3, 6: 3}
        assert neighbourhood([run.path], 5) is None  # which of the two processes is meant is not known

    def test_regions_of_a_process_that_was_lost(self, run) -> None:
        """The first process was killed in step 3: it left a region without a window, which is not part of the second one's step."""
        spans(run, 0, [(step, {None: 2}) for step in range(8)])
        path = run.path / "spans" / "rank-0.000001.jsonl"
        lines = path.read_text().splitlines(keepends=True)
        regions = [
            line.replace('"kind": "window"', '"kind": "region"').replace('"step", ', '"forward", ')
            for line in lines
        ]
        path.write_text("".join([*lines, *regions[1:]]))
        lost = regions[0].replace('"pid": 7', '"pid": 6') + regions[4]
        path.with_name("rank-0.000000.jsonl").write_text(lost)
        found = neighbourhood([run.path], 3)
        assert {each.step: each.regions["forward"] for each in found.steps} == dict.fromkeys(range(8), 2)


@pytest.mark.parametrize("pack", ["pack", "pack_{}"])
def test_the_slow_rank_is_in_the_table_of_a_driver(run, capsys, pack) -> None:
    """The steps are those of the driver; the region in which rank 1 was slow in step 3 has a row of its own, of that rank.
    `pack_3` of step 3 is `pack_2` of step 2.
    """
    spans(run, "driver", [(number, both(1.0, 4.0 if number == 3 else 2.0)) for number in range(8)])
    for rank in range(3):
        spans(run, rank, [(number, both(1.0, 4.0 if number == 3 else 2.0)) for number in range(8)])
        path = run.path / "spans" / f"rank-{rank}.000001.jsonl"
        lines = [line for line in path.read_text().splitlines() if '"role": "rollout"' not in line]
        path.write_text("\n".join(lines).replace('"pid": 7', f'"pid": {8 + rank}') + "\n")
        add_regions(run, rank, lambda step, slow=rank == 1: [
            (pack.format(step), 0, 3.5 if slow and step == 3 else 1.5, {}), ("backward", 3.5 if slow and step == 3 else 1.5, 0.4, {}),
        ])  # fmt: skip
    assert main(["report", str(run.path), "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    around = report["neighbourhood"]
    assert around["process"] == "driver"
    (place,) = around["places"]
    assert (place["process"], place["role"], place["region"]) == ("actor rank 1", "actor", pack.format(3))
    assert place["by_step"] == {str(step): 3.5 if step == 3 else 1.5 for step in range(8)}
    assert (place["usual"]["seconds"], place["usual"]["median"], place["usual"]["typical"]) == (
        3.5,
        1.5,
        False,
    )
    assert main(["report", str(run.path)]) == 0
    out = capsys.readouterr().out
    assert any(
        f"{pack.format(3)} of actor rank 1" in line and "1.50 s (1.50 s to 1.50 s)" in line
        for line in out.splitlines()
    ), out


def test_each_of_several_slow_ranks_is_in_the_table(run, capsys) -> None:
    """Ranks 1 and 2 of four are slow in `pack`: one finding, and a row for each but the one whose steps these are."""
    for rank in range(4):
        slow = rank in (1, 2)
        spans(run, rank, [(number, {"actor": 4.0 if number == 3 else 2.0}) for number in range(8)])
        path = run.path / "spans" / f"rank-{rank}.000001.jsonl"
        path.write_text(path.read_text().replace('"pid": 7', f'"pid": {8 + rank}'))
        add_regions(run, rank, lambda step, slow=slow: [
            ("pack", 0, pack := 3.5 if slow and step == 3 else 1.5, {}),
            ("backward", pack, (4.0 if step == 3 else 2.0) - pack, {}),
        ])  # fmt: skip
    assert main(["report", str(run.path), "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    (slow,) = [each for each in report["findings"] if each["region"] == "pack" and each["start"] is not None]
    assert (slow["process"], slow["also"]) == ("actor rank 1", ["actor rank 2"])
    assert report["neighbourhood"]["process"] == "rank 1"
    assert [each["process"] for each in report["neighbourhood"]["places"]] == ["actor rank 2"]
