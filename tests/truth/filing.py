"""Write the run of a world: the manifest and the traces of its recorded step, and the spans of all steps."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from truth.model import Call, Engine, Group, Machine, Process, Scheduler, Shape, Truth, Window, Work
from truth.sampling import cpu_ns, evidence
from truth.scheduling import Line, Ran, Ranged
from truth.worlds import DRIVER, UNIT, Name, World
from truth.writing import write

__all__ = ["file_run"]

PHASE = 7_000_000
"""When the first sample of a window is taken."""


def file_run(world: World, ran: Sequence[Ran], folder: Path) -> Path:
    """Write the run of a world that has run, and return its folder."""
    truth = _truth(world, ran[world.recorded])
    run = write(truth, folder, step=world.recorded)
    if world.recording != "no spans":
        for name in world.on:
            if (isinstance(name, int) or name == DRIVER) and name not in world.lost:
                _spans(world, ran, truth.process(name), run)
    return run


def _truth(world: World, ran: Ran) -> Truth:
    """Return the recorded step as `writing` takes it. It writes no spans."""
    machines = [Machine(host.name, f"boot of {host.name}", host.offset) for host in world.hosts]
    ranks = [name for name in world.on if isinstance(name, int)]
    driver = "manifest" if DRIVER in world.on else "none"
    traces = world.recording != "no traces"
    shape = Shape(ranks=len(ranks), spans=False, traces=traces, driver=driver, device=world.device)
    truth = Truth(shape, machines, len(ranks))
    truth.groups.append(Group("0", tuple(ranks)))
    for number, (name, line) in enumerate(ran.lines.items()):
        if isinstance(name, int) or name == DRIVER:
            truth.processes.append(_process(world, name, line, machines[world.on[name]], 1000 + number))
    calls: dict[str, Call] = {}
    for process in truth.processes:
        for met in ran.lines[process.rank].met:
            call = calls.get(met.key)
            if call is None:
                group = next((each for each in truth.groups if each.ranks == met.members), None)
                if group is None:
                    group = Group(f"1{len(truth.groups)}", met.members)
                    truth.groups.append(group)
                call = calls[met.key] = Call("all_reduce", group, len(calls), {})
            call.arrive[process.rank], call.leave[process.rank] = met.arrive, met.leave
            process.calls.append(call)
    for name, line in ran.lines.items():
        if line.forwards:
            truth.engines.append(_engine(world, str(name), line, machines[world.on[name]]))
    for number, host in enumerate(world.hosts[1:], 1):
        if host.error >= 0:
            truth.compared.append((0, number, host.offset - world.hosts[0].offset, host.error))
    return truth


def _process(world: World, name: Name, line: Line, machine: Machine, pid: int) -> Process:
    process = Process(name, machine, pid, devices=1 if world.device == "cuda" and name != DRIVER else 0)
    occurrences: dict[str | None, int] = {}
    for each in line.windows:
        occurrences[each.role] = occurrences.get(each.role, 0) + 1
        window = Window(
            each.role, occurrences[each.role], each.start, each.end, each.arm, each.begin, each.stall
        )
        window.captured = world.captured(name, each.start, each.end)
        window.capped_by = "max_seconds" if window.captured < each.end else None
        window.raised = name in world.raised
        window.cpu = cpu_ns(line, each.start, each.end)
        process.windows.append(window)
    for piece in line.pieces:
        if piece.doing.late:
            launch = Work("cudaLaunchKernel", piece.start, piece.start + UNIT)
            kernel = Work("late_gemm", piece.end - UNIT, piece.end, "kernel", launched=piece.start)
            process.work += [launch, kernel]
        elif piece.doing.operator is not None and not piece.awaited:
            process.work.append(Work(piece.doing.operator, piece.start, piece.end))
            if piece.doing.kernel and process.devices:
                process.work.append(Work("ampere_bf16_gemm", piece.start, piece.end, "kernel"))
    return process


def _engine(world: World, name: str, line: Line, machine: Machine) -> Engine:
    start, end = line.forwards[0].start, line.forwards[-1].end
    captured = world.captured(name, start, end)
    steps = [(each.start, each.end, each.batch) for each in line.forwards if each.end <= captured]
    again = {each.start: each.again for each in line.forwards if each.again}
    return Engine(
        int(name.rpartition("-")[2]),
        machine,
        "rollout",
        start,
        captured,
        1000,
        1000,
        [Scheduler(0, 1, steps, again=again)],
        "max_seconds" if captured < end else None,
        len(again),
    )


def _spans(world: World, ran: Sequence[Ran], process: Process, run: Path) -> None:
    own = process.machine.own
    lines: list[Mapping[str, object]] = []
    for number, step in enumerate(ran):
        if process.rank not in step.lines:
            continue
        line = step.lines[process.rank]
        recorded = number == world.recorded
        until = max(world.captured(process.rank, each.start, each.end) for each in line.windows)
        found = [*_of_step(line, number, process.pid, until if recorded else 0)]
        if recorded and world.recording != "no evidence":
            found += evidence(line, process.pid, number, PHASE, until)
        lines += sorted(found, key=lambda each: int(str(each["start"])) + int(str(each["dur"])))
    header = {
        "schema_version": 1,
        "kind": "spans",
        "run_id": run.name,
        "rank": process.rank,
        "host": process.machine.host,
        "pid": process.pid,
        "boot_id": process.machine.boot,
        "pid_namespace": process.pid_namespace,
    }
    moved = ({**each, "start": own(int(str(each["start"])))} for each in lines)
    text = "".join(json.dumps(each) + "\n" for each in (header, *moved))
    (run / "spans").mkdir(exist_ok=True)
    (run / "spans" / f"rank-{process.rank}.000001.jsonl").write_text(text)


def _of_step(line: Line, step: int, thread: int, recorded: int) -> Iterator[dict[str, object]]:
    """Yield the spans of a step, which was recorded until some time."""

    def span(of: Ranged, kind: str) -> dict[str, object]:
        found: dict[str, object] = {
            "name": of.name or of.role or "step",
            "kind": kind,
            "thread": thread,
            "task": of.task,
            "step": step,
            "role": of.role,
            "start": of.start,
            "dur": of.end - of.start,
        }
        if of.amounts:
            found["attrs"] = dict(of.amounts)
        if of.raised:
            found["error"] = True
        if kind == "region" and of.task is None and of.end <= recorded:
            found["cpu"] = cpu_ns(line, of.start, of.end)
        return found

    yield from (span(region, "region") for region in line.regions)
    yield from (span(window, "window") for window in line.windows)
