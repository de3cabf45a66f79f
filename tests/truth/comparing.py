"""Compare a report with the truth. Each difference is a sentence with the reported and the true value."""

from __future__ import annotations

import re
from collections.abc import Sequence

from stepprof.analysis.report.schema import Report, Rollout, TimeOf
from truth.clocks import places
from truth.figures import decoded, kernels, operators, overlapped, phases, step_bounds, tail_of
from truth.gantt import compare_gantt
from truth.known import Known, known_of
from truth.model import Engine, Stretch, Truth
from truth.noting import CLOSE, Notes, key_of
from truth.screen import disagreements
from truth.sentences import compare_sentences
from truth.trees import compare_trees
from truth.waiting import Waited, compare_collectives, compare_waiting

__all__ = ["differences"]

_WORKER = re.compile(r"^\S+/(\d+)( |$)")


def differences(truth: Truth, report: Report) -> list[str]:
    """Return the differences between a report and the truth."""
    notes = Notes(truth, report)
    where = places(notes)
    everyone = [
        known_of(truth, process, where[process.rank]) for process in truth.processes if process.rank in where
    ]
    islands: dict[object, list[Known]] = {}
    for known in everyone:
        islands.setdefault(known.place.island, []).append(known)
    if notes.unclear:
        return notes.found
    waited, longest = [], 0
    for known in islands.values():
        bounds = step_bounds(known)
        if bounds is None or bounds[0] == bounds[1]:
            continue
        longest = max(longest, bounds[1] - bounds[0])
        _phases(notes, known, bounds, alone=len(islands) == 1)
        waited.append(Waited(notes, known, everyone, bounds))
        compare_waiting(notes, waited[-1])
        compare_gantt(notes, known, bounds[0])
    if waited:
        for island in set(notes.islands.values()) - set(islands):  # an island may have only engines
            longest = max(longest, notes.generated(island))
        notes.same("seconds of the step", report.seconds, longest)
        compare_collectives(notes, everyone, waited)
        compare_sentences(notes, everyone, waited)
    _overlap(notes, everyone)
    _operators(notes, everyone)
    compare_trees(notes, everyone)
    for contradiction in disagreements(report, printed=truth.shape.seed % 4 == 0):
        notes.found.append(contradiction)
    _rollouts(notes)
    _overhead(notes, everyone)
    return notes.found


def _phases(notes: Notes, known: Sequence[Known], bounds: Stretch, *, alone: bool) -> None:
    """Compare the time of roles and regions, for the processes of one island."""
    true, mine = phases(known), {each.rank for each in known}
    wall = bounds[1] - bounds[0]
    reported: dict[tuple[str | None, str | None], TimeOf] = {}
    for row in [*notes.report.roles, *notes.report.regions]:
        ranks = {key_of(time.label) for time in row.per_process}
        if alone or ranks & mine:
            reported[row.role, row.region] = row
            if not ranks <= mine:
                notes.say(f"processes of {(row.role, row.region)}", ranks, f"some of {mine}")
    of_windows = {(role, role or "step") for role, region in true if region is None}
    for key in reported.keys() - true.keys() - of_windows:
        notes.say(f"time of {key}", reported[key].seconds, "nothing of that name")
    for key, phase in true.items():
        row = reported.get(key)
        if row is None:
            notes.say(f"time of {key}", "nothing", phase.seconds / 1e9)
            continue
        close = CLOSE * max(len(phase.covered), 1)
        notes.same(f"seconds of {key}", row.seconds, phase.seconds, close)
        if notes.report.ended:
            notes.same(f"share of {key}", row.share, phase.seconds / wall * 1e9, close / wall * 1e9)
        else:
            notes.equal(f"share of {key}", row.share, None)
        each = {key_of(time.label): time for time in row.per_process}
        notes.equal(f"processes of {key}", set(each), set(phase.covered))
        for rank in each.keys() & phase.covered.keys():
            notes.same(f"seconds of {key} on {rank}", each[rank].seconds, phase.covered[rank])
            notes.same(f"end of {key} on {rank}", each[rank].end, phase.last[rank] - bounds[0])
            notes.equal(f"calls of {key} on {rank}", each[rank].calls, phase.calls[rank])


def _overlap(notes: Notes, everyone: Sequence[Known]) -> None:
    for each in everyone:
        rows = [row for row in notes.report.overlap if key_of(row.label) == each.rank]
        if not each.traced:
            if rows:
                notes.say(f"overlap of {each.rank}", rows, "no trace")
            continue
        whole = all(not window.truncated for window in each.traced)
        true = {device: part for device, part in overlapped(each).items() if part.busy}
        if not whole:
            if any(row.busy_share is not None for row in rows):
                notes.say(f"busy share of {each.rank}", rows, "its trace is not whole")
            continue
        if not each.device and not true.get("cpu"):
            continue
        shown = {row.device: row for row in rows}
        if not each.device and not true["cpu"].communication and not shown:
            continue
        names = {device: device if len(true) > 1 else device.split()[0] for device in true}
        notes.equal(f"devices of {each.rank}", set(shown), set(names.values()))
        covered = sum(end - start for start, end in each.covered)
        for device, part in true.items():
            row = shown.get(names[device])
            if row is None:
                continue
            what = f"of {device} of {each.rank}"
            notes.same(f"compute {what}", row.compute, part.compute)
            notes.same(f"communication {what}", row.communication, part.communication)
            notes.same(f"overlapped {what}", row.overlapped, part.overlapped)
            notes.same(f"exposed {what}", row.exposed, part.communication - part.overlapped)
            share = None if device == "cpu" or not covered else part.busy / covered * 1e9
            notes.same(f"busy share {what}", row.busy_share, share, 1e6)


def _operators(notes: Notes, everyone: Sequence[Known]) -> None:
    reported, true = {row.name: row for row in notes.report.ops}, operators(everyone)
    notes.equal("operators", set(reported), set(true))
    for name in reported.keys() & true.keys():
        row, parts = reported[name], true[name].values()
        notes.equal(f"calls of {name}", row.calls, sum(calls for calls, _, _ in parts))
        notes.same(f"time of {name}", row.seconds, sum(time for _, time, _ in parts))
        notes.same(f"self time of {name}", row.self_seconds, sum(own for _, _, own in parts))
    shown = {row.name: (row.calls, round(row.seconds * 1e9)) for row in notes.report.kernels}
    notes.equal("kernels", shown, kernels(everyone))


def _rollouts(notes: Notes) -> None:
    rows = [row for row in notes.report.rollout if row.iterations]
    for engine in notes.truth.engines:
        label = f"{engine.role}/{engine.replica}"
        mine = [
            row for row in rows if (found := _WORKER.match(row.label)) and found[1] == str(engine.replica)
        ]
        if len(mine) != 1:
            notes.say(f"rows of {label}", [row.label for row in mine], "one")
            continue
        _tail(notes, label, mine[0], [engine])
        _stages(notes, label, engine)
    sums = [row for row in rows if _WORKER.match(row.label) is None]
    together = len(set(notes.islands.values())) == 1
    if len(notes.truth.engines) > 1 and together and sums:
        _tail(notes, "all engines", sums[-1], notes.truth.engines)
    elif sums and not together:
        notes.say("sum of all engines", sums[-1].label, "their clocks were never compared")


def _stages(notes: Notes, label: str, engine: Engine) -> None:
    """Compare the forward steps by stage. All simulated steps continue sequences, with one token each."""
    work = next((each for each in notes.report.engines if each.label == label), None)
    if work is None or len(work.stages) != 1:
        notes.say(f"stages of {label}", work, "decode")
        return
    (stage,), true = work.stages, decoded(engine)
    reported = (stage.stage, stage.iterations, stage.prefill_tokens, stage.decode_tokens)
    notes.equal(f"stages of {label}", reported, ("decode", true.steps, 0, true.tokens))
    if abs(stage.seconds * 1e9 - true.time) > 1e3:
        notes.say(f"time of forward steps in {label}", stage.seconds * 1e9, true.time)


def _tail(notes: Notes, label: str, row: Rollout, engines: Sequence[Engine]) -> None:
    true = tail_of(engines, notes.shifts)
    assert true is not None
    for name, reported, expected in (
        ("seconds", row.seconds * 1e9, true.seconds),
        ("peak", row.peak_batch, true.peak),
        ("mean", row.mean_batch, true.mean),
        ("below half", row.below_half, true.below_half),
        ("tail", row.tail * 1e9, true.tail),
    ):
        if abs(reported - expected) > max(1e-6, 1e-6 * abs(expected)):
            notes.say(f"{name} of generation in {label}", reported, expected)


def _overhead(notes: Notes, everyone: Sequence[Known]) -> None:
    """Compare the cost of recording each process with its manifest."""
    rows = {key_of(row.label): row for row in notes.report.overhead}
    for each in everyone:
        stated = [window for window in each.process.windows if window.status is not None]
        row = rows.get(each.rank)
        if each.rank == "driver" or not stated or row is None:
            continue
        notes.same(f"arming {each.rank}", row.arm, sum(window.arm for window in stated))
        notes.same(f"starting {each.rank}", row.start, sum(window.begin for window in stated))
        stalls = [window.stall for window in stated if window.status != "lost"]
        notes.same(f"stopping {each.rank}", row.stall, sum(stalls) if stalls else None)
