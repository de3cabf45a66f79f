"""The memory of the host and of the control group."""

from __future__ import annotations

import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from stepprof.host import memory

GIB = 2**30
MEMINFO = "MemTotal:       16777216 kB\nMemFree:         1048576 kB\nMemAvailable:    8388608 kB\n"


@pytest.fixture
def files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Return a function that writes the system's files."""
    paths = {
        name: tmp_path / name for name in ("meminfo", "max", "current", "stat", "limit", "usage", "stat_1")
    }
    monkeypatch.setattr(memory, "_MEMINFO", paths["meminfo"])
    groups = (
        (paths["max"], paths["current"], paths["stat"]),
        (paths["limit"], paths["usage"], paths["stat_1"]),
    )
    monkeypatch.setattr(memory, "_GROUPS", groups)

    def write(**texts):
        for name, text in texts.items():
            paths[name].write_text(text)

    return write


class TestAvailableAndTotal:
    def test_memory_of_this_machine(self) -> None:
        """On this machine, the available memory is between 0 and the total."""
        found = memory.available_and_total()
        if found is not None:
            assert 0 < found[0] <= found[1]

    def test_memory_of_the_host(self, files) -> None:
        """Available memory is counted, which includes more than the free memory."""
        files(meminfo=MEMINFO)
        assert memory.available_and_total() == (8 * GIB, 16 * GIB)

    def test_a_tighter_control_group_counts(self, files) -> None:
        """The limit of a control group counts if it is lower. Its inactive files count as available."""
        files(
            meminfo=MEMINFO, max=f"{4 * GIB}\n", current=f"{3 * GIB}\n", stat=f"anon 1\ninactive_file {GIB}\n"
        )
        assert memory.available_and_total() == (2 * GIB, 4 * GIB)

    def test_a_control_group_of_version_1(self, files) -> None:
        """The files of version 1 of control groups are read."""
        files(meminfo=MEMINFO, limit=f"{2 * GIB}", usage=f"{GIB}", stat_1="total_inactive_file 0\n")
        assert memory.available_and_total() == (GIB, 2 * GIB)

    def test_a_control_group_without_a_limit(self, files) -> None:
        """A control group without a limit, or with the largest possible one, does not count."""
        files(meminfo=MEMINFO, max="max\n", current="1\n", limit=f"{2**63 - 4096}", usage="1")
        assert memory.available_and_total() == (8 * GIB, 16 * GIB)

    def test_a_control_group_alone(self, files) -> None:
        """If the host's figures are missing, those of the control group are used,
        also without its statistics.
        """
        files(meminfo="MemTotal: 1 kB\n", max=f"{2 * GIB}", current=f"{GIB}")
        assert memory.available_and_total() == (GIB, 2 * GIB)

    def test_a_tighter_address_space_counts(self, run_script) -> None:
        """The limit of the address space counts, minus the space that the process uses."""
        run_script(
            """
            import resource
            from stepprof.host.memory import available_and_total
            resource.setrlimit(resource.RLIMIT_AS, (2**31, -1))
            available, total = available_and_total()
            assert total == 2**31
            assert 0 < available < 2**31
            """
        ).check()

    def test_nothing_is_known(self, files) -> None:
        """If no figure is known, the result is None."""
        files()
        assert memory.available_and_total() is None


class TestOfThisProcess:
    def test_resident(self, monkeypatch, tmp_path) -> None:
        """The resident memory is returned, or None if the system's file is missing."""
        found = memory.resident_bytes()
        assert found is None or found > 2**20
        monkeypatch.setattr(memory, "_STATM", tmp_path / "nothing")
        assert memory.resident_bytes() is None

    def test_memory_of_all_devices_is_added_up(self, monkeypatch) -> None:
        """The memory of all devices is added up once torch has initialised CUDA. Before that it is None."""
        cuda = SimpleNamespace(
            is_initialized=lambda: False, device_count=lambda: 2, memory_allocated=lambda device: 100 + device
        )
        monkeypatch.setitem(sys.modules, "torch", SimpleNamespace(cuda=cuda))
        assert memory.device_bytes() is None
        cuda.is_initialized = lambda: True
        assert memory.device_bytes() == 201
        monkeypatch.setitem(sys.modules, "torch", SimpleNamespace())
        assert memory.device_bytes() is None
