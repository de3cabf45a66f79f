"""What the report says of tokens and retractions, next to what the real SGLang returns."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import sglang_recorded
import sglang_statistics
from driven import told
from holding import reported
from sglang_driven import Trace
from sglang_host import Host

CRAMPED = {
    "enable_metrics": True,
    "sleep_on_idle": True,
    "max_total_tokens": 256,
    "schedule_conservativeness": 0.1,
}
"""Memory for 256 tokens, and an admission that hopes for short answers."""


@pytest.fixture(scope="module")
def cramped(model: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Host]:
    """Return the process that holds an engine that counts and has little memory."""
    made = Host(model, tmp_path_factory.mktemp("cramped") / "log", **CRAMPED)
    yield made
    made.close()


def test_tokens_and_retractions_are_the_engines_own(
    cramped: Host, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Step 2 does not fit into the memory, step 3 does; around them runs what is not theirs."""
    cramped.run(sglang_recorded.warm_up)
    truth = cramped.run(sglang_statistics.counted, tmp_path, {1: (2, 1), 2: (150, 2), 3: (5, 2)})
    assert truth[2][2] > 0
    for step in (2, 3):
        prompt, generated, retractions = truth[step]
        (entry,) = told(tmp_path, step)
        assert entry["statistics"]["idle"] is True
        (work,) = reported(tmp_path / "run", capsys, step)["engines"]
        assert (work["prompt_tokens"], work["generated_tokens"], work["preemptions"]) == (
            prompt,
            generated,
            retractions,
        )
        assert (work["requests"], work["cached_tokens"], work["limit"]) == (2, 0, None)
        assert 0 < work["first_token"] < work["per_request"]
        stages = {stage["stage"]: stage for stage in work["stages"]}
        forward = Trace.named(tmp_path, entry["artifacts"][0], step).forward
        assert stages["decode"]["decode_tokens"] == sum(size for kind, size in forward if kind == "DECODE")
        again = stages["prefill"]["prefill_tokens"] - prompt
        assert work["recomputed_tokens"] == again
        assert (again > 0) == (retractions > 0)
