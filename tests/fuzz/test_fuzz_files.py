"""For any content of a run directory, each reading command ends with a reason and without a
traceback.

`FUZZ_CASES` and `FUZZ_SEED` in the environment select the number of cases and the seed; `nox -s
fuzz` sets both.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from pathlib import Path

import pytest
from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis import strategies as st

from fuzz.mutations import DESTROYED, MUTATIONS, files_of, mutate
from fuzz.reading import COMMANDS, Reader
from fuzz.wholerun import OUTSIDE, whole_run

CASES = int(os.environ.get("FUZZ_CASES", "150"))
SEED = int(os.environ.get("FUZZ_SEED", "0"))
PARTS = max(CASES // 1000, 4)
"""Number of parts into which the cases are divided, for several processes."""
READ = ("run.json", "spans/", "step-000002/manifest/", "step-000002/actor/", "step-000002/ref/rank-0.memory.pickle", "step-000002/rollout/")  # fmt: skip
"""The files that `check` reads."""

Case = tuple[str, list[tuple[int, str, int]]]


def cases() -> st.SearchStrategy[Case]:
    """Draw a command and the mutations of a few files."""
    mutation = st.tuples(st.integers(0, 99), st.sampled_from(list(MUTATIONS)), st.integers(0, 2**32 - 1))
    return st.tuples(st.sampled_from(list(COMMANDS)), st.lists(mutation, min_size=1, max_size=3))


@pytest.fixture(scope="module")
def whole():
    """Return a run with every kind of file."""
    with tempfile.TemporaryDirectory() as folder:
        yield whole_run(Path(folder) / "runs")


@pytest.fixture(scope="module")
def reader():
    """Return a process that reads runs."""
    reader = Reader()
    yield reader
    reader.close()


def wrong(command: str, mutations: list[tuple[int, str, int]], whole: Path, reader: Reader) -> str:
    """Return the problem of a command on a damaged run; an empty string if there is none."""
    files = [path.relative_to(whole) for path in files_of(whole)]
    with tempfile.TemporaryDirectory() as folder:
        run = Path(folder) / "runs" / "r"
        shutil.copytree(whole.parent, run.parent)
        for number, kind, chance in mutations:
            mutate(run / files[number % len(files)], kind, chance)
        found = reader.carry_out(command, run, Path(folder))
    about = f"{command} of {[(str(files[n % len(files)]), kind, s) for n, kind, s in mutations]}: "
    if found.traceback or found.status not in (0, 1, 2):
        return f"{about}status {found.status}\n{found.traceback}"
    if found.status == 2 and not found.err.startswith("stepprof "):
        return f"{about}no reason: {found.err!r}"
    if OUTSIDE.strip() in found.out + found.err:
        return f"{about}shows a file that a link leads to"
    if not mutations:
        return ""
    number, kind, _ = mutations[0]
    name = files[number % len(files)].as_posix()
    if command == "check" and kind in DESTROYED and name.startswith(READ) and len(mutations) == 1:
        said = Path(name).name in found.out
        return "" if found.status == 1 and said else f"{about}not found: status {found.status}\n{found.out}"
    return ""


@pytest.mark.slow
@pytest.mark.timeout(0)  # the number of cases is configurable
@pytest.mark.parametrize("part", range(PARTS))
def test_every_command_ends_with_a_documented_status(part: int, whole: Path, reader: Reader) -> None:
    """Each command ends with a documented exit status, within time and memory. `check` reports a
    file that cannot be read at all.
    """

    @seed(SEED + part)
    @settings(
        max_examples=-(-CASES // PARTS),
        deadline=None,
        database=None,
        phases=[Phase.generate],  # cases are small without shrinking
        suppress_health_check=list(HealthCheck),
    )
    @given(cases())
    def check(case: Case) -> None:
        problem = wrong(*case, whole, reader)
        assert not problem, problem

    check()


@pytest.mark.parametrize("command", COMMANDS)
def test_a_whole_run(command: str, whole: Path, reader: Reader) -> None:
    """Every command reads the undamaged run, from which the cases above are made."""
    assert wrong(command, [], whole, reader) == ""
