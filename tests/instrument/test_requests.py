"""The figures that `mark_request` reads from answers of engines. Answers of
real engines are in tests/real.
"""

from __future__ import annotations

import sys
from types import SimpleNamespace

import pytest
from spanning import spans_of

import stepprof

WHOLE = {"first_token_seconds": 0.25, "decode_seconds": 2.0, "generated_tokens": 9}


def of_vllm(*, finished=True, sequences=1, **metrics):
    """Return an answer in vLLM's form."""
    times = {
        "num_generation_tokens": 9,
        "first_token_latency": 0.25,
        "first_token_ts": 70.0,
        "last_token_ts": 72.0,
    }
    return SimpleNamespace(
        metrics=SimpleNamespace(**{**times, **metrics}), outputs=[object()] * sequences, finished=finished
    )


def of_sglang(**changed):
    """Return an answer in SGLang's form."""
    stated = {"first_token_latency": 0.25, "e2e_latency": 2.25, "completion_tokens": 9, **changed}
    return {"text": "a", "meta_info": {name: value for name, value in stated.items() if value is not None}}


@pytest.fixture
def marked(tmp_path):
    """Return a function that marks answers, and returns the attributes of the marks."""

    def marked(*answers):
        session = stepprof.init({"output_dir": str(tmp_path)})
        with stepprof.profile_step(1), stepprof.bind(sample="a"):
            for answer in answers:
                stepprof.mark_request(answer)
        return [span["attrs"] for span in spans_of(session, kind="mark")]

    return marked


class TestMarkRequest:
    @pytest.mark.parametrize("answer", [of_vllm(), of_sglang()])
    def test_the_times_are_of_the_bound_sample(self, marked, answer):
        assert marked(answer) == [{"sample": "a", **WHOLE}]

    def test_a_list_of_answers(self, marked):
        assert len(marked([of_vllm(), of_sglang()])) == 2

    @pytest.mark.parametrize(
        ("answer", "missing"),
        [
            (of_sglang(first_token_latency=None), {"first_token_seconds", "decode_seconds"}),
            (of_sglang(completion_tokens=None), {"generated_tokens"}),
            (of_vllm(first_token_ts=None), {"decode_seconds"}),
            (of_vllm(first_token_latency=None), {"first_token_seconds"}),
        ],
    )
    def test_unstated_times_are_left_out(self, marked, answer, missing):
        (attributes,) = marked(answer)
        assert WHOLE.keys() - attributes.keys() == missing

    @pytest.mark.parametrize(
        "answer",
        [
            of_vllm(finished=False),
            of_vllm(sequences=2),
            of_vllm(num_generation_tokens=0),
            SimpleNamespace(metrics=None, outputs=[1], finished=True),
            of_sglang(e2e_latency=None),
            {"text": "a"},
            {"meta_info": "a"},
            None,
            7,
            [],
        ],
    )
    def test_an_answer_without_times_records_nothing(self, marked, answer):
        assert marked(answer) == []

    def test_a_version_that_states_the_time_of_the_first_fifty_tokens(self, marked, monkeypatch):
        monkeypatch.setitem(sys.modules, "sglang", SimpleNamespace(__version__="0.5.21"))
        assert marked(of_sglang()) == [{"sample": "a", "generated_tokens": 9}]

    def test_without_a_session_nothing_happens(self):
        assert stepprof.mark_request(of_vllm()) is None
