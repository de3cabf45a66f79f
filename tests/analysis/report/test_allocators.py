"""The report has the counters of the devices' allocators, from the summaries of the memory backend."""

from __future__ import annotations

import json

import pytest
from digested import manifest, window

from stepprof.analysis.report.allocators import read_counts
from stepprof.analysis.report.combine import combine


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
