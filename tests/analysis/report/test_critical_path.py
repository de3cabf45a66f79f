"""The critical path, as a chain of work and waits, of hand-made steps."""

from __future__ import annotations

from stepprof.analysis.report.critical_path import critical_path
from stepprof.analysis.report.digest import Window
from stepprof.analysis.report.processes import Process
from stepprof.analysis.report.timelines import timelines
from stepprof.analysis.timeline.model import Alignment, Origin

US = 1000


def process(rank: int | str, *windows: tuple[int, int, str | None]) -> Process:
    """Return a process with windows (start, end, role) in microseconds."""
    return Process(
        f"rank {rank}" if isinstance(rank, int) else rank, "rank", Origin("rank", str(rank), role=None, rank=rank, host="h"),
        Alignment("reference", 0, 0), [], [Window(role, start * US, end * US) for start, end, role in windows],
    )  # fmt: skip


def path(*processes: Process) -> list[tuple[str, int, int, str | None, str]]:
    """Return the path from 0 to 100 microseconds."""
    found = critical_path(timelines(processes, {}), 0, 100 * US, frozenset({"rollout"}))
    return [(each.process, each.start // US, each.end // US, each.role, each.kind) for each in found]


DRIVER = process("driver", (0, 60, "rollout"), (60, 100, "actor"))
RANK = process(0, (0, 60, None), (60, 99, "actor"))


def test_a_rank_in_no_role_waits_for_the_driver() -> None:
    """While rank 0 is in no role, the work of the driver is on the path."""
    assert path(DRIVER, RANK) == [
        ("driver", 0, 60, "rollout", "work"),
        ("rank 0", 60, 99, "actor", "work"),
        ("driver", 99, 100, "actor", "handover"),
    ]


def test_without_a_driver_the_whole_window_is_work() -> None:
    """Without a driver, the path counts the rank's whole window as work, because nothing else is known."""
    assert path(RANK) == [
        ("rank 0", 0, 60, None, "work"),
        ("rank 0", 60, 99, "actor", "work"),
        ("rank 0", 99, 100, None, "outside"),
    ]


def test_a_process_without_a_rank_works_in_its_regions_alone() -> None:
    """The windows of a process without a rank repeat those of the driver and end a little later.
    They do not change the path.
    """
    assert path(DRIVER, RANK, process("reward-loop", (0, 60, "rollout"), (60, 100, None))) == path(
        DRIVER, RANK
    )
