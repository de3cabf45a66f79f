"""An engine's trace file becomes an artifact of the run, or a failure with its reason."""

from __future__ import annotations

import gzip
import json
import os
import sys
import time
import tracemalloc

import pytest

from stepprof.analysis.artifact_check import check_artifact
from stepprof.config.options.engine import EngineOptions
from stepprof.remote import artifacts
from stepprof.remote.artifacts import adopt, is_whole
from stepprof.remote.base import EngineFailure, EngineWindow
from stepprof.run.model import Window

BASE = 1_790_857_026_000_000_000
EVENT = '{"ph": "X", "cat": "cpu_op", "name": "aten::add", "pid": 7, "tid": 7, "ts": 1.000, "dur": 2.000}'


@pytest.fixture
def window(tmp_path):
    """Return the engine's part of step 2, with its own folder."""
    folder = tmp_path / "run" / "step-000002"
    (folder / "rollout" / "replica-0").mkdir(parents=True)
    return EngineWindow(
        window=Window(2, "rollout"),
        replica=0,
        folder=folder,
        stem="rollout/replica-0",
        options=EngineOptions(),
        metadata={"run_id": "r", "step": 2, "role": "rollout", "replica": 0},
    )


def kineto(*events: str) -> str:
    """Return a trace in the layout of Kineto."""
    listed = ",\n  ".join(events)
    return (
        f'{{\n  "schemaVersion": 1,\n  "deviceProperties": [],\n  "baseTimeNanoseconds": {BASE},\n'
        f'  "traceEvents": [\n  {listed}\n  ],\n  "traceName": "/tmp/engine \\ "odd".json"\n}}\n'
    )


def written(tmp_path, data: str | bytes, name: str = "1790.pt.trace.json.gz"):
    """Write a file as the engine leaves it."""
    file = tmp_path / name
    data = data.encode() if isinstance(data, str) else data
    file.write_bytes(gzip.compress(data) if name.endswith(".gz") else data)
    return file


def content(window, artifact):
    return json.loads(gzip.decompress((window.folder / artifact.path).read_bytes()))


class TestAdopt:
    @pytest.mark.parametrize("name", ["a.json.gz", "a.json"])
    def test_a_trace_is_moved_and_stamped(self, tmp_path, window, name):
        """A trace, compressed or not, is moved into the engine's folder. Its first key states its run,
        step, role, replica and rank.
        """
        source = written(tmp_path, kineto(EVENT, EVENT), name)
        artifact = adopt(source, window, "rank-0", rank=0)
        assert (artifact.path, artifact.kind, artifact.events) == (
            "rollout/replica-0/rank-0.trace.json.gz",
            "trace",
            2,
        )
        assert artifact.bytes == (window.folder / artifact.path).stat().st_size
        trace = content(window, artifact)
        assert next(iter(trace)) == "stepprof"
        assert trace["stepprof"] == {"run_id": "r", "step": 2, "role": "rollout", "replica": 0, "rank": 0}
        assert trace["traceName"] == "step-000002/rollout/replica-0/rank-0.trace.json.gz"
        assert trace["baseTimeNanoseconds"] == BASE
        assert not source.exists()
        assert [file.name for file in window.output.iterdir()] == ["rank-0.trace.json.gz"]

    def test_an_adopted_trace_passes_check(self, tmp_path, window):
        """`stepprof check` finds no problem in an adopted trace."""
        artifact = adopt(written(tmp_path, kineto(EVENT)), window, "rank-0")
        assert check_artifact(window.folder / artifact.path, artifact.bytes, artifact.kind).problem is None

    def test_an_existing_file_is_never_overwritten(self, tmp_path, window):
        """The second trace with the name of an existing file gets a number in its name."""
        first = adopt(written(tmp_path, kineto(EVENT)), window, "rank-0", number=1)
        second = adopt(written(tmp_path, kineto(EVENT)), window, "rank-0", number=2)
        assert second.path == "rollout/replica-0/rank-0.2.trace.json.gz"
        assert content(window, first)["stepprof"]["number"] == 1

    def test_a_removed_folder_is_made_again(self, tmp_path, window):
        """If the engine's folder was removed, it is made again and the trace is moved into it."""
        window.output.rmdir()
        assert adopt(written(tmp_path, kineto(EVENT)), window, "rank-0").events == 1

    def test_names_that_kineto_leaves_unescaped_are_repaired(self, tmp_path, window):
        """An unescaped prompt in a span's name makes the engine's file invalid JSON; the adopted trace is
        valid.
        """
        event = '{\n    "ph": "X", "cat": "user_annotation",\n    "name": "say "hé" \\",\n    "ts": 1, "dur": 2\n  }'
        trace = content(window, adopt(written(tmp_path, kineto(event)), window, "rank-0"))
        assert trace["traceEvents"][0]["name"].startswith('say "hé"')

    @pytest.mark.parametrize(
        "text",
        [
            json.dumps({"traceEvents": [json.loads(EVENT)] * 3}),
            json.dumps(
                {"traceEvents": [json.loads(EVENT)] * 3, "distributedInfo": {"rank": 0}, "flag": True}
            ),
            json.dumps(
                {"schemaVersion": 1, "traceEvents": [json.loads(EVENT)] * 3, "more": {"a": {"b": []}}}
            ),
            json.dumps([json.loads(EVENT)] * 3),
            json.dumps({"traceEvents": [json.loads(EVENT)] * 3}, separators=(",", ":")),
        ],
        ids=["bare", "keys behind", "nested behind", "list", "compact"],
    )
    def test_one_line_and_list_traces_become_a_table(self, tmp_path, window, text):
        """A trace on one line and a trace that is a list become a JSON object whose first key is
        `stepprof`.
        """
        artifact = adopt(written(tmp_path, text), window, "rank-0", rank=0)
        trace = content(window, artifact)
        assert next(iter(trace)) == "stepprof"
        assert len(trace["traceEvents"]) == artifact.events == 3

    @pytest.mark.parametrize("base", ['"baseTimeNanoseconds": 1790857026000000000,', ""])
    def test_the_recording_ends_with_the_last_event_of_torch(self, tmp_path, window, base):
        """The end of the recording is torch's last event, by the engine's clock. The time of writing is
        the time of the file.
        """
        end = '{"ph": "i", "s": "g", "name": "Record Window End", "pid": "", "tid": "", "ts": 4515854019279.829}'
        step = '{"ph": "X", "name": "aten::add", "ts": 1, "dur": 2}'
        text = f'{{"schemaVersion": 1, {base} "traceEvents": [{step},\n{end}\n], "traceName": "x"}}'
        source = written(tmp_path, text)
        os.utime(source, ns=(5, 7_000_000_000))
        made = adopt(source, window, "rank-0")
        assert made.ended_ns == (1790857026000000000 if base else 0) + 4515854019279829
        assert made.written_ns == 7_000_000_000

    @pytest.mark.parametrize("block", [1 << 22, 64])
    def test_forward_steps_are_counted(self, tmp_path, window, monkeypatch, block):
        """The forward steps of vLLM and SGLang are counted without their copies on a device, wherever a
        block of the file ends.
        """
        monkeypatch.setattr(artifacts, "_BLOCK", block)
        names = ["step[DECODE bs=1]", "execute_context_1(3)_generation_0(0)", "aten::add"]
        kinds = ["user_annotation", "gpu_user_annotation"]
        events = [
            {"ph": "X", "cat": kind, "name": name, "ts": at, "dur": 1}
            for at in range(9)
            for kind in kinds
            for name in names
        ]
        source = written(tmp_path, json.dumps({"traceEvents": events, "traceName": "x"}, indent=2))
        assert adopt(source, window, "rank-0").forward_steps == 18

    def test_several_members_of_gzip(self, tmp_path, window):
        """A gzip file with several members is read as one trace."""
        text = kineto(EVENT, EVENT).encode()
        source = tmp_path / "a.json.gz"
        source.write_bytes(gzip.compress(text[:100]) + gzip.compress(text[100:]))
        assert adopt(source, window, "rank-0").events == 2


class TestDamage:
    @pytest.mark.parametrize(
        ("name", "data", "reason"),
        [
            ("a.json.gz", b"", "is empty"),
            ("a.json", b"", "is empty"),
            ("a.json", b"<html>", "is not a trace: it begins neither"),
            ("a.json", kineto(EVENT).encode()[:-30], "not complete JSON"),
            ("a.json", b'{"schemaVersion": 1}', "has no traceEvents"),
            ("a.json", b'{"traceEvents": []}', "holds no events"),
            ("a.json", b"[]", "holds no events"),
        ],
    )
    def test_a_damaged_file_is_named_and_kept(self, tmp_path, window, name, data, reason):
        """The failure names the file and what is wrong with it. The file stays, and no artifact is made."""
        source = written(tmp_path, data, name)
        with pytest.raises(EngineFailure, match=reason) as failure:
            adopt(source, window, "rank-0")
        assert str(source) in str(failure.value)
        assert source.exists()
        assert not list(window.output.iterdir())

    @pytest.mark.parametrize("cut", [-9, -1, 40])
    def test_gzip_that_was_cut_off(self, tmp_path, window, cut):
        """A gzip file that was cut off is damaged, even if its beginning is valid."""
        source = written(tmp_path, kineto(*[EVENT] * 500))
        source.write_bytes(source.read_bytes()[:cut])
        with pytest.raises(EngineFailure, match="is damaged"):
            adopt(source, window, "rank-0")

    @pytest.mark.parametrize("cut", [0, 10, 40, -9, -1])
    def test_a_file_that_is_still_written(self, tmp_path, cut):
        """A file is not complete before its last byte is written."""
        source = written(tmp_path, kineto(*[EVENT] * 500))
        assert is_whole(source)
        source.write_bytes(source.read_bytes()[:cut])
        assert not is_whole(source)

    def test_gzip_with_a_wrong_sum(self, tmp_path, window):
        """A gzip file whose checksum differs by one bit is damaged."""
        source = written(tmp_path, kineto(*[EVENT] * 500))
        data = bytearray(source.read_bytes())
        data[-6] ^= 1
        source.write_bytes(data)
        with pytest.raises(EngineFailure, match="is damaged"):
            adopt(source, window, "rank-0")

    def test_without_isal_damage_is_found_as_well(self, tmp_path, window, monkeypatch):
        """Without isal, the standard library reads a valid trace and finds a damaged one."""
        for module in ("isal", "isal.igzip", "isal.isal_zlib"):
            monkeypatch.setitem(sys.modules, module, None)
        assert adopt(written(tmp_path, kineto(EVENT)), window, "rank-0").events == 1
        source = written(tmp_path, kineto(*[EVENT] * 500))
        source.write_bytes(source.read_bytes()[:-9])
        with pytest.raises(EngineFailure, match="is damaged"):
            adopt(source, window, "rank-1")

    def test_no_file(self, tmp_path, window):
        """If the engine's stop left no file, the failure names the expected file."""
        with pytest.raises(EngineFailure, match=r"gone\.json does not exist"):
            adopt(tmp_path / "gone.json", window, "rank-0")

    def test_a_place_that_cannot_be_written(self, tmp_path, window):
        """The error says why the trace cannot be moved; the engine's file stays."""
        source = written(tmp_path, kineto(EVENT))
        window.output.rmdir()
        window.output.write_text("a file where the folder should be")
        with pytest.raises(EngineFailure, match="cannot be moved to"):
            adopt(source, window, "rank-0")
        assert source.exists()

    def test_a_large_truncated_trace(self, tmp_path, window):
        """A trace that is too large to be parsed is checked by its end: a truncated one is a failure."""
        text = kineto(*[EVENT] * 15_000)
        assert len(text) > artifacts._PARSED
        assert adopt(written(tmp_path, text, "whole.json"), window, "rank-0").events == 15_000
        with pytest.raises(EngineFailure, match="breaks off after"):
            adopt(written(tmp_path, text[:-200], "cut.json"), window, "rank-1")


HEAD = b'{"traceEvents": [\n' + EVENT.encode()


class TestHostile:
    """An engine of another user may write any content. Only EngineFailure may be raised, and training must
    not be held up.
    """

    @pytest.mark.parametrize(
        ("data", "reason"),
        [
            (b'{"a": ' + b"[" * 100_000 + b"]" * 100_000 + b', "traceEvents": []}', "not complete JSON"),
            (b'{"baseTimeNanoseconds": ' + b"9" * 5000 + b', "traceEvents": []}', "not complete JSON"),
            (HEAD + b', {"cat": "Trace", "ts": ' + b"9" * 5000 + b"}]}", "not complete JSON"),
            (HEAD + b', {"name": "Record Window End", "ts": ' + b"9" * 5000 + b"}]}", "not complete JSON"),
            (HEAD + b"]" + b',"a":[]' * 9000, "not complete JSON"),
            (HEAD + b',\n"name": ' + b'"name": "a"b ' * 300_000 + b"x\n", "breaks off"),
        ],
        ids=["deep", "base", "begin", "end", "lists", "names"],
    )
    def test_hostile_traces_are_read_in_bounded_time(self, tmp_path, window, data, reason):
        """A hostile trace is refused within 4 s of CPU time."""
        source = written(tmp_path, data, "a.json.gz")
        began = time.thread_time()
        with pytest.raises(EngineFailure, match=reason):
            adopt(source, window, "rank-0")
        assert time.thread_time() - began < 4

    def test_impossible_times_are_ignored(self, tmp_path, window):
        """Times with 400 digits are ignored: the artifact has no begin and no end."""
        many = "9" * 400
        trace = f'{{"baseTimeNanoseconds": {many}, "traceEvents": [{EVENT}, {{"ph": "X", "cat": "Trace", "ts": {many}}}]}}'
        artifact = adopt(written(tmp_path, trace, "a.json"), window, "rank-0")
        assert (artifact.began_ns, artifact.ended_ns) == (None, None)

    def test_an_endless_line(self, tmp_path, window):
        """A line of 250 MB is refused, and reading it takes less than 128 MiB of memory."""
        source = tmp_path / "a.json.gz"
        with gzip.open(source, "wb", compresslevel=1) as file:
            file.write(b'{"traceEvents": ["')
            for _ in range(250):
                file.write(b"x" * (1 << 20))
        tracemalloc.start()
        with pytest.raises(EngineFailure, match="breaks off after"):
            adopt(source, window, "rank-0")
        _, peak = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        assert peak < 128 << 20

    @pytest.mark.parametrize("name", ["a.json", "a.json.gz"])
    def test_a_hole(self, tmp_path, window, name):
        """A sparse file of 200 GB is refused without being read."""
        source = written(tmp_path, kineto(EVENT), name)
        os.truncate(source, 200 << 30)
        with pytest.raises(EngineFailure, match="has a hole"):
            adopt(source, window, "rank-0")
        assert not is_whole(source)


class TestCost:
    def test_memory_is_bounded(self, tmp_path, window):
        """Adopting a trace of 60 MB takes less than 48 MiB of memory."""
        source = tmp_path / "large.json.gz"
        with gzip.open(source, "wb", compresslevel=1) as file:
            file.write(kineto(EVENT).encode()[:-70] + b"\n  ")
            for _ in range(60):
                file.write((",\n  " + EVENT).encode() * 10_000)
            file.write(b"\n  ]\n}\n")
        tracemalloc.start()
        artifact = adopt(source, window, "rank-0")
        _, peak = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        assert artifact.events >= 600_000
        assert peak < 48 * 2**20

    @pytest.mark.torch
    def test_torch_itself(self, warm, tmp_path, window):
        """A trace that torch wrote and compressed keeps all its events and its time base."""
        script = f"""
import torch
from torch.profiler import ProfilerActivity, profile
with profile(activities=[ProfilerActivity.CPU]) as prof:
    with torch.profiler.record_function("step[DECODE bs=1]"):
        torch.ones(8) + 1
prof.export_chrome_trace({str(tmp_path / "t.json.gz")!r})
"""
        warm.leave = True
        warm.run(script).check()
        before = json.loads(gzip.decompress((tmp_path / "t.json.gz").read_bytes()))
        artifact = adopt(tmp_path / "t.json.gz", window, "rank-0", rank=0)
        after = content(window, artifact)
        assert after["traceEvents"] == before["traceEvents"]
        assert artifact.events == len(before["traceEvents"])
        assert after["baseTimeNanoseconds"] == before["baseTimeNanoseconds"]
        assert after["stepprof"]["rank"] == 0
