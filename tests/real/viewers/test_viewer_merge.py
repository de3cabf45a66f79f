"""Test merged timelines with Perfetto's own trace processor: exact counts per source, exact times,
and no error.
"""

from __future__ import annotations

import gzip
import json
import random
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from timelines import T0, drawn, make_source
from trace_processor import ask

from stepprof.analysis.timeline import descriptors, perfetto
from stepprof.analysis.timeline.model import Origin, Source, Track
from stepprof.analysis.timeline.placement import Place
from stepprof.cli.main import main

RECORDED = Path(__file__).parents[2] / "data" / "h100.trace.json.gz"
HOUR = 3600 * 10**9
# a source is a track inside the timeline's track, and samples are one level deeper
SLICES = """
    select case when g.parent_id is null then p.name else g.name end as source, t.name as track, s.ts, s.dur, s.name, s.category, s.depth
    from slice s join track t on t.id = s.track_id join track p on p.id = t.parent_id join track g on g.id = p.parent_id"""
FLOWS = "select a.name as a, b.name as b from flow f join slice a on a.id = f.slice_out join slice b on b.id = f.slice_in"


def write(path: Path, sources: Sequence[Source]) -> Path:
    """Write the sources into a timeline without aligning them."""
    parts = [
        piece
        for index, source in enumerate(sources)
        for piece in perfetto.encode(source, Place(index, len(sources), f" {index}"))
    ]
    path.write_bytes(descriptors.head("step 2", "how", T0) + b"".join(parts))
    return path


def random_source(seed: int, slices: int, tracks: int) -> Source:
    """Return a source of slices that nest, cross, are empty and begin at the same time, with flows,
    marks and counters.
    """
    chance = random.Random(seed)
    kinds = ("thread", "stream", "async", "sample")
    rows = [Track(kinds[number % 4], f"row {number} é日", (str(number),), number) for number in range(tracks)]
    rows.append(Track("counter", "queue", ("queue",), tracks))
    long = [
        (chance.randrange(tracks), chance.randrange(10**6), chance.choice((0, 1, 5, 1000, 10**5)))
        for _ in range(slices)
    ]
    # children that share a start or an end with their parent
    edges = [(track, start, length // 2) for track, start, length in long[::7]] + [
        (track, start + length, 3) for track, start, length in long[::5]
    ]
    return make_source(
        [
            (*each, f"op {number % 50} </script>", "cpu_op", b'{"Input Dims": [[%d]]}' % (number % 9))
            for number, each in enumerate([*long, *edges])
        ],
        instants=[(track, start, f"mark {number}") for number, (track, start, _) in enumerate(long[::9])],
        counters=[(tracks, start, float(number)) for number, (_, start, _) in enumerate(long[::11])],
        flows=[(a[0], a[1], b[0], b[1]) for a, b in zip(long[::3], long[1::3], strict=False)],
        tracks=rows,
        origin=Origin("rank", f"{seed}.json", "actor", seed, None, "node-1"),
    )


def seen(rows: Sequence[dict[str, Any]]) -> Counter[tuple[object, ...]]:
    """Return the slices according to the trace processor."""
    return Counter(
        (row["track"], row["name"], row["category"], row["ts"], max(row["dur"], 1)) for row in rows
    )


def test_every_slice_of_every_source(tmp_path: Path) -> None:
    """Three sources have 2,700 slices each on 40 rows. No slice is dropped, moved or resized, and
    Perfetto counts no error.
    """
    sources = [random_source(seed, 2000, 40) for seed in range(3)]
    answers = ask(
        write(tmp_path / "t", sources),
        slices=SLICES,
        flows=FLOWS,
        counters="select count(*) as n, sum(value) as total from counter",
    )
    assert answers["errors"] == []
    marks = Counter(row["source"] for row in answers["slices"] if row["category"] == "mark")
    slices = [row for row in answers["slices"] if row["category"] != "mark"]
    for index, source in enumerate(sources):
        name = f"actor rank {index} {index} · node-1"
        mine = [row for row in slices if row["source"] == name]
        assert seen(mine) == Counter(drawn(source)), name
        assert marks[name] == len(source.instants)
    assert answers["counters"] == [
        {
            "n": sum(len(source.counters) for source in sources),
            "total": sum(float(source.counters.value.sum()) for source in sources),
        }
    ]
    both = sum(int((source.flows.start <= source.flows.end).sum()) for source in sources)
    assert len(answers["flows"]) == both


def test_arrows_of_a_process_numbered_like_its_device(tmp_path: Path) -> None:
    """The trace of a real GPU shows the same arrows if its process, thread, GPU and stream all have
    the number 7.
    """
    recorded = json.loads(gzip.decompress(RECORDED.read_bytes()))
    shown = []
    for numbers in ({}, {417: 7, 0: 7}):
        for event in recorded["traceEvents"]:
            event["pid"] = numbers.get(event["pid"], event["pid"])
            event["tid"] = 7 if numbers and event["tid"] == 417 else event["tid"]
        trace = tmp_path / "trace.json"
        trace.write_text(json.dumps(recorded))
        timeline = tmp_path / "timeline"
        assert main(["merge", str(trace), "--output", str(timeline)]) == 0
        answers = ask(timeline, flows=FLOWS)
        assert answers["errors"] == []
        shown.append(Counter((row["a"], row["b"]) for row in answers["flows"]))
    assert shown[0] == shown[1]
    assert shown[0].total() == 31


def test_ten_thousand_tracks(tmp_path: Path) -> None:
    """Each of 10,000 tracks has two overlapping slices. Every slice is shown, none inside another
    one.
    """
    tracks = [Track("sample", f"s{number}", (f"s{number}",)) for number in range(10_000)]
    source = make_source(
        [(number, number * 1000 + shift, 700, "generate") for number in range(10_000) for shift in (0, 500)],
        tracks=tracks,
    )
    answers = ask(write(tmp_path / "t", [source]), slices=SLICES)
    assert answers["errors"] == []
    assert seen(answers["slices"]) == Counter(drawn(source))
    assert {row["depth"] for row in answers["slices"]} == {0}


def test_times_are_exact_hours_away(tmp_path: Path) -> None:
    """Times are exact to the nanosecond, before and after the middle of the timeline, and for
    slices of every length.
    """
    slices = [(0, 10**power + power, 3 * 10**power + 1, f"n{power}") for power in range(13)] + [
        (1, -HOUR + 1, HOUR // 2 + 1, "before")
    ]
    answers = ask(write(tmp_path / "t", [make_source(slices)]), slices=SLICES)
    assert answers["errors"] == []
    assert seen(answers["slices"]) == Counter(drawn(make_source(slices)))


def test_flows_stay_within_their_source(tmp_path: Path) -> None:
    """Both files have flows 1 to 50. Every arrow stays within its file, because the merge changes
    the ids.
    """
    sources = []
    for letter in "ab":
        slices = [(track, number * 100, 50, f"{letter}{number}") for number in range(50) for track in (0, 1)]
        flows = [(0, number * 100 + 5, 1, number * 100 + 20) for number in range(50)]
        sources.append(make_source(slices, flows=flows))
    answers = ask(write(tmp_path / "t", sources), flows=FLOWS)
    assert answers["errors"] == []
    assert Counter((row["a"], row["b"]) for row in answers["flows"]) == Counter(
        (f"{letter}{number}",) * 2 for letter in "ab" for number in range(50)
    )


def test_names_and_arguments(tmp_path: Path) -> None:
    """Names and arguments of regions keep all their characters."""
    names = ["</script><script>alert(1)</script>", "C:\\", '"', "日本語 🙂", "a\tb", "", "x" * 10_000]
    args = {"path": "C:\\", "n": -3, "x": 1.5, "yes": True, "list": [1, "a\\"], "é": "ü"}
    slices = [
        (0, number * 10, 5, name, "user_annotation", json.dumps(args, ensure_ascii=False).encode())
        for number, name in enumerate(names)
    ]
    query = f"{SLICES} order by s.ts"
    answers = ask(
        write(tmp_path / "t", [make_source(slices)]),
        slices=query,
        args="select flat_key, display_value, count(*) as n from args join slice using (arg_set_id) group by 1, 2",
    )
    assert answers["errors"] == []
    got = [row["name"] or "" for row in answers["slices"]]
    assert got == names
    values = {
        row["flat_key"].rpartition(".")[2]: str(row["display_value"]).strip().replace("\\\\", "\\")
        for row in answers["args"]
        if row["n"] >= len(names)
    }
    assert {"path": "C:\\", "n": "-3", "é": "ü"}.items() <= values.items()


@pytest.mark.torch
def test_a_real_torch_session_is_merged_completely(tmp_path: Path) -> None:
    """The command merges two captures of a real session. The timeline has every event of the files,
    and spans and marks at their exact times.
    """
    import torch

    import stepprof

    stepprof.init(
        {
            "output_dir": str(tmp_path),
            "steps": "1",
            "ranks": "all",
            "capture_per": "role",
            "export": "inline",
        },
        rank=0,
        world_size=1,
        run_id="run",
    )
    try:
        for role in ("rollout", "actor"):
            with stepprof.profile_step(1, role=role), stepprof.region(f"work {role}", batch=4):
                torch.ones(16, requires_grad=True).mul(2).sum().backward()
                stepprof.mark(f"done {role}")
    finally:
        stepprof.shutdown()
    output = tmp_path / "timeline"
    assert main(["merge", str(tmp_path / "run"), "--output", str(output)]) == 0
    answers = ask(output, slices=SLICES, flows=FLOWS)
    assert answers["errors"] == []
    by_source = Counter(row["source"] for row in answers["slices"])
    for role in ("rollout", "actor"):
        (file,) = (tmp_path / "run" / "step-000001" / role).glob("*.json.gz")
        events = json.loads(gzip.decompress(file.read_bytes()))["traceEvents"]
        phases = Counter(event["ph"] for event in events)
        (name,) = [source for source in by_source if source.startswith(f"{role} rank 0")]
        assert by_source[name] == phases["X"] + phases["b"] + phases["i"], phases
    spans = [
        json.loads(line)
        for file in (tmp_path / "run" / "spans").iterdir()
        for line in file.read_text().splitlines()[1:]
    ]
    recorded = {
        span["name"]: (span["start"], span["dur"])
        for span in spans
        if span["name"].startswith(("work", "done"))
    }
    first = min(row["ts"] for row in answers["slices"])
    assert len(recorded) == 4
    shown = {
        row["name"]: (row["ts"], row["dur"])
        for row in answers["slices"]
        if row["source"].startswith("rank 0") and row["name"] in recorded
    }
    assert shown == recorded
    assert first <= min(start for start, _ in recorded.values())
