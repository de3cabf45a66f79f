"""A step without a rollout is reported if the spans show that other steps have one. The finding names the
nearest of these steps.
"""

from __future__ import annotations

import json

import pytest
from digested import manifest, spans, window

from stepprof.analysis.findings.neighbours import no_rollout
from stepprof.analysis.report.combine import combine
from stepprof.analysis.report.digest import digest


@pytest.fixture
def write(tmp_path):
    """Return a function that writes a span file of a process from its windows, (step, role), and
    returns the run.
    """
    (tmp_path / "spans").mkdir()

    def make(*windows, rank=0, number=1):
        header = {"kind": "spans", "rank": rank, "host": "h", "pid": 100}
        lines = [
            {"name": role or "step", "kind": "window", "thread": 1, "task": None, "step": step, "role": role, "start": 1, "dur": 1}
            for step, role in windows
        ]  # fmt: skip
        path = tmp_path / "spans" / f"rank-{rank}.{number:06d}.jsonl"
        path.write_text("".join(json.dumps(line) + "\n" for line in (header, *lines)))
        return tmp_path

    return make


def steps(*numbers, rollouts=()):
    """Return the windows of these steps; those in `rollouts` have a rollout."""
    return [(number, role) for number in numbers for role in (*(["rollout"] if number in rollouts else []), None)]  # fmt: skip


def texts(run, step=3, roles=()):
    return [finding.text for finding in no_rollout([run], step, set(roles))]


SENTENCE = "no process recorded a rollout in this step; the nearest step with one is step {}"


class TestNoRollout:
    def test_the_nearest_step_is_named(self, write):
        run = write(*steps(1, 2, 3, 4, 5, rollouts=(1, 4)))
        assert texts(run) == [SENTENCE.format(4)]
        (finding,) = no_rollout([run], 3, set())
        assert (finding.topic, finding.advice) == (
            "no_rollout",
            "record that step if generation matters: `--steps 4`",
        )

    def test_of_two_equally_near_steps_the_later_is_named(self, write):
        assert texts(write(*steps(2, 3, 4, rollouts=(2, 4)))) == [SENTENCE.format(4)]

    def test_spans_may_have_been_rolled_over(self, write):
        write(*steps(1, rollouts=(1,)), number=1)
        assert texts(write(*steps(2, 3), number=2)) == [SENTENCE.format(1)]

    def test_a_loop_that_has_windows_of_roles_alone(self, write):
        """In a loop without step windows, a step is over once its process is in a later one. Before
        that, its rollout may still come.
        """
        windows = [(1, "rollout"), (1, "actor"), (2, "rollout"), (2, "actor"), (3, "actor")]
        assert texts(write(*windows, (4, "actor"))) == [SENTENCE.format(2)]
        assert texts(write(*windows)) == []

    @pytest.mark.parametrize(
        ("windows", "roles"),
        [
            (steps(1, 2, 3, 4, rollouts=(1, 3)), ()),
            (steps(1, 2, 3, 4, rollouts=(1,)), ("rollout",)),
            (steps(1, 2, 3, 4), ()),
            (steps(1, 2, 4, rollouts=(1,)), ()),
        ],
        ids=["it has one", "a trace shows one", "no step has one", "its spans are missing"],
    )
    def test_no_finding_without_evidence(self, write, windows, roles):
        assert texts(write(*windows), roles=roles) == []

    def test_a_rollout_of_any_process_counts(self, write):
        for rank in range(6):
            write(*steps(1, 2, 3, rollouts=(1,)), rank=rank)
        assert texts(write(*steps(3, rollouts=(3,)), rank=6)) == []

    def test_a_run_without_spans(self, tmp_path):
        assert texts(tmp_path) == []


def test_the_report_has_the_finding_after_the_step_length(write):
    """The finding follows the one about the step's length, and has no seconds."""
    run = write(*steps(1, 2, 3, rollouts=(1, 3)))
    reported = spans(0, ("window", "step", 0, 100, None), ("window", "actor", 0, 60, "actor"))
    made = combine([digest(reported)], step=2, manifests=[manifest(window(0))], runs=[run])
    assert [finding.topic for finding in made.findings][:2] == ["step", "no_rollout"]
    assert made.findings[1].seconds is None
