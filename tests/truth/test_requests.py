"""Random samples with known requests: the report has their times, and no time that the requests do
not state.
"""

from __future__ import annotations

import asyncio
import math
import os
import random
from pathlib import Path
from statistics import mean
from typing import Any

import pytest

import stepprof
from stepprof.analysis.report.analyse import analyse
from stepprof.analysis.report.schema import Rollout, SampleSeconds
from stepprof.analysis.timeline.find import find

STEPS = int(os.environ.get("TRUTH_STEPS", "100")) // 10
SEED = int(os.environ.get("TRUTH_SEED", "0"))

Request = dict[str, float]
Samples = dict[str, list[Request]]


def drawn(chance: random.Random) -> Request:
    """Return what an engine states of a request: all figures, or only some of them."""
    tokens = chance.choice((0, 1, 2, 17, 1000))
    whole = {
        "first_token_seconds": chance.uniform(0, 3),
        "decode_seconds": 0.0 if tokens < 2 else chance.uniform(0.01, 30),
        "generated_tokens": tokens,
    }
    if chance.random() < 0.3:
        del whole[chance.choice(list(whole))]
    return whole


async def generated(name: str, requests: list[Request]) -> None:
    """Run one sample, which makes its requests one after another."""
    with stepprof.bind(sample=name):
        for request in requests:
            with stepprof.region("generate"):
                await asyncio.sleep(0.001)
            stepprof.mark("request", **request)
        with stepprof.region("score"):
            await asyncio.sleep(0)
        # these marks state no request
        stepprof.mark("scored", generated_tokens=True, first_token_seconds="soon", decode_seconds=-1)
        stepprof.mark("scored", generated_tokens=2.5, first_token_seconds=1e17, decode_seconds=2**62)


async def rollout(samples: Samples) -> None:
    """Generate all samples concurrently."""
    stepprof.mark("request", first_token_seconds=99.0)  # this mark belongs to no sample
    await asyncio.gather(*(generated(name, requests) for name, requests in samples.items()))


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[int, Samples]]:
    """Return the folder of a run, and the requests of each of its steps."""
    folder, chance = tmp_path_factory.mktemp("requests"), random.Random(SEED)
    truth = {}
    roles = {"rollout": {}, "reward": {}}
    config = {"output_dir": str(folder), "backend": "null", "steps": f"1-{STEPS}", "roles": roles}
    stepprof.init(config, run_id="run")
    for step in range(1, STEPS + 1):
        names = [f"s{number}" for number in range(chance.randint(2, 12))]
        truth[step] = {name: [drawn(chance) for _ in range(chance.randint(0, 3))] for name in names}
        with stepprof.profile_step(step, role="rollout"):
            asyncio.run(rollout(truth[step]))
        with stepprof.profile_step(step, role="reward"), stepprof.bind(sample="s0"):
            stepprof.mark("request", first_token_seconds=77.0)  # a request of another role
    stepprof.shutdown()
    return folder, truth


def row_of(folder: Path, step: int) -> Rollout:
    (row,) = analyse(find([folder / "run"], step=step, output_dir=folder), workers=1).rollout
    return row


def per_token(request: Request) -> float | None:
    """Return the seconds between two tokens of a request, or None if it does not state them."""
    tokens = request.get("generated_tokens", 0)
    return request["decode_seconds"] / (tokens - 1) if tokens > 1 and "decode_seconds" in request else None


def same(reported: SampleSeconds | None, true: list[float]) -> None:
    """Compare a distribution with its true values."""
    if reported is None:
        assert not true
        return
    ordered = sorted(true)
    assert reported.count == len(true)
    assert [reported.mean, reported.median, reported.p95, reported.longest] == pytest.approx(
        [mean(true), *(ordered[math.ceil(part * len(true)) - 1] for part in (0.5, 0.95, 1))], abs=1e-8
    )


@pytest.mark.parametrize("step", range(1, STEPS + 1))
def test_all_requests(recorded: tuple[Path, dict[int, Samples]], step: int) -> None:
    """The distributions cover the requests of all samples that state the figure, and nothing else."""
    folder, truth = recorded
    requests = [request for each in truth[step].values() for request in each]
    row = row_of(folder, step)
    same(row.first_token, [each["first_token_seconds"] for each in requests if "first_token_seconds" in each])
    same(row.per_token, [took for took in map(per_token, requests) if took is not None])
    same(row.generated_tokens, [each["generated_tokens"] for each in requests if "generated_tokens" in each])


@pytest.mark.parametrize("step", range(1, STEPS + 1))
def test_each_sample_has_the_means_of_its_requests(
    recorded: tuple[Path, dict[int, Samples]], step: int
) -> None:
    """A sample has the means of its own requests. A figure that no request states is None."""
    folder, truth = recorded
    row = row_of(folder, step)
    assert {each.sample for each in row.samples} == set(truth[step])
    for sample in row.samples:
        requests = truth[step][sample.sample]
        first = [each["first_token_seconds"] for each in requests if "first_token_seconds" in each]
        paced = [each for each in requests if per_token(each) is not None]
        tokens = [each.get("generated_tokens") for each in requests]
        true: dict[str, Any] = {
            "requests": len(requests),
            "generated_tokens": sum(tokens) if tokens and None not in tokens else None,  # type: ignore[arg-type]
            "first_token": mean(first) if first else None,
            "per_token": sum(each["decode_seconds"] for each in paced)
            / sum(each["generated_tokens"] - 1 for each in paced)
            if paced
            else None,
        }
        for name, value in true.items():
            reported = getattr(sample, name)
            assert reported == value if value is None else reported == pytest.approx(value, abs=1e-8), name
