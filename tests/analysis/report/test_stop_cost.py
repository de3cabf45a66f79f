"""The cost of an engine's stop, and estimates of it for other limits. There is no estimate without data."""

from __future__ import annotations

import pytest
from digested import engine, engine_entry

from stepprof.analysis.report.digest import digest
from stepprof.analysis.report.processes import gather
from stepprof.analysis.report.schema import StopCost
from stepprof.analysis.report.stop_cost import recorded_steps, stop_costs

STEPS = [(at * 10, 8, 4) for at in range(40)]


def processes(*workers, replica=0):
    """Return an engine's workers, each with this number of recorded forward steps."""
    made = []
    for rank, steps in enumerate(workers):
        each = digest(engine(replica, *STEPS[:steps], rank=rank))
        made.append(
            type(each)(
                **{**{key: getattr(each, key) for key in each.__struct_fields__}, "recorded_steps": steps}
            )
        )
    return gather(made, [])


class TestEstimate:
    def test_cost_is_in_proportion_to_the_forward_steps(self):
        """The estimate uses the worker with the most forward steps, because the stop waits for all workers."""
        reported = engine_entry(write_seconds=2.0)
        assert stop_costs(processes(10, 40), [reported]) == [
            StopCost("rollout/0", 40, 2.0, "write", [(32, 1.6), (128, 6.4), (512, 25.6)])
        ]

    def test_no_estimate_for_the_actual_limit(self):
        """There is no estimate for the actual limit, because its cost was measured."""
        (cost,) = stop_costs(processes(32), [engine_entry(write_seconds=2.0, capped_by="engine")])
        assert [bound for bound, _ in cost.estimates] == [128, 512]

    def test_the_stop_is_used_if_the_write_time_is_unknown(self):
        """The cost is the time of the stop, less the time for which the engine kept recording."""
        (cost,) = stop_costs(processes(20), [engine_entry(stop_seconds=12.0, overrun_seconds=10.0)])
        assert (cost.seconds, cost.basis) == (2.0, "stop")

    @pytest.mark.parametrize(
        "entry",
        [
            {"stop_seconds": 0.1, "capped_by": "engine"},
            {"stop_seconds": None},
            {"status": "lost", "write_seconds": 1.0},
            {"kind": "rank", "write_seconds": 1.0},
            {"replica": 7, "write_seconds": 1.0},
        ],
    )
    def test_no_estimate_without_data(self, entry):
        """There is no estimate if the engine's capture ended before the stop, or if the trace has
        no forward steps.
        """
        assert stop_costs(processes(20), [engine_entry(**entry)]) == []

    def test_forward_steps_of_each_engine(self):
        """The key is the engine's name from the manifest."""
        assert recorded_steps([*processes(3, 5), *processes(7, replica=1)]) == {
            "rollout/0": 5,
            "rollout/1": 7,
        }
