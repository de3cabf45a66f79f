"""Run scripts with the real torch_npu on the stand-in for CANN, and read the calls that reached CANN."""

from __future__ import annotations

import json
import textwrap
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import acl
import pytest
from warm import Running, Server, Warm

SESSION = [
    "aclprofInit",
    "aclprofCreateConfig",
    "aclprofWarmup",
    "aclprofStart",
    "aclprofRegisterDeviceCallback",
    "aclprofStop",
    "aclprofDestroyConfig",
    "aclprofFinalize",
]
"""The calls of one session of torch_npu, from its warm-up to its end."""

# torch_npu may be imported before the fork: the import uses no device
FIRST = "import torch, torch_npu, torch_npu.profiler.profiler"
PRELUDE = """
def init(config=None, **npu):
    settings = {"backend": "npu", "steps": os.environ["STEPPROF_STEPS"], "output_dir": "runs", "npu": {"lease_dir": "leases", **npu}}
    return stepprof.init({**settings, **(config or {})})

def use_device():
    torch.npu.set_device(0)
"""


@dataclass(frozen=True)
class Call:
    """A line of the stand-in's log."""

    ns: int
    pid: int
    thread: int
    name: str
    detail: str


class Npu(Warm):
    """Starts scripts with `init` and `use_device`, by default with step 2 selected."""

    def __init__(self, server: Server, folder: Path, env: Mapping[str, str]) -> None:
        super().__init__(server, folder)
        self.leave = True
        self._env = {**env, "STEPPROF_ACL_LOG": str(folder / "acl.log")}

    def start(self, script: str, *arguments: str, env: Mapping[str, str] | None = None) -> Running:
        return super().start(PRELUDE + textwrap.dedent(script), *arguments, env={**self._env, **(env or {})})

    def calls(self, prefix: str = "aclprof") -> list[Call]:
        """Return the calls of CANN in order."""
        log = self.folder / "acl.log"
        lines = log.read_text().splitlines() if log.exists() else []
        found = []
        for line in lines:
            ns, pid, thread, name, *detail = line.split(" ", 4)
            found.append(Call(int(ns), int(pid), int(thread), name, "".join(detail)))
        return [call for call in found if call.name.startswith(prefix)]

    def names(self) -> list[str]:
        """Return the names of the calls that belong to sessions."""
        return [call.name for call in self.calls() if call.name != "aclprofSetConfig"]

    def ranges(self) -> list[str]:
        """Return how the ranges opened and closed: `(name`, `name)`."""
        open_ranges: dict[str, str] = {}
        found = []
        for call in self.calls("mstx"):
            domain, number, name = call.detail.split(" ", 2)
            assert domain == "stepprof"
            if "Start" in call.name:
                open_ranges[number] = name
                found.append(f"({name}")
            else:
                found.append(f"{open_ranges.pop(number)})")
        assert not open_ranges
        return found

    def folder_of(self, step: int = 2) -> Path:
        """Return torch_npu's folder of a step's only window."""
        (artifact,) = self.window(step)["artifacts"]
        assert artifact["kind"] == "npu-profile"
        return self.run_path / f"step-{step:06d}" / artifact["path"]

    def left_over(self) -> list[str]:
        """Return folders with a recording that no manifest names."""
        return [path.name for path in self.run_path.rglob(".npu-*")]


@pytest.fixture(scope="session")
def cann(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Build the stand-in for CANN. Return the environment variables that find it."""
    return acl.build(tmp_path_factory.mktemp("cann"))


@pytest.fixture(scope="session")
def npu_server(cann: dict[str, str]) -> Iterator[Server]:
    """Start the process that forks a child for each script."""
    server = Server(FIRST, cann)
    yield server
    server.stop()


@pytest.fixture
def npu(npu_server: Server, cann: dict[str, str], tmp_path: Path) -> Npu:
    """Return the starter of scripts."""
    return Npu(npu_server, tmp_path, cann)


def info(folder: Path) -> dict:
    """Return the settings of a recording that torch_npu wrote into its folder."""
    (file,) = folder.glob("profiler_info*.json")
    return json.loads(file.read_text())["config"]
