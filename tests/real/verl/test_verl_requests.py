"""The times of requests through the real classes of verl and vLLM: the server, vLLM's stream, verl's reply and its client."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
import verl_job

from stepprof.integrations.verl_requests import ATTRIBUTE

PAUSE = 0.05
"""Seconds before each token, as in requests_job.py, whose imports need its environment."""
FIELDS = ["extra_fields", "log_probs", "num_preempted", "routed_experts", "stop_reason", "token_ids"]
"""Of verl's reply."""


@pytest.fixture(scope="module")
def seen(tmp_path_factory):
    """Return what the process of requests_job.py saw."""
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
        """verl keeps no statistics of vLLM unless it is asked to."""
        assert seen["attached"] == [True, True]
        measured = marks["measured"]
        assert measured["generated_tokens"] == 4
        assert PAUSE * 0.9 < measured["first_token_seconds"] < PAUSE + 2
        assert 3 * PAUSE * 0.9 < measured["decode_seconds"] < 3 * PAUSE + 2

    def test_times_come_from_vllms_statistics_if_kept(self, marks) -> None:
        """`disable_log_stats=False`."""
        assert marks["stated"] == {
            "generated_tokens": 4,
            "first_token_seconds": 0.5,
            "decode_seconds": 2.0,
        }

    def test_requests_that_are_only_part_of_a_sample_have_no_times(self, seen, marks) -> None:
        """A teacher scores a text, and a server that prefills leaves the rest to another one."""
        assert "scored" not in marks
        assert seen["scored"] == seen["prefilled"] == FIELDS


class TestJob:
    def test_the_job_gets_the_same_replies(self, seen) -> None:
        """verl's reply has its own fields alone; on the way no field is changed."""
        assert seen["measured"] == seen["plain"]
        assert seen["sent"] == sorted([*FIELDS, ATTRIBUTE])
        kept = {**seen["plain"], "extra_fields": seen["sent_fields"]["extra_fields"]}
        assert seen["sent_fields"] == kept
        assert seen["sent_fields"]["extra_fields"].keys() <= seen["plain"]["extra_fields"].keys()

    def test_methods_keep_their_kind(self, seen) -> None:
        """Ray looks whether a method of an actor is a coroutine function, and for its parameters."""
        assert seen["coroutines"] == [True, True]
        assert "kv_transfer_params" in seen["parameters"]

    def test_a_cancelled_request_is_aborted_in_the_engine(self, seen) -> None:
        """The cancellation passes through the look at the outputs."""
        assert seen["cancelled"]
        assert len(seen["aborted"]) == 1

    def test_an_error_of_stepprof_does_not_reach_verl(self, seen, marks) -> None:
        """The job gets its tokens."""
        assert seen["failed"] == seen["plain"]
        assert "failed" not in marks
