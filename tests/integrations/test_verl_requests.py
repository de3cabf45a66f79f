"""The times of a request's tokens, measured where the process of verl's server receives vLLM's outputs.
tests/real/verl uses verl's own classes.
"""

from __future__ import annotations

from types import SimpleNamespace

import pytest

import stepprof
from stepprof.integrations import verl_requests
from stepprof.integrations.verl_requests import Times
from stepprof.run.runs import list_runs
from stepprof.run.spans import read_spans


def output(tokens, *, finished=False, sequences=1, metrics=None):
    """Return an output in the form of vLLM's outputs."""
    sequence = SimpleNamespace(token_ids=[1] * tokens)
    return SimpleNamespace(outputs=[sequence] * sequences, finished=finished, metrics=metrics)


@pytest.fixture
def clock(monkeypatch):
    """Replace the clock by one that advances by a second at each reading."""
    seconds = iter(range(100))
    monkeypatch.setattr(verl_requests, "perf_counter", lambda: float(next(seconds)))


def stated(*outputs):
    """Return the statistics of a request with these outputs."""
    times = Times()
    for each in outputs:
        times.receive(each)
    return times.stated()


@pytest.mark.usefixtures("clock")
class TestTimes:
    def test_are_measured_between_outputs(self) -> None:
        """The first token arrives with the first output, and the last token with the last output."""
        assert stated(output(1), output(2), output(4, finished=True)) == {
            "generated_tokens": 4,
            "first_token_seconds": 1.0,
            "decode_seconds": 2.0,
        }

    def test_an_output_without_a_new_token_is_not_the_last_token(self) -> None:
        """An output without a new token, as at the end of an aborted request, does not extend the decode
        time.
        """
        assert stated(output(1), output(2), output(2, finished=True))["decode_seconds"] == 1.0

    def test_several_tokens_at_once(self) -> None:
        """If the first output has several tokens, the time of the first token is unknown, and no times are
        stated.
        """
        assert stated(output(3), output(4, finished=True)) == {"generated_tokens": 4}

    @pytest.mark.parametrize(
        "outputs",
        [
            (),
            (output(1), output(2)),
            (output(0, sequences=0, finished=True),),
            (output(1, sequences=2, finished=True),),
        ],
    )
    def test_a_request_without_a_whole_answer(self, outputs) -> None:
        """A request without outputs, without an end, or with other than one sequence has no statistics."""
        assert stated(*outputs) == {}

    def test_statistics_of_the_engine_come_first(self) -> None:
        """The engine's own statistics, which vLLM keeps with `disable_log_stats=False`, are preferred."""
        metrics = SimpleNamespace(
            num_generation_tokens=4, first_token_latency=0.25, first_token_ts=7.0, last_token_ts=7.5
        )
        assert stated(output(4, finished=True, metrics=metrics)) == {
            "generated_tokens": 4,
            "first_token_seconds": 0.25,
            "decode_seconds": 0.5,
        }


class TestMark:
    @pytest.mark.parametrize(("sampling", "marks"), [({}, 1), ({"prompt_logprobs": 0}, 0)])
    def test_the_mark_belongs_to_the_sample_and_the_reply_is_unchanged(
        self, tmp_path, sampling, marks
    ) -> None:
        """A request is marked with its sample, and the reply loses the additional attribute. A request
        that only scores a prompt gets no mark.
        """
        stepprof.init({"steps": "9", "backend": "null", "output_dir": str(tmp_path)})
        reply = SimpleNamespace(token_ids=[1])
        vars(reply)[verl_requests.ATTRIBUTE] = {"generated_tokens": 1}
        with stepprof.profile_step(2), stepprof.bind(sample="5.1"):
            verl_requests._mark(reply, (), {"sampling_params": sampling})
            verl_requests._mark(reply, (), {"sampling_params": sampling})  # the second reply has no times
        stepprof.shutdown()
        (run,) = list_runs(tmp_path)
        found = [each["attrs"] for each in read_spans(run, step=2) if each["kind"] == "mark"]
        assert found == [{"sample": "5.1", "generated_tokens": 1}] * marks
        assert vars(reply) == {"token_ids": [1]}
