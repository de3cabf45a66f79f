"""Traces that torch wrote: the source has every event of both exporters, on Unix time."""

from __future__ import annotations

import gzip
import inspect
import json
import time
from collections import Counter

import pytest

from stepprof.analysis.timeline.find import find
from stepprof.analysis.timeline.load import load
from stepprof.analysis.timeline.raw import read_header

pytestmark = pytest.mark.torch


@pytest.fixture(scope="module")
def traces(tmp_path_factory):
    """Return a folder with one capture in every form that torch writes, and the Unix times [ns]
    before, in and after it.
    """
    import torch
    from torch.profiler import ProfilerActivity, profile, record_function

    folder = tmp_path_factory.mktemp("traces")
    model = torch.nn.Linear(8, 8)

    def work():
        with record_function("outer"):
            model(torch.randn(4, 8)).sum().backward()

    work()
    began = time.time_ns()
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiler:
        with record_function("bracketed"):
            inside = time.time_ns()
            time.sleep(0.002)
        work()
    ended = time.time_ns()
    profiler.export_chrome_trace(str(folder / "cpp.trace.json"))
    (folder / "cpp.trace.json.gz").write_bytes(gzip.compress((folder / "cpp.trace.json").read_bytes()))
    if "use_python_export" in inspect.signature(profiler.export_chrome_trace).parameters:
        profiler.export_chrome_trace(str(folder / "python.trace.json"), use_python_export=True)
    with profile(activities=[ProfilerActivity.CPU], with_stack=True, record_shapes=True) as profiler:
        work()
    profiler.export_chrome_trace(str(folder / "stacks.trace.json"))
    return folder, began, inside, ended


def sources(traces):
    found = find([traces[0]], output_dir=traces[0])
    return {each.origin.path: load(each, args=True) for each in found.inputs}


def read_json(folder, name):
    data = (folder / name).read_bytes()
    return json.loads(gzip.decompress(data) if name.endswith(".gz") else data)


def test_every_event(traces):
    """For each phase the source has as many events as Python's JSON parser finds, with the same names."""
    assert len(sources(traces)) >= 3
    for name, source in sources(traces).items():
        events = read_json(traces[0], name)["traceEvents"]
        slices = Counter(event["name"] for event in events if event["ph"] == "X")
        drawn = slices.pop("[memory]", 0)  # by the exporter in Python
        assert Counter(source.names[number] for number in source.slices.name) == slices
        starts = [event["id"] for event in events if event["ph"] == "s"]
        ends = Counter(event["id"] for event in events if event["ph"] == "f")
        assert len(source.flows) == sum(ends[number] for number in starts) > 0
        moments = Counter(event["name"] for event in events if event["ph"] == "i")
        memory = moments.pop("[memory]", 0) + drawn
        assert Counter(source.names[number] for number in source.instants.name) == moments
        assert len(source.counters) == memory
        assert source.findings == []


def test_region_times_are_unix_time(traces):
    """A region that encloses a reading of the clock also encloses it on the timeline."""
    _, began, inside, ended = traces
    for name, source in sources(traces).items():
        if name.startswith("stacks"):
            continue
        at = source.names.index("bracketed")
        (number,) = (source.slices.name == at).nonzero()[0].tolist()
        start, duration = int(source.slices.start[number]), int(source.slices.duration[number])
        assert began <= start <= inside <= start + duration <= ended
        assert duration >= 2_000_000


def test_allocations_are_counters(traces):
    source = sources(traces)["cpp.trace.json"]
    track = next(track for track in source.tracks if track.kind == "counter")
    assert track.name == "memory allocated CPU"
    assert source.counters.value.max() > 0


def test_arguments_stay_raw_json(traces):
    """The arguments are the raw JSON of the file, for a later writer."""
    source = sources(traces)["cpp.trace.json.gz"]
    events = [
        event for event in read_json(traces[0], "cpp.trace.json.gz")["traceEvents"] if event["ph"] == "X"
    ]
    read = [None if raw is None else json.loads(raw) for raw in source.slices.args]
    assert read == [event.get("args") for event in events]


def test_stacks(traces):
    """Python functions are slices with a category of their own."""
    source = sources(traces)["stacks.trace.json"]
    categories = {source.categories[number] for number in source.slices.category}
    assert {"python_function", "cpu_op", "user_annotation"} <= categories


def test_hosts(traces):
    """The C++ exporter writes the host name into the trace, and the source has it."""
    import socket

    header, _ = read_header(traces[0] / "cpp.trace.json")
    assert header["host_name"] == socket.gethostname()
    assert sources(traces)["cpp.trace.json"].origin.host == socket.gethostname()
