"""Test the times of requests with the real classes of verl and vLLM: the server, vLLM's stream,
verl's reply and its client.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
import verl_job

from stepprof.integrations.verl_requests import ATTRIBUTE

PAUSE = 0.05
"""Seconds before each token, as in requests_job.py. That module cannot be imported here."""
FIELDS = ["extra_fields", "log_probs", "num_preempted", "routed_experts", "stop_reason", "token_ids"]
"""The fields of verl's reply."""


@pytest.fixture(scope="module")
def seen(tmp_path_factory):
    """Run requests_job.py and return its results."""
    folder = tmp_path_factory.mktemp("requests")
    verl_job.prepare(folder)
    command = [sys.executable, str(Path(__file__).with_name("requests_job.py")), str(folder)]
    subprocess.run(command, env=verl_job.environment(folder), check=True, timeout=600)
    return json.loads((folder / "seen.json").read_text())


@pytest.fixture
def marks(seen):
    """Return the marks by sample."""
    return {each.pop("sample"): each for each in json.loads(json.dumps(seen["marks"]))}


class TestRequest:
    def test_times_are_measured_when_outputs_arrive(self, seen, marks) -> None:
        """verl keeps no statistics of vLLM by default, so stepprof measures the times when outputs
        arrive.
        """
        assert seen["attached"] == [True, True]
        measured = marks["measured"]
        assert measured["generated_tokens"] == 4
        assert PAUSE * 0.9 < measured["first_token_seconds"] < PAUSE + 2
        assert 3 * PAUSE * 0.9 < measured["decode_seconds"] < 3 * PAUSE + 2

    def test_times_come_from_vllms_statistics_if_kept(self, marks) -> None:
        """With `disable_log_stats=False` the times are those of vLLM's statistics."""
        assert marks["stated"] == {
            "generated_tokens": 4,
            "first_token_seconds": 0.5,
            "decode_seconds": 2.0,
        }

    def test_requests_that_are_only_part_of_a_sample_have_no_times(self, seen, marks) -> None:
        """A request that only scores a text, and one that only prefills, get no times."""
        assert "scored" not in marks
        assert seen["scored"] == seen["prefilled"] == FIELDS


class TestJob:
    def test_the_job_gets_the_same_replies(self, seen) -> None:
        """The client gets the reply that it gets without stepprof. On the way, the reply has one
        more attribute and unchanged fields.
        """
        assert seen["measured"] == seen["plain"]
        assert seen["sent"] == sorted([*FIELDS, ATTRIBUTE])
        kept = {**seen["plain"], "extra_fields": seen["sent_fields"]["extra_fields"]}
        assert seen["sent_fields"] == kept
        assert seen["sent_fields"]["extra_fields"].keys() <= seen["plain"]["extra_fields"].keys()

    def test_methods_keep_their_kind(self, seen) -> None:
        """The replaced methods are coroutine functions with their parameters, because Ray checks both."""
        assert seen["coroutines"] == [True, True]
        assert "kv_transfer_params" in seen["parameters"]

    def test_a_cancelled_request_is_aborted_in_the_engine(self, seen) -> None:
        """A cancellation passes through stepprof's reader of the outputs and aborts the request in
        the engine.
        """
        assert seen["cancelled"]
        assert len(seen["aborted"]) == 1

    def test_an_error_of_stepprof_does_not_reach_verl(self, seen, marks) -> None:
        """If stepprof fails, the job gets its tokens and the request has no mark."""
        assert seen["failed"] == seen["plain"]
        assert "failed" not in marks
