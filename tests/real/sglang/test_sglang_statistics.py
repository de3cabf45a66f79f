"""Compare the report's figures of tokens and retractions with the values that the real SGLang returns."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import sglang_recorded
import sglang_statistics
from driven import read_entries
from holding import reported
from sglang_driven import Trace
from sglang_host import Host

RETRACTING = {"SGLANG_TEST_RETRACT": "1", "SGLANG_TEST_RETRACT_INTERVAL": "8"}
"""SGLang's own switch for its tests. Every 8th decode step of two or more requests retracts one, as
for lack of memory.
"""
ATTEMPTS = 5


@pytest.fixture(scope="module")
def retracting(model: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Host]:
    """Return the process with an engine that counts and retracts."""
    log = tmp_path_factory.mktemp("retracting") / "log"
    made = Host(model, log, env=RETRACTING, enable_metrics=True, sleep_on_idle=True)
    yield made
    made.close()


Counts = dict[int, list[int]]


def counted(host: Host, folder: Path, steps: dict[int, tuple[int, int]]) -> tuple[Path, Counts]:
    """Return a run for which SGLang's counts arrived in time, and its answers to the requests. No
    call waits for the counts: on a busy machine an answer may be late, and then the entry has no
    counts.
    """
    for attempt in range(ATTEMPTS):
        made = folder / str(attempt)
        made.mkdir()
        truth: Counts = host.run(sglang_statistics.counted, made, steps)
        if all(entry.get("statistics") for step in (2, 3) for entry in read_entries(made, step)):
            return made, truth
    raise AssertionError(f"no counts in time in {ATTEMPTS} runs")


def test_tokens_and_retractions_are_the_engines_own(
    retracting: Host, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """In step 2, two requests are retracted; step 3 has one request without a retraction. Requests
    outside the windows are not counted.
    """
    retracting.run(sglang_recorded.warm_up)
    folder, truth = counted(retracting, tmp_path, {1: (2, 1), 2: (24, 2), 3: (5, 1)})
    assert truth[2][2] > 0
    assert truth[3][2] == 0
    for step, requests in ((2, 2), (3, 1)):
        prompt, generated, retractions = truth[step]
        (entry,) = read_entries(folder, step)
        assert entry["statistics"]["idle"] is True
        report = reported(folder / "run", capsys, step)
        (work,) = report["engines"]
        assert any(found["topic"] == "preemption" for found in report["findings"]) == (retractions > 0)
        assert (work["prompt_tokens"], work["generated_tokens"], work["preemptions"]) == (
            prompt,
            generated,
            retractions,
        )
        assert (work["requests"], work["cached_tokens"], work["limit"]) == (requests, 0, None)
        assert 0 < work["first_token"] < work["per_request"]
        stages = {stage["stage"]: stage for stage in work["stages"]}
        forward = Trace.named(folder, entry["artifacts"][0], step).forward
        assert stages["decode"]["decode_tokens"] == sum(size for kind, size in forward if kind == "DECODE")
        again = stages["prefill"]["prefill_tokens"] - prompt
        assert work["recomputed_tokens"] == again
        assert (again > 0) == (retractions > 0)


def test_times_of_bound_samples_are_the_engines_own(
    retracting: Host, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The report has SGLang's own times of six samples. Their means are those of SGLang's histograms."""
    retracting.run(sglang_recorded.warm_up)
    lengths = {f"s{number}": tokens for number, tokens in enumerate((1, 2, 5, 9, 20, 12))}
    before, after, answers = retracting.run(sglang_statistics.sampled, tmp_path, lengths)
    (row,) = [row for row in reported(tmp_path / "run", capsys)["rollout"] if row["samples"]]
    for spread, (count, seconds), (observed, total) in zip(
        (row["first_token"], row["per_token"]), before, after, strict=True
    ):
        assert spread["count"] == observed - count
        assert spread["mean"] * spread["count"] == pytest.approx(total - seconds, abs=1e-6)
    assert row["first_token"]["count"] == 6
    assert {sample["sample"]: sample["generated_tokens"] for sample in row["samples"]} == lengths
    truth = dict(zip(lengths, answers, strict=True))
    for sample in row["samples"]:
        assert sample["first_token"] == pytest.approx(
            truth[sample["sample"]]["first_token_latency"], abs=1e-6
        )
