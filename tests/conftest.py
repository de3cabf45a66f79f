"""Fixtures for all tests: an environment without variables of a launcher, and a function that runs a
script in a separate process.
"""

from __future__ import annotations

import importlib.util
import os
import signal
import subprocess
import sys
import textwrap
from collections.abc import Callable, Generator, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import hanging
import pytest

if TYPE_CHECKING:
    from warm import Server, Warm
from cudamemory import cuda, rehearsed  # noqa: F401 - fixtures
from faulty import faulty, log, start  # noqa: F401 - fixtures
from looping import other_loop  # noqa: F401 - a fixture
from other_user import shared  # noqa: F401 - a fixture
from ran import Ran
from simulated import engine  # noqa: F401 - a fixture

if importlib.util.find_spec("hypothesis"):  # the environment of an engine does not have it
    from hypothesis import settings

    settings.register_profile("busy", deadline=None)  # examples take longer on a busy machine
    settings.load_profile("busy")

PRIORITY = "RAY_worker_niceness"
os.environ[PRIORITY] = "0"  # Ray lowers the priority of its workers: next to other tests they starve

_LAUNCHER_PREFIXES = ("STEPPROF", "SLURM", "TORCHELASTIC", "RAY_")
_LAUNCHER_VARIABLES = (
    "RANK",
    "WORLD_SIZE",
    "LOCAL_RANK",
    "LOCAL_WORLD_SIZE",
    "GROUP_RANK",
    "NODE_RANK",
    "MASTER_ADDR",
    "MASTER_PORT",
)


MEASURED = tuple(
    f"tests/{name}"
    for name in (
        *("real/", "trial/", "doctor/", "backends/nsys/", "backends/test_composite", "backends/torch/"),
        *(
            "cli/commands/test_run.",
            "cli/commands/test_follow",
            "cli/commands/test_status",
            "cli/commands/test_open",
        ),
        *("integrations/test_activation", "integrations/test_autoload", "integrations/test_training_loop"),
        *("recording/evidence/", "recording/export/"),
        *("recording/test_interrupts", "recording/test_rank_discovery"),
    )
)
"""Tests with processes whose coverage is measured. For the other tests, coverage would find almost nothing
new, and add two thirds to their CPU time.
"""


@pytest.fixture(autouse=True)
def clean_environment(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Remove variables that a launcher, or the caller of the tests, has set."""
    measured = request.node.nodeid.startswith(MEASURED)
    prefixes = _LAUNCHER_PREFIXES if measured else (*_LAUNCHER_PREFIXES, "COVERAGE_PROCESS")
    for name in list(os.environ):
        if (name.startswith(prefixes) and name != PRIORITY) or name in _LAUNCHER_VARIABLES:
            monkeypatch.delenv(name)


@pytest.fixture(autouse=True)
def clean_log() -> Iterator[None]:
    """Reset structlog after `capture_logs`, which leaves it as if the application had configured it."""
    yield
    if (structlog := sys.modules.get("structlog")) is not None:
        structlog.reset_defaults()


@pytest.fixture(autouse=True)
def clean_secrets() -> None:
    """Forget the keys of other tests."""
    if (redaction := sys.modules.get("stepprof.redaction.messages")) is not None:
        redaction._secrets.clear()


@pytest.fixture
def run_script(tmp_path: Path) -> Callable[..., Ran]:
    """Return a function that runs a script in a separate process, in the folder of the test."""

    def run(script: str, *arguments: str, timeout: float = 200, env: Mapping[str, str] | None = None) -> Ran:
        path = tmp_path / f"script_{len(list(tmp_path.glob('script_*.py')))}.py"
        path.write_text(textwrap.dedent(script))
        done = subprocess.run(
            [sys.executable, "-W", "error", str(path), *arguments],
            cwd=tmp_path,
            env={**os.environ, **(env or {})},
            capture_output=True,
            text=True,
            timeout=timeout,
            check=False,
        )
        return Ran(done.returncode, done.stdout, done.stderr)

    return run


WORKERS = 4
"""Four processes for two cores, because the tests wait for started processes half of the time."""


@pytest.hookimpl(tryfirst=True)
def pytest_cmdline_main(config: pytest.Config) -> None:
    """Run the whole suite in four processes unless `-n` is given. Tests that the
    command line names run in one.
    """
    if hasattr(config, "workerinput"):  # this is one of the four processes
        hanging.keep_pipe(config)
        return
    whole = config.args_source is pytest.Config.ArgsSource.TESTPATHS
    option = config.option
    if whole and getattr(option, "numprocesses", 0) is None and not option.usepdb and not option.collectonly:
        option.numprocesses = WORKERS
        option.dist = "loadscope"  # a class is not divided, because its tests share expensive fixtures
        option.loadscopereorder = False  # the slowest tests are among the first
    if getattr(option, "numprocesses", None):
        hanging.watch_workers(config)


def pytest_configure(config: pytest.Config) -> None:
    """Refuse to run without the packages that the tests need, instead of skipping
    tests. Markers deselect them.
    """
    if (
        signal.getsignal(signal.SIGINT) is signal.SIG_IGN
    ):  # a script started it in the background: each process of a test would ignore Ctrl-C
        signal.signal(signal.SIGINT, signal.default_int_handler)
    stderr = config.stash[STDERR] = os.dup(sys.__stderr__.fileno())  # a copy that is not captured
    hanging.watch_end(stderr)
    deselected = config.getoption("markexpr")
    for package, marker in (("torch", "torch"), ("transformers", "demo"), ("ray", "ray")):
        if f"not {marker}" not in deselected and importlib.util.find_spec(package) is None:
            raise pytest.UsageError(
                f"{package} is not installed: pip install -c constraints.txt -e '.[dev]', or deselect its tests: "
                f"-m 'not {marker}'"
            )


STDERR = pytest.StashKey[int]()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, object, object]:
    """If a test hangs in spite of pytest-timeout, write where it hangs, and end the process."""
    if not item.config.option.usepdb:
        marker = item.get_closest_marker("timeout")
        bound = marker.args[0] if marker is not None else item.config.getini("timeout") or 0
        hanging.watch_test(float(bound), item.config.stash[STDERR])
    try:
        return (yield)
    finally:
        hanging.over()


@pytest.fixture(scope="session")
def torch_server() -> Iterator[Server]:
    """Yield the process that forks for each script of `warm`."""
    from warm import Server

    server = Server()
    yield server
    server.stop()


@pytest.fixture
def warm(torch_server: Server, tmp_path: Path) -> Warm:
    """Return an object that starts scripts in which torch is loaded."""
    from warm import Warm

    return Warm(torch_server, tmp_path)


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """Mount a disk of 1 MB under `disk`. The test is skipped if mounting is not permitted."""
    folder = tmp_path / "disk"
    folder.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(folder)],
        capture_output=True,
        text=True,
        check=False,
    )
    if mounted.returncode:
        pytest.skip(f"a disk cannot be mounted here: {mounted.stderr.strip()}")
    yield folder
    subprocess.run(["umount", "-l", str(folder)], check=True)
