"""The cost of an engine's stop, with an estimate for other bounds (there is none without data), and the counters of the devices' allocators."""

from __future__ import annotations

import json

import pytest
from digested import engine, engine_entry, manifest, window

from stepprof.analysis.report.combine import combine
from stepprof.analysis.report.digest import digest
from stepprof.analysis.report.processes import gather
from stepprof.analysis.report.schema import StopCost
from stepprof.analysis.report.totals import read_counts, recorded_steps, stop_costs

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


def manifest_of(*paths):
    """Return a manifest with a window of the memory backend for each summary."""
    artifacts = [{"path": path, "kind": "memory-summary", "bytes": 9, "events": None} for path in paths]
    return manifest(*(window(backend="memory", artifacts=[each]) for each in artifacts))


def summary(folder, name, *devices):
    keys = ("device", "num_alloc_retries", "num_ooms")
    content = {"devices": [dict(zip(keys, device, strict=True)) for device in devices]}
    (folder / name).write_text(json.dumps(content))


def test_the_finding_has_the_counts_of_the_last_summary(tmp_path):
    """The counters run since the process began, so the last summary has the total."""
    summary(tmp_path, "a.json", (0, 3, 0), (1, 0, 0))
    summary(tmp_path, "b.json", (0, 5, 1), (1, 0, 0))
    manifests = [manifest_of("a.json", "b.json")]
    made = combine([], step=2, manifests=manifests, counts=read_counts(tmp_path, manifests))
    assert [(each.label, each.device, each.retries, each.failed) for each in made.allocators] == [
        ("actor rank 0", 0, 5, 1)
    ]
    (found,) = [each for each in made.findings if each.topic == "memory"]
    assert found.text == (
        "the allocator of actor rank 0 (device 0) found no memory 5 times since its process began, and freed its cache; 1 request failed"
    )


@pytest.mark.parametrize(
    "content", ["", "[]", '{"devices": [{"device": 0, "num_alloc_retries": -1, "num_ooms": 0}, 3]}']
)
def test_a_damaged_summary_is_left_out(tmp_path, content):
    (tmp_path / "a.json").write_text(content)
    manifests = [manifest_of("a.json", "missing.json")]
    assert combine([], step=2, manifests=manifests, counts=read_counts(tmp_path, manifests)).allocators == []
