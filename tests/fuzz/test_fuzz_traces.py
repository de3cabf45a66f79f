"""For any file that an engine leaves in its folder, a window ends in time, uses little memory, and
keeps only intact traces.

`FUZZ_TRACES` and `FUZZ_SEED` in the environment select the number of cases and the seed; `nox -s
fuzz` sets both.
"""

from __future__ import annotations

import gzip
import os
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis import strategies as st
from remote.test_artifacts import BASE, EVENT
from remote.vllm.test_driver import STAMP, make_window

from fuzz.mutations import MUTATIONS, mutate
from stepprof.remote.base import EngineWindow
from stepprof.remote.sglang import files as sglang
from stepprof.remote.sglang.request import Facts, Request
from stepprof.remote.vllm import files as vllm
from stepprof.remote.vllm.arguments import lay_out
from stepprof.remote.vllm.folder import TraceFolder
from stepprof.run.model import Artifact

CASES = int(os.environ.get("FUZZ_TRACES", "120"))
SEED = int(os.environ.get("FUZZ_SEED", "0"))
CASE_SECONDS = 20
KINDS = sorted(MUTATIONS.keys() - {"refolder", "elsewhere", "rename"})
HEAD = f'{{"schemaVersion": 1, "baseTimeNanoseconds": {BASE}, "distributedInfo": {{"rank": 0}}, "host_name": "h",\n'
PARTS = [
    *(HEAD, '"traceEvents": [\n', EVENT, ",\n", "\n", " ", "]", "}", "{", '"', "\\", "\0", "9" * 5000, "[" * 70_000),
    *('"name": "', '"name": "a"b ', ',"a":[]', '"cat": "Trace"', '"Record Window End"', '"ts": 1', '"traceName": "'),
    *('"baseTimeNanoseconds": ', '"pid": ', '"rank": ', '"name": "execute_', '"user_annotation", "name": "step['),
    *("  {\n", '"ph": "X"', ": ", ", "),
]  # fmt: skip
"""Text for which readers of a trace search."""


def text(parts: list[tuple[str, int]]) -> bytes:
    """Return a trace that consists of these parts, each repeated."""
    return "".join(part * min(times, (1 << 22) // len(part)) for part, times in parts).encode()


def fuzzed(check: Callable[..., None]) -> Callable[[], None]:
    """Return a function that calls a check with drawn files of an engine: their text, compressed or
    not, and their mutations.
    """
    part = st.tuples(st.sampled_from(PARTS), st.sampled_from([1, 1, 1, 3, 10_000, 400_000]))
    mutation = st.tuples(st.sampled_from(KINDS), st.integers(0, 2**32 - 1))
    content = st.lists(part, max_size=6).map(
        lambda found: [(HEAD, 1), ('"traceEvents": [\n', 1), (EVENT, 1), *found]
    )
    content |= st.lists(part, max_size=6)
    drawn = settings(
        max_examples=CASES // len(ENGINES),
        deadline=None,
        database=None,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    return seed(SEED)(drawn(given(content, st.booleans(), st.lists(mutation, max_size=2))(check)))


def of_vllm(folder: Path, window: EngineWindow, suffix: str, leave: Callable[[Path], None]) -> list[Artifact]:
    link = lay_out(folder / "traces")
    place = TraceFolder(link, "object:1", lambda: True)
    place.prepare()
    session = place.begin(window)
    place.lead(session)
    leave(link / f"node_7.{STAMP}.pt.trace{suffix}")
    return vllm.bring(place, session, window, "stepprof-mine", vllm.Workers()).artifacts


def of_sglang(
    folder: Path, window: EngineWindow, suffix: str, leave: Callable[[Path], None]
) -> list[Artifact]:
    leave(window.output / f"x-TP-0.trace{suffix}")
    return sglang.bring(window.output, window, Facts("engine"), Request({}, by_stage=True)).artifacts


ENGINES = (of_vllm, of_sglang)


@pytest.mark.slow
@pytest.mark.timeout(0)  # the number of cases is configurable
@pytest.mark.parametrize("engine", ENGINES)
def test_any_trace_of_an_engine_is_adopted_or_refused(engine: Callable[..., list[Artifact]]) -> None:
    """No error is raised. An artifact is a plain gzip file with events and with times of 64 bits."""

    @fuzzed
    def check(parts: list[tuple[str, int]], compressed: bool, mutations: list[tuple[str, int]]) -> None:
        def leave(path: Path) -> None:
            data = text(parts)
            path.write_bytes(gzip.compress(data, 1) if compressed else data)
            for kind, chance in mutations:
                mutate(path, kind, chance)

        with tempfile.TemporaryDirectory() as name:
            folder = Path(name) / "runs" / "r"
            window = make_window(folder)
            began = time.thread_time()
            artifacts = engine(folder, window, ".json.gz" if compressed else ".json", leave)
            assert time.thread_time() - began < CASE_SECONDS
            for artifact in artifacts:
                path = window.folder / artifact.path
                assert path.is_file()
                assert not path.is_symlink()
                assert artifact.events
                with gzip.open(path) as file:
                    assert b'"stepprof"' in file.read(100)
                times = (artifact.began_ns, artifact.ended_ns)
                assert all(each is None or 0 <= each < 1 << 64 for each in times)

    check()
