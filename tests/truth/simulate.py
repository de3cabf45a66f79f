"""Simulate a step: ranks work, arrive at collectives, wait and leave, one phase after another, in
true time.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

from truth.model import (
    FROM_ROOT,
    MS,
    SECOND,
    SYNCHRONISING,
    T0,
    TO_ROOT,
    UNIT,
    Call,
    Engine,
    Group,
    Machine,
    Process,
    Region,
    Scheduler,
    Shape,
    Truth,
    Window,
    Work,
)

__all__ = ["simulate", "simulate_again"]

LATER = 1000 * SECOND

OPS = ("aten::mm", "aten::add", "aten::relu", "aten::copy_")
KERNELS = ("ampere_bf16_s16816gemm_bf16_128x64", "void at::native::vectorized_elementwise_kernel<4>")


def simulate(shape: Shape) -> Truth:
    """Return the step of a shape."""
    return _Simulation(shape, _machines(shape), T0).run()


def simulate_again(first: Truth) -> Truth:
    """Return a later step of the same number on the same machines: in another epoch, or in a
    restarted job.
    """
    shape = replace(first.shape, seed=first.shape.seed ^ 1)
    later = _Simulation(shape, first.machines, T0 + LATER).run()
    later.compared = first.compared
    if shape.again == "epoch":
        later.visit = 2
    else:
        for process in later.processes:
            process.pid += 10_000
    return later


class _Simulation:
    def __init__(self, shape: Shape, machines: list[Machine], began: int) -> None:
        self.shape = shape
        self.random = random.Random(shape.seed)
        self.truth = Truth(shape, machines)
        self.clock: dict[int | str, int] = {}
        self.held: Counter[int | str] = Counter()
        """How much earlier each rank would be if the recording had delayed no rank."""
        self.numbers: Counter[Group] = Counter()
        self.busy_until: Counter[int | str] = Counter()
        """The time until which collectives run concurrently with computation."""
        self.began = began

    def run(self) -> Truth:
        shape, truth = self.shape, self.truth
        truth.world = shape.ranks
        fates = dict(shape.fates)
        for rank in range(shape.ranks):
            machine = truth.machines[rank * len(truth.machines) // shape.ranks]
            # two machines of one host name: containers, whose process ids are equal too
            pid = 7 + rank // len(truth.machines) if shape.same_name else 1000 + rank
            process = Process(
                rank,
                machine,
                pid,
                f"pid:[{100 + rank}]",
                fates.get(rank, "complete"),
                shape.devices if shape.device == "cuda" else 0,
            )
            truth.processes.append(process)
            self.clock[rank] = self.began + self._some(0, 20)
        self._groups()
        if shape.driver != "none":
            self._driver()
        self._engines()
        if shape.outer:
            for process in self._ranks():
                self._enter(process, None, 1)
        seen: Counter[str] = Counter()
        for number, role in enumerate(shape.phases):
            seen[role] += 1
            self._phase(role, seen[role], self._members(number))
        if shape.outer:
            for process in self._ranks():
                self.clock[process.rank] += self._some(1, 5)
                self._leave(process, process.windows[0])
        self._end_driver()
        self._compare()
        return truth

    # -- processes and groups ------------------------------------------------------------------

    def _ranks(self) -> list[Process]:
        return [process for process in self.truth.processes if process.rank != "driver"]

    def _members(self, phase: int) -> list[Process]:
        ranks = self._ranks()
        if self.shape.layout == "world" or len(set(self.shape.phases)) == 1:
            return ranks
        roles = sorted(set(self.shape.phases))
        mine = roles.index(self.shape.phases[phase])
        return [rank for at, rank in enumerate(ranks) if at % len(roles) == mine] or ranks[:1]

    def _groups(self) -> None:
        every = tuple(range(self.shape.ranks))
        self.truth.groups.append(Group("0", every))
        self.by_phase: list[list[Group]] = []
        for number in range(len(self.shape.phases)):
            members = tuple(int(process.rank) for process in self._members(number))
            groups = [Group("0" if members == every else f"1{number}", members)]
            half = len(members) // 2
            if self.shape.groups != "world" and half >= 1:
                halves = [Group(f"2{number}", members[:half]), Group(f"3{number}", members[half:])]
                groups = halves if self.shape.groups == "halves" else [*groups, *halves]
            self.by_phase.append(groups)
            self.truth.groups += [group for group in groups if group not in self.truth.groups]

    def _some(self, low: int, high: int) -> int:
        return self.random.randint(low, high) * UNIT

    # -- activities of ranks -------------------------------------------------------------------

    def _phase(self, role: str, occurrence: int, members: Sequence[Process]) -> None:
        opened: dict[int | str, Window] = {}
        phase = self.random.random()
        number = [at for at, each in enumerate(self.shape.phases) if each == role][occurrence - 1]
        name = f"update_{role}"
        regions: dict[int | str, list[Region]] = {}
        for process in members:
            opened[process.rank] = self._enter(process, role, occurrence)
            regions[process.rank] = []
            self._local(process, most=2)
            if phase < 0.8:
                regions[process.rank].append(self._open(process, name, role))
            if self.shape.nested:
                self._idle(process)
                regions[process.rank].append(self._open(process, name, role))
        for _ in range(self.shape.rounds):
            inner = self.random.random() < 0.4
            for process in members:
                if inner:
                    regions[process.rank].append(self._open(process, "forward", role))
                self._local(process)
            for group in self.by_phase[number]:
                kind = self.random.choice(self.shape.kinds)
                self._communicate(kind, group, members)
            if inner:
                for process in members:
                    self._wait_for_calls(process)
                    self._idle(process)
                    regions[process.rank].pop().end = self.clock[process.rank]
        for process in members:
            self._local(process, most=2)
            self._wait_for_calls(process)
            for region in reversed(regions[process.rank]):
                self._idle(process)
                region.end = self.clock[process.rank]
            self._leave(process, opened[process.rank])

    def _open(self, process: Process, name: str, role: str) -> Region:
        region = Region(name, role, self.clock[process.rank], self.clock[process.rank])
        process.regions.append(region)
        self._idle(process)
        return region

    def _wait_for_calls(self, process: Process) -> None:
        self.clock[process.rank] = max(self.clock[process.rank], self.busy_until[process.rank])

    def _idle(self, process: Process) -> None:
        self.clock[process.rank] += UNIT

    def _enter(self, process: Process, role: str | None, occurrence: int) -> Window:
        window = Window(role, occurrence, 0, 0, joined=self.shape.outer and role is not None)
        rank = process.rank
        self.clock[rank] += self._some(1, 5)
        selected = process.fate not in ("unselected", "absent") and not window.joined
        if selected and self.shape.profiler != "none":
            longest = 400 if self.shape.profiler == "differing" and self.random.random() < 0.5 else 0
            window.begin = 100 * UNIT + self._some(0, longest)
            window.arm = 50 * UNIT + self._some(0, longest) if not process.windows else 0
        held = window.begin + window.arm
        self.clock[rank] += held
        self.held[rank] += held
        window.start = self.clock[rank]
        process.windows.append(window)
        return window

    def _leave(self, process: Process, window: Window) -> None:
        rank = process.rank
        window.end = self.clock[rank]
        self._capture(process, window)
        main = [
            each for each in process.work if each.kind == "op" and not each.thread and not process.devices
        ]
        used = _within([(each.start, each.end) for each in main] + process.python, window.start, window.end)
        window.cpu = sum(end - start for start, end in _merged(used))
        if (
            window.status == "complete"
            and not window.joined
            and self.shape.profiler != "none"
            and not window.capped_by
        ):
            longest = 400 if self.shape.profiler == "differing" else 0
            window.stall = 100 * UNIT + self._some(0, longest)
            self.clock[rank] += window.stall
            self.held[rank] += window.stall

    def _capture(self, process: Process, window: Window) -> None:
        """Set the result of the capture, according to the fate of the process."""
        length = window.end - window.start
        window.captured = window.end
        if process.fate in ("unselected", "absent"):
            window.status, window.captured = None, None
        elif process.fate in ("lost", "killed"):
            window.status, window.captured = "lost", None
            if process.fate == "killed":
                process.killed = window.start + round(length * 0.6 / UNIT) * UNIT
        elif window.joined:
            window.status = "joined"
        elif process.fate == "capped":
            part = self.random.choice((0.1, 0.3, 0.5, 0.8))
            window.captured = window.start + max(round(length * part / UNIT), 1) * UNIT
            window.capped_by = "max_seconds"
        elif process.fate == "truncated":
            window.truncated = True

    def _local(self, process: Process, most: int = 4) -> None:
        """Simulate work of a rank between collectives."""
        rank = process.rank
        slow = 10 if self.random.random() < 0.15 else 1
        for _ in range(self.random.randint(1, most)):
            what = self.shape.local
            if what == "mixed":
                what = self.random.choice(("ops", "python", "sleep", "thread"))
            length = self._some(1, 60) * slow
            start, end = self.clock[rank], self.clock[rank] + length
            if process.devices:
                self._on_device(process, what, start, end)
            elif what == "ops":
                self._operate(process, start, end)
            elif what == "python":
                process.python.append((start, end))
            elif what == "thread":
                process.work.append(Work("autograd::engine::evaluate_function", start, end, thread=1))
            self.clock[rank] = end

    def _operate(self, process: Process, start: int, end: int) -> None:
        """Add an operator with others inside."""
        process.work.append(Work(self.random.choice(OPS), start, end))
        inside = self.random.randint(0, 2)
        at = start
        for _ in range(inside):
            length = self._some(1, 10)
            if at + length > end:
                break
            process.work.append(Work(self.random.choice(OPS), at, at + length))
            at += length + self._some(0, 3)

    def _on_device(self, process: Process, what: str, start: int, end: int) -> None:
        """Add kernels on one of the devices, or none for a slow host."""
        if what in ("sleep", "python"):
            return
        device = self.random.randrange(process.devices)
        process.work.append(Work("aten::mm", start, min(start + UNIT, end)))
        if self.random.random() < 0.2:
            process.work.append(
                Work("Memcpy HtoD (Pinned -> Device)", start, end, kind="copy", device=device)
            )
            return
        name = self.random.choice(KERNELS)
        process.work.append(Work(name, start, end, kind="kernel", device=device))
        if process.devices > 1 and self.random.random() < 0.4:
            other = (device + 1) % process.devices
            process.work.append(Work(KERNELS[0], start, end, kind="kernel", device=other))

    # -- communication -------------------------------------------------------------------------

    def _communicate(self, kind: str, group: Group, members: Sequence[Process]) -> None:
        ranks = [int(process.rank) for process in members if process.rank in group.ranks]
        transfer = self._some(1, 12)
        beside = self.shape.overlap and self.shape.device == "cuda" and kind not in ("send", "recv")
        for rank in ranks:
            self.clock[rank] += UNIT
            if not beside:
                self._wait_for_calls(self.truth.process(rank))
        arrive = {rank: max(self.clock[rank], self.busy_until[rank]) for rank in ranks}
        if kind in ("send", "recv"):
            if len(ranks) < 2:
                return
            pair = self.random.sample(ranks, 2)
            self._pair(group, pair, arrive, transfer)
            return
        number = self.numbers[group]
        self.numbers[group] += 1
        call = Call(kind, group, number, arrive)
        undisturbed: dict[int, int] = {}
        root = self.random.choice(ranks)
        meets = self.random.random() < 0.5
        for rank in ranks:
            needed = _needed(kind, rank, root, ranks, meets)
            latest = max([arrive[rank], *(arrive[other] for other in needed)])
            apart = self._some(0, 5) if self.shape.jitter and self.shape.device == "cpu" else 0
            call.leave[rank] = latest + transfer + apart
            call.blur = max(call.blur, apart)
            call.waited[rank] = latest - arrive[rank]
            # when all required data would be there, if the recording had delayed no rank
            own = arrive[rank] - self.held[rank]
            last = max([own, *(arrive[other] - self.held[other] for other in needed)])
            undisturbed[rank] = last
            call.profiler[rank] = max(0, call.waited[rank] - (last - own))
            causes = {
                other
                for other in needed
                if arrive[other] - self.held[other] == last and arrive[other] > arrive[rank]
            }
            call.needed[rank] = frozenset(causes) if call.waited[rank] > call.profiler[rank] else frozenset()
        if call.synchronises and len({self.truth.process(rank).machine.boot for rank in ranks}) == 1:
            call.blur = 0  # one clock shows when each member arrived
        for rank in ranks:
            self.busy_until[rank] = call.leave[rank]
            if not beside:
                self.clock[rank] = call.leave[rank]
            process = self.truth.process(rank)
            process.calls.append(call)
            if process.devices and not beside and self.random.random() < 0.3:  # computation meanwhile
                end = call.leave[rank] - self._some(0, 2)
                if end > arrive[rank]:
                    process.work.append(Work(KERNELS[0], arrive[rank], end, kind="kernel"))
        for rank, without in undisturbed.items():
            self.held[rank] = call.arrive[rank] + call.waited[rank] - without
        self.truth.calls.append(call)

    def _pair(self, group: Group, pair: Sequence[int], arrive: dict[int, int], transfer: int) -> None:
        """Add a transfer from one rank to another as two calls, each on one rank only."""
        latest = max(arrive[rank] for rank in pair)
        for rank, kind in zip(pair, ("send", "recv"), strict=True):
            call = Call(kind, group, -1, {rank: arrive[rank]}, {rank: latest + transfer})
            call.waited[rank] = latest - arrive[rank]
            self.clock[rank] = self.busy_until[rank] = latest + transfer
            self.truth.process(rank).calls.append(call)
            self.truth.calls.append(call)

    # -- the driver and engines ------------------------------------------------------------------

    def _driver(self) -> None:
        machine = self.truth.machines[0]
        pid = 9 if self.shape.same_name else 999
        driver = Process("driver", machine, pid, "pid:[99]", "driver")
        start = min(self.clock.values())
        driver.windows.append(Window(None, 1, start, start, status="complete"))
        self.truth.processes.append(driver)

    def _end_driver(self) -> None:
        if self.shape.driver == "none":
            return
        driver = self.truth.process("driver")
        last = max(self.clock.values())
        driver.windows[0].end = max(last, driver.windows[-1].end) + 5 * UNIT
        driver.windows[0].cpu = 0

    def _engines(self) -> None:
        shape = self.shape
        if not shape.engines:
            return
        begins = max(self.clock.values()) + self._some(5, 20)
        ends = begins
        for replica, (data, tensor) in enumerate(shape.engines):
            machine = self.truth.machines[-1]
            start = begins + self._some(0, 20)
            schedulers = [
                Scheduler(group, tensor, self._generate(start + self._some(0, 5))) for group in range(data)
            ]
            end = max(steps[-1][1] for steps in (each.steps for each in schedulers)) + self._some(1, 10)
            stop = self._some(1, 50)
            if shape.late:
                for scheduler in schedulers:
                    scheduler.beyond = self._generate(end + self._some(1, 5))
                stop += max(each.beyond[-1][1] for each in schedulers) - end
            engine = Engine(replica, machine, "rollout", start, end, self._some(1, 10), stop, schedulers)
            self.truth.engines.append(engine)
            ends = max(ends, end + engine.stop)
        if shape.driver != "none":
            driver = self.truth.process("driver")
            window = Window("rollout", 1, begins - 20 * UNIT, ends + UNIT, status="complete")
            window.cpu = 0
            driver.windows.append(window)
        for rank in self.clock:
            self.clock[rank] = ends + self._some(1, 10)

    def _generate(self, at: int) -> list[tuple[int, int, int]]:
        """Return forward steps whose batch becomes smaller."""
        steps = []
        size = self.random.choice((8, 16, 32, 64))
        for _ in range(self.random.randint(4, 12)):
            length = self._some(5, 40)
            steps.append((at, at + length, size))
            at += length + self._some(0, 2)
            if self.random.random() < 0.5:
                size = max(1, size // 2)
        return steps

    # -- clocks ----------------------------------------------------------------------------------

    def _compare(self) -> None:
        machines = self.truth.machines
        for number, machine in enumerate(machines[1:], 1):
            if self.shape.compared == "none" or (self.shape.compared == "some" and number % 2):
                continue
            error = self._some(1, 8) if self.shape.clock_error else 50_000
            wrong = self.random.randint(-error, error) if self.shape.clock_error else 0
            offset = machine.offset - machines[0].offset + wrong
            self.truth.compared.append((0, number, offset, error))


def _machines(shape: Shape) -> list[Machine]:
    drawn = random.Random(f"machines of {shape.seed}")
    machines = []
    for number in range(shape.machines):
        host = "node" if shape.same_name else f"node-{number}"
        offset = drawn.choice((0, 3 * MS, -7200 * SECOND, 5 * 3600 * SECOND, 777_777 * UNIT))
        machines.append(Machine(host, f"boot-{number}", offset + drawn.randint(0, 9) * UNIT if number else 0))
    return machines


def _needed(kind: str, rank: int, root: int, ranks: Sequence[int], meets: bool) -> list[int]:
    """Return the members whose arrival a rank needs before it can leave."""
    if kind in SYNCHRONISING:
        return list(ranks)
    if kind in FROM_ROOT:
        return (list(ranks) if meets else []) if rank == root else [root]
    assert kind in TO_ROOT
    return list(ranks) if rank == root else ([root] if meets else [])


def _within(stretches: Sequence[tuple[int, int]], start: int, end: int) -> list[tuple[int, int]]:
    return [(max(a, start), min(b, end)) for a, b in stretches if a < end and b > start]


def _merged(stretches: Sequence[tuple[int, int]]) -> list[tuple[int, int]]:
    merged: list[tuple[int, int]] = []
    for start, end in sorted(stretches):
        if merged and start <= merged[-1][1]:
            merged[-1] = (merged[-1][0], max(end, merged[-1][1]))
        else:
            merged.append((start, end))
    return merged
