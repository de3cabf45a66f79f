"""Provide the fixtures of the tests with the real vLLM on a CPU. The tests run in the environment
of `nox -s vllm`, and only if they are named.
"""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from ran import Ran
from warm import Running, Server

if TYPE_CHECKING:
    from vllm_driven import Live

HERE = Path(__file__).parent

QUIET = {
    "VLLM_LOGGING_LEVEL": "WARNING",
    "VLLM_NO_USAGE_STATS": "1",
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    "OMP_NUM_THREADS": "1",
}


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Turn warnings of stepprof into errors; ignore those of vLLM and its dependencies."""
    for item in items:
        if item.path.is_relative_to(HERE):
            item.add_marker(pytest.mark.filterwarnings("error:::stepprof"), append=False)
            item.add_marker(pytest.mark.filterwarnings("default"), append=False)
            item.add_marker(pytest.mark.slow)
            if item.get_closest_marker("timeout") is None:
                item.add_marker(pytest.mark.timeout(600))  # an idle machine starts an engine in 15 s


@pytest.fixture(scope="session", autouse=True)
def quiet_environment() -> None:
    """Set the environment for a machine with two cores: vLLM's processes bind none of them, and log
    little.
    """
    os.environ.update(QUIET)


@pytest.fixture(scope="session")
def model(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Return the path of the tiny model."""
    import vllm_tiny

    return vllm_tiny.model(tmp_path_factory.mktemp("model"))


@pytest.fixture(scope="session")
def live(model: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Live]:
    """Return an engine that was built to be recorded, for all tests that do not change it."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from vllm_driven import Live

        from stepprof.remote.vllm import engine_args

        engine = Live(model, **engine_args(tmp_path_factory.mktemp("traces")))
    yield engine
    engine.close()


def environment(more: dict[str, str] | None = None) -> dict[str, str]:
    """Return the environment of a script that imports the helpers of the tests."""
    given = [(more or {}).get("PYTHONPATH", ""), os.environ.get("PYTHONPATH", "")]
    paths = [str(HERE), str(HERE.parents[1] / "helpers"), *given]
    return {**os.environ, **QUIET, **(more or {}), "PYTHONPATH": os.pathsep.join(filter(None, paths))}


@pytest.fixture(scope="session")
def loaded(quiet_environment: None) -> Iterator[Server]:
    """Start the process that forks for each script that does not import vLLM itself. The import
    takes seconds, and longer under coverage.
    """
    server = Server("import vllm_driven, vllm.v1.engine.async_llm", environment())
    yield server
    server.stop()


@pytest.fixture
def run_vllm(tmp_path: Path, model: str, loaded: Server) -> Callable[..., Ran]:
    """Return a function that runs a script in its own process, because the script may end the
    process. It gets the model's path. `fresh`: the script imports vLLM itself.
    """

    def run(
        script: str,
        *arguments: str,
        timeout: float = 550,
        env: dict[str, str] | None = None,
        fresh: bool = False,
    ) -> Ran:
        path = tmp_path / f"script_{len(list(tmp_path.glob('script_*.py')))}.py"
        path.write_text(textwrap.dedent(script))
        printed, problems = path.with_suffix(".out"), path.with_suffix(".err")
        if not fresh:
            asked = {"script": str(path), "arguments": [model, *arguments], "cwd": str(tmp_path)}
            outputs = {"stdout": str(printed), "stderr": str(problems)}
            pid = loaded.ask({**asked, **outputs, "env": environment(env), "leave": False})
            assert pid is not None
            return Running(loaded, pid, printed, problems).wait(timeout)
        # files, not pipes: processes of vLLM that outlive the script would keep pipes open
        with printed.open("w") as stdout, problems.open("w") as stderr:
            done = subprocess.run(
                [sys.executable, str(path), model, *arguments],
                cwd=tmp_path,
                env=environment(env),
                stdout=stdout,
                stderr=stderr,
                timeout=timeout,
                check=False,
            )
        return Ran(done.returncode, printed.read_text(), problems.read_text())

    return run
