"""For any content of `.claims` and other runs, `init` finds a run or refuses. For anything in place
of an artifact, the upload ends and uploads no other file.

`FUZZ_CLAIMS`, `FUZZ_UPLOADS` and `FUZZ_SEED` in the environment select the numbers of cases and the
seed; `nox -s fuzz` sets them.
"""

from __future__ import annotations

import os
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis import strategies as st

from fuzz.mutations import MUTATIONS, files_of, mutate
from fuzz.reading import Reader
from fuzz.wholerun import OUTSIDE, whole_run
from stepprof.follow.upload import NotUploaded, Store
from stepprof.run.layout import open_run
from stepprof.run.names import is_plain_name
from stepprof.run.rendezvous import CLAIMS, Launcher, claim_for_launcher

CLAIM_CASES = int(os.environ.get("FUZZ_CLAIMS", "40"))
UPLOAD_CASES = int(os.environ.get("FUZZ_UPLOADS", "20"))
SEED = int(os.environ.get("FUZZ_SEED", "0"))
MANY = ["000001.json", "999999999999.json", "000002.0123456789abcdef.json", "launcher-x.json"]
UPLOADED = [
    "run.json",
    "step-000002/actor/rank-0.trace.json.gz",
    "step-000002/ref/rank-0.npu/h_7_ascend_pt",
    "step-000002/manifest/actor-rank-0.json",
]
UPLOAD_SECONDS = 20.0
"""Time limit of an upload in seconds."""
Mutations = list[tuple[int, str, int]]
pytestmark = [pytest.mark.slow, pytest.mark.timeout(0)]  # the number of cases is configurable


def fuzzed(cases: int) -> Callable[[Callable[[Mutations], None]], Callable[[], None]]:
    """Return a decorator that calls a check with `cases` lists of mutations of a few files."""
    kinds = sorted(MUTATIONS.keys() - {"refolder"})
    mutation = st.tuples(st.integers(0, 99), st.sampled_from(kinds), st.integers(0, 2**32 - 1))
    drawn = settings(
        max_examples=cases,
        deadline=None,
        database=None,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    return lambda check: seed(SEED)(drawn(given(st.lists(mutation, min_size=1, max_size=3))(check)))


def changed(folder: Path, mutations: Mutations) -> Path:
    """Mutate some files of a folder, or subfolders, which a file replaces first. Return the folder."""
    places = sorted(path for path in folder.rglob("*"))
    for number, kind, chance in mutations:
        path = places[number % len(places)]
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
            path.write_bytes(b"")
        mutate(path, kind, chance)
    return folder


RANK = {"RANK": "1", "WORLD_SIZE": "2", "MASTER_ADDR": "h", "MASTER_PORT": "1"}
"""The environment of a rank whose launcher does not name its job."""


def opened(reader: Reader, runs: Path, local_rank: int) -> Path | None:
    """Return the run that `init` finds, or None if it refuses."""
    outcome = reader.open_run(runs, {**RANK, "LOCAL_RANK": str(local_rank)})
    assert outcome.traceback == ""
    if outcome.status == 2:
        assert outcome.err.startswith("stepprof ")
        return None
    assert outcome.status == 0
    return Path(outcome.out)


@pytest.fixture(scope="module")
def reader() -> Iterator[Reader]:
    """Return a process whose launcher is this process."""
    reader = Reader()
    yield reader
    reader.close()


@pytest.fixture(scope="module")
def runs(reader: Reader) -> Iterator[Path]:
    """Return a folder with runs of this launcher, of other launchers, and of the process that
    started the rank.
    """
    with tempfile.TemporaryDirectory() as folder:
        runs = Path(folder) / "runs"
        for name, began in (("L1", time.time()), ("L2", 1000.0)):
            claim_for_launcher(runs, "h 1", Launcher("other", name, began), 2)
        agreed = opened(reader, runs, 0)
        assert opened(reader, runs, 0) == agreed is not None
        for name in MANY:
            (next((runs / CLAIMS).iterdir()) / name).touch()
        parents = open_run(runs, run_id=None, rank=0, world_size=1, environ={}, description={})
        assert opened(reader, runs, 1) == parents.path
        yield runs


@pytest.fixture(scope="module")
def whole() -> Iterator[Path]:
    """Return a run with every kind of file."""
    with tempfile.TemporaryDirectory() as folder:
        yield whole_run(Path(folder) / "runs")


class TestClaims:
    def test_init_survives_any_files_in_the_claims_folder(self, reader: Reader, runs: Path) -> None:
        """`init` opens a run directly below the folder and follows no link out of it, or gives a
        one-line reason for refusing.
        """

        @fuzzed(CLAIM_CASES)
        def check(mutations: Mutations) -> None:
            with tempfile.TemporaryDirectory() as folder:
                copy = Path(folder) / "runs"
                shutil.copytree(runs, copy)
                (copy / "outside.txt").write_text(OUTSIDE)
                run = opened(reader, changed(copy, mutations), mutations[0][2] % 2)
                if run is not None:
                    assert run.parent == copy
                    assert is_plain_name(run.name)
                    assert os.path.lexists(run / "run.json")

        check()


class TestUploads:
    def uploaded(self, url: str, run: Path, seconds: float) -> list[str | None]:
        """Upload the files of a run to a URL. Return for each the reason why it was not uploaded."""
        reasons = []
        for path in UPLOADED:
            store = Store(url, seconds, tries=1)
            began = time.monotonic()
            try:
                store.put(run, path)
                reasons.append(None)
            except NotUploaded as error:
                reasons.append(str(error))
            assert time.monotonic() - began < seconds * 10 + 20
        assert all(reason is None or reason.isprintable() for reason in reasons)
        return reasons

    def test_a_whole_run(self, whole: Path, tmp_path: Path) -> None:
        """The undamaged run, from which the cases below are made, is uploaded completely."""
        assert self.uploaded(f"file://{tmp_path}/up", whole, 60.0) == [None] * len(UPLOADED)

    def test_uploads_survive_any_files_in_the_run(self, whole: Path) -> None:
        """Each upload ends in time, with a reason in one line if it fails. The target contains only
        plain files of the run.
        """

        with tempfile.TemporaryDirectory() as root:

            @fuzzed(UPLOAD_CASES)
            def check(mutations: Mutations) -> None:
                with tempfile.TemporaryDirectory(dir=root) as folder:
                    run, target = Path(folder) / "runs" / "r", Path(folder) / "up"
                    shutil.copytree(whole.parent, run.parent)
                    files = [path for name in UPLOADED for path in files_of(run / name) or [run / name]]
                    for number, kind, chance in mutations:
                        mutate(files[number % len(files)], kind, chance)
                    self.uploaded(f"file://{target}", run, UPLOAD_SECONDS)
                    for path in files_of(target):
                        assert not path.is_symlink()
                        assert path.read_bytes() == (run / path.relative_to(target)).read_bytes()
                        assert OUTSIDE.encode() not in path.read_bytes()

            check()
