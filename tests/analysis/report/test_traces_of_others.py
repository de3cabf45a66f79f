"""Reports of traces that others recorded: each maker writes categories, arrows and allocations in its own way."""

from __future__ import annotations

import gzip
import json
import time
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

import pytest

from stepprof.cli.main import main

BASE = 1_700_000_000_000_000_000
LENGTH = 100_000.0
Event = dict[str, Any]
Reported = Callable[..., dict[str, Any]]


def slice_(
    name: str, cat: str, ts: float, dur: float, pid: Any = 4711, tid: Any = 4711, **args: Any
) -> Event:
    return {"ph": "X", "name": name, "cat": cat, "ts": ts, "dur": dur, "pid": pid, "tid": tid, "args": args}


def arrow(phase: str, number: int, ts: float, pid: int, tid: Any, words: tuple[str, str]) -> Event:
    cat, name = words
    return {
        "ph": phase,
        "id": number,
        "cat": cat,
        "name": name,
        "ts": ts,
        "pid": pid,
        "tid": tid,
        "bp": "e",
    }


def capture(
    kinds: tuple[str, str, str] = ("cpu_op", "cuda_runtime", "kernel"),
    *,
    stream: Any = 7,
    words: tuple[str, str] = ("ac2g", "ac2g"),
    device: int = 0,
) -> list[Event]:
    """Return ten kernels of 9 ms in 100 ms, each launched by an operator of `decode`."""
    operator, runtime, kernel = kinds
    events = [
        slice_("PyTorch Profiler (0)", "Trace", 0, LENGTH, "Spans", "PyTorch Profiler"),
        slice_("decode", "user_annotation", 0, 95_000),
    ]
    for number in range(10):
        at = 10_000.0 * number
        events += [
            slice_("aten::mm", operator, at, 900),
            slice_("launch", runtime, at + 10, 5, correlation=number),
            slice_("gemm", kernel, at + 100, 9_000, device, stream, device=device, correlation=number),
            arrow("s", number, at + 10, 4711, 4711, words),
            arrow("f", number, at + 100, device, stream, words),
        ]
    return events


def allocation(kind: int, total: int, reserved: int, **more: Any) -> Event:
    """Return an allocation of torch on device 0 of a kind."""
    args = {
        "Device Type": kind,
        "Device Id": 0,
        "Bytes": 512,
        "Total Allocated": total,
        "Total Reserved": reserved,
    }
    return {
        "ph": "i",
        "s": "t",
        "name": "[memory]",
        "ts": 50,
        "pid": 4711,
        "tid": 4711,
        "args": args,
        **more,
    }


@pytest.fixture
def reported(tmp_path: Path) -> Reported:
    """Return a function that writes a trace and returns its report."""

    def reported(events: list[Event], *options: str, **header: Any) -> dict[str, Any]:
        trace, out = tmp_path / "a.pt.trace.json", tmp_path / "out" / "report.json"
        out.parent.mkdir(exist_ok=True)
        top = {"schemaVersion": 1, "baseTimeNanoseconds": BASE, **header}
        content = {key: value for key, value in top.items() if value is not None}
        trace.write_text(json.dumps({**content, "traceEvents": events}))
        assert main(["report", str(trace), "--json", str(out), *options]) == 0
        result: dict[str, Any] = json.loads(out.read_text())
        return result

    return reported


def sentences(report: dict[str, Any], topic: str) -> list[str]:
    return [each["text"] for each in report["findings"] if each["topic"] == topic]


def launched(report: dict[str, Any]) -> dict[str, int]:
    """Return how many kernels each region launched."""
    found: dict[str, int] = {}
    for row in report["tree"]:
        if row["kind"] == "kernel":
            parent = report["tree"][row["parent"]]
            name = parent["name"] or parent["kind"]
            found[name] = found.get(name, 0) + row["calls"]
    return found


class TestLength:
    def test_the_mark_of_the_profilers_end_is_no_part_of_the_step(self, reported: Reported) -> None:
        """torch writes it once it has stopped, which can take longer than the capture."""
        mark = {"ph": "i", "s": "g", "name": "Record Window End", "ts": 2 * LENGTH, "pid": "", "tid": ""}
        report = reported([*capture(), mark])
        assert report["seconds"] == pytest.approx(0.1)
        assert sentences(report, "busy") == ["the GPUs were busy for 90% of the captured time"]
        assert report["idle"][0]["causes"] == {"host": pytest.approx(0.01)}

    def test_one_trace_needs_no_clock(self, reported: Reported) -> None:
        """Times that are relative to an unknown zero are compared with no other clock."""
        report = reported(capture(), baseTimeNanoseconds=None)
        assert report["seconds"] == pytest.approx(0.1)
        assert report["problems"] == []


class TestMakers:
    @pytest.mark.parametrize(
        ("kinds", "stream", "words"),
        [
            (("cpu_op", "cuda_runtime", "kernel"), 7, ("ac2g", "ac2g")),
            (("Operator", "Runtime", "Kernel"), "stream 7", ("async", "launch")),
            (("cpu_op", "mtia_runtime", "mtia_ccp_events"), 3, ("ac2g", "ac2g")),
            (("cpu_op", "privateuse1_runtime", "kernel"), 3, ("ac2g", "ac2g")),
            (("cpu_op", "xpu_runtime", "kernel"), 3, ("ac2g", "ac2g")),
        ],
    )
    def test_categories_of_each_maker(
        self, reported: Reported, kinds: tuple[str, str, str], stream: Any, words: tuple[str, str]
    ) -> None:
        """Torch 1.8, today's torch, MTIA, devices of others, XPU."""
        report = reported(capture(kinds, stream=stream, words=words))
        assert sum(each["calls"] for each in report["kernels"]) == 10
        assert sum(each["calls"] for each in report["ops"]) == 10
        assert sentences(report, "busy") == ["the GPUs were busy for 90% of the captured time"]
        assert launched(report) == {"decode": 10}
        assert report["problems"] == []

    def test_an_unknown_category_is_counted_and_named(self, reported: Reported) -> None:
        """Work of a device that is in no figure is a problem of the report."""
        name = {"ph": "M", "name": "process_name", "pid": 5, "tid": 0, "args": {"name": "XYZ 0"}}
        unknown = [slice_("gemm", "xyz_events", 900.0 * n, 800, 5, 3) for n in range(100)]
        report = reported([*capture(), name, *unknown])
        (problem,) = report["problems"]
        assert problem["problem"] == (
            "100 events of the category 'xyz_events' on XYZ 0 were not recognised: they are in no figure"
        )

    @pytest.mark.parametrize("arrows", [0, 4])
    def test_launches_without_arrows(self, reported: Reported, arrows: int) -> None:
        """The number that a launch and its kernel state connects them too."""
        events = [each for each in capture() if each["ph"] == "X" or each["id"] < arrows]
        report = reported(events)
        assert launched(report) == {"decode": 10}
        assert [each["why"] for each in report["findings"] if each["topic"] == "host"] == [
            "its host had launched nothing that could run"
        ]

    @pytest.mark.parametrize("phase", ["s", "f"])
    def test_kernels_of_a_graph(self, reported: Reported, phase: str) -> None:
        """All kernels have the arrow of the launch, where ROCm ends one instead of beginning it."""
        graph = [
            slice_("decode", "user_annotation", 0, 90_000),
            slice_("hipGraphLaunch", "cuda_runtime", 1_000, 50, correlation=9),
            arrow(phase, 9, 1_000, 4711, 4711, ("ac2g", "ac2g")),
        ]
        for number in range(40):
            at = 2_000.0 * (number + 1)
            graph += [
                slice_("gemm", "kernel", at, 1_900, 0, 7, correlation=9),
                arrow("f", 9, at, 0, 7, ("ac2g", "ac2g")),
            ]
        assert launched(reported(graph)) == {"decode": 40}

    def test_a_step_marker_is_the_region_of_nothing(self, reported: Reported) -> None:
        """An engine's step is no region of the job, neither in the title nor in a sentence."""
        name = "execute_context_1(888)_generation_0(0)"
        events = [
            slice_(name, "user_annotation", 0, 99_000),
            slice_(name, "gpu_user_annotation", 100, 98_000, 0, 7),
        ]
        for number in range(10):
            at = 9_000.0 * number
            events += [slice_("multimem_all_reduce_kernel", "kernel", at + 100, 4_000, 0, 7)]
        report = reported(events, distributedInfo={"backend": "nccl", "rank": 0, "world_size": 8})
        assert [each["text"] for each in report["findings"] if "execute_" in each["text"]] == []


VERSIONS = {
    "1.8 and 1.9": (("Operator", "Runtime", "Kernel", "Memcpy"), "stream 7", ("async", "launch"), int),
    "arrows of async_gpu": (
        ("cpu_op", "cuda_runtime", "kernel", "gpu_memcpy"),
        7,
        ("async_gpu", "ac2g"),
        int,
    ),
    "whole microseconds": (("cpu_op", "cuda_runtime", "kernel", "gpu_memcpy"), 7, ("ac2g", "ac2g"), int),
    "before 2.4": (("cpu_op", "cuda_runtime", "kernel", "gpu_memcpy"), 7, ("ac2g", "ac2g"), "{:.3f}".format),
    "2.4 and later": (("cpu_op", "cuda_runtime", "kernel", "gpu_memcpy"), 7, ("ac2g", "ac2g"), None),
}
"""Categories, stream, arrows and absolute times in the forms of torch's versions; None: the times are relative."""


@pytest.mark.parametrize("version", VERSIONS)
def test_formats_of_torch(tmp_path: Path, version: str) -> None:
    """Length, busy time, kernels, launches and annotations of each are right."""
    (operator, runtime, kernel, copy), stream, words, written = VERSIONS[version]
    loader = "enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__"
    annotation = operator if operator == "Operator" else "user_annotation"
    events = [
        slice_("PyTorch Profiler (0)", operator if operator == "Operator" else "Trace", 0, LENGTH, "Spans", "PyTorch Profiler"),
        {"ph": "i", "s": "g", "name": "Record Window End", "ts": 3 * LENGTH, "pid": "", "tid": ""},
        slice_(loader, annotation, 80_000, 19_000),
    ]  # fmt: skip
    for number in range(8):
        at = 10_000.0 * number
        events += [
            slice_("aten::mm", operator, at, 900),
            slice_("cudaLaunchKernel", runtime, at + 10, 5, correlation=number),
            slice_("gemm", kernel, at + 100, 4_000 + number, 0, stream, device=0, correlation=number),
            slice_("Memcpy HtoD (Pinned -> Device)", copy, at + 3_000, 2_000, 0, stream, device=0),
            arrow("s", number, at + 10, 4711, 4711, words),
            arrow("f", number, at + 100, 0, stream, words),
        ]
    on_device = [each for each in events if each.get("cat") in (kernel, copy)]
    busy = covered(*on_device)
    text = json.dumps({"schemaVersion": 1, "baseTimeNanoseconds": BASE, "traceEvents": events})
    if written is not None:
        absolute = [{**each, "ts": f"@{written(BASE / 1000 + each['ts'])}@"} for each in events]
        text = json.dumps({"schemaVersion": 1, "traceEvents": absolute})
        text = text.replace('"@', "").replace('@"', "")
    trace, out = tmp_path / "t.json", tmp_path / "out.json"
    trace.write_text(text)
    assert main(["report", str(trace), "--json", str(out)]) == 0
    report = json.loads(out.read_text())
    assert report["problems"] == []
    assert report["seconds"] == pytest.approx(0.1)
    (idle,) = report["idle"]
    assert (idle["busy"], sum(idle["causes"].values())) == pytest.approx((busy, 0.1 - busy))
    (overlap,) = report["overlap"]
    assert overlap["compute"] == pytest.approx(
        covered(*(each for each in on_device if each["cat"] == kernel))
    )
    assert {each["name"]: each["calls"] for each in report["kernels"]} == {
        "gemm": 8,
        "Memcpy HtoD (Pinned -> Device)": 8,
    }
    assert {each["name"]: round(each["share"], 2) for each in report["parts"]} == {
        loader: 0.19,
        "in no annotation": 0.81,
    }
    assert sentences(report, "data") == [f"t.json spent 19 ms on data in `{loader}`"]
    assert sentences(report, "pending") == []


class TestHostOnly:
    """Traces without a device."""

    @staticmethod
    def calls(library: str, thread: int) -> list[Event]:
        """Return five collectives of 0.9 ms in 100 ms, each within `record_param_comms` and an operator of the main thread."""
        events = [slice_("step", "user_annotation", 0, LENGTH)]
        for number in range(5):
            at = 20_000.0 * number
            events += [
                slice_("aten::mm", "cpu_op", at, 9_000),
                *(
                    [slice_("DistributedDataParallel.forward", "cpu_op", at + 9_900, 1_300)]
                    if thread == 4711
                    else []
                ),
                slice_("c10d::allreduce_", "cpu_op", at + 9_950, 1_200),
                slice_("record_param_comms", "cpu_op", at + 10_000, 1_000),
                slice_(f"{library}:all_reduce", "user_annotation", at + 10_050, 900, tid=thread),
            ]
        return events

    @pytest.mark.parametrize("library", ["nccl", "hccl", "xccl", "NCCL"])
    def test_calls_of_a_devices_library_are_launches(self, reported: Reported, library: str) -> None:
        """The transfers are on the device, of which nothing was recorded."""
        report = reported(self.calls(library, 4711), distributedInfo={"rank": 0, "world_size": 2})
        assert [(each["communication"], each["overlapped"]) for each in report["overlap"]] in ([], [(0, 0)])
        assert sentences(report, "collectives") == []

    @pytest.mark.parametrize("thread", [4711, 5000])
    def test_a_transfer_is_not_hidden_by_its_own_call(self, reported: Reported, thread: int) -> None:
        """Nothing is computed meanwhile, neither by the call nor by an operator around it on the same thread."""
        report = reported(self.calls("gloo", thread), distributedInfo={"rank": 0, "world_size": 2})
        (row,) = report["overlap"]
        assert (row["communication"], row["overlapped"], row["exposed"]) == (
            pytest.approx(0.0045),
            0,
            pytest.approx(0.0045),
        )


class TestMemory:
    @pytest.mark.parametrize(
        ("kind", "device"),
        [
            (1, "GPU 0"),
            (6, "GPU 0"),
            (12, "XPU 0"),
            (19, "MTIA 0"),
            (20, "PrivateUse1 0"),
            (7, "type-7 device 0"),
        ],
    )
    def test_the_device_has_its_name(self, reported: Reported, kind: int, device: str) -> None:
        """A GPU of AMD is a GPU."""
        report = reported([*capture(), allocation(kind, 4096, 20 * 2**20)])
        assert {each["device"]: each["peak_bytes"] for each in report["memory"]} == {
            f"{device}, allocated": 4096,
            f"{device}, reserved": 20 * 2**20,
        }
        assert sentences(report, "memory") == [f"a.pt.trace.json reached 20.0 MiB ({device}, reserved)"]

    def test_frames_of_an_unknown_thread_are_no_process(self, reported: Reported) -> None:
        """torch puts them at process 0, which hid the memory of the other one."""
        frames = slice_("threading.py(1): _bootstrap", "python_function", 0, 99, 0, 0)
        report = reported([*capture(device=1), frames, allocation(1, 4096, 8 * 2**30)])
        assert [each["device"] for each in report["memory"]] == ["GPU 0, reserved", "GPU 0, allocated"]

    def test_an_allocation_drawn_as_a_slice(self, reported: Reported) -> None:
        """torch's Python exporter lets it last until the end of the capture."""
        drawn = allocation(1, 4096, 8 * 2**30, ph="X", cat="cpu_instant_event", dur=LENGTH - 50)
        report = reported([*capture(), drawn])
        assert [each["device"] for each in report["memory"]] == ["GPU 0, reserved", "GPU 0, allocated"]

    def test_an_allocation_without_a_sum(self, reported: Reported) -> None:
        """torch 1.8 states the size alone: no peak is known, and nothing is unreadable."""
        old = allocation(0, 0, 0, args={"Device Type": 0, "Device Id": -1, "Bytes": 4096})
        report = reported([*capture(), old])
        assert (report["memory"], report["problems"]) == ([], [])


class TestSteps:
    """`profiler.step()` marks steps, which are `ProfilerStep#N` in the trace."""

    LENGTHS = (50, 52, 80, 51)
    """Milliseconds of the steps 4 to 7."""

    @pytest.fixture
    def steps(self) -> list[Event]:
        events, at = [], 0.0
        for number, length in enumerate(self.LENGTHS, 4):
            whole = 1000.0 * length
            events += [
                slice_(f"ProfilerStep#{number}", "user_annotation", at, whole),
                slice_("score", "user_annotation", at + 20_000, 25_000),
                slice_("aten::mm", "cpu_op", at + 20_000, 900),
                slice_("launch", "cuda_runtime", at + 20_000, 5),
                slice_("gemm", "kernel", at + 20_100, 9_000, 0, 7),
            ]
            at += whole
        return events

    def test_the_report_is_about_the_median_one(self, reported: Reported, steps: list[Event]) -> None:
        """It names the slowest; a call in each step is no series of calls."""
        report = reported(steps)
        assert (report["step"], report["seconds"]) == (7, pytest.approx(0.051))
        assert [each["calls"] for each in report["kernels"]] == [1]
        assert sentences(report, "serial") == []
        assert sentences(report, "steps") == [
            "torch's profiler marked 4 steps (4-7): this is step 7; the median is 51.0 ms, the slowest is step 6 with 80.0 ms"
        ]

    def test_a_single_one(self, reported: Reported, steps: list[Event]) -> None:
        """The report is about it; work before it is not of it."""
        before = slice_("aten::mm", "cpu_op", -5_000, 4_000)
        report = reported([before, *steps[:5]])
        assert (report["step"], report["seconds"]) == (4, pytest.approx(0.05))
        assert sentences(report, "steps") == []
        assert sentences(report, "step")[0].startswith("the step took 50.0 ms")

    def test_two_have_no_median(self, reported: Reported, steps: list[Event]) -> None:
        """The report is about the shorter one."""
        report = reported(steps[5:15])
        assert sentences(report, "steps") == [
            "torch's profiler marked 2 steps (5-6): this is step 5; the slowest is step 6 with 80.0 ms"
        ]

    def test_steps_of_one_length(self, reported: Reported) -> None:
        """None of them is the slowest one."""
        events = [
            each
            for number in range(3)
            for each in (
                slice_(f"ProfilerStep#{number}", "user_annotation", 50_000.0 * number, 50_000 - number / 10),
                slice_("aten::mm", "cpu_op", 50_000.0 * number, 49_000),
            )
        ]
        (finding,) = (each for each in reported(events)["findings"] if each["topic"] == "steps")
        assert finding["text"] == (
            "torch's profiler marked 3 steps (0-2): this is step 0; all of them took 50.0 ms"
        )
        assert finding["advice"] is None

    def test_a_step_ends_where_the_next_one_begins(self, reported: Reported) -> None:
        """Also if nothing was recorded before that: the length is that of the table of steps."""
        marks = [slice_(f"ProfilerStep#{at}", "user_annotation", 100.0 * at, 80) for at in range(3)]
        work = [slice_("aten::mm", "cpu_op", 100.0 * at + 5, 60) for at in range(3)]
        report = reported([*marks, *work, slice_("aten::mm", "cpu_op", 300, 500)], "--step", "0")
        assert report["seconds"] == pytest.approx(report["marked"][0]["seconds"])
        assert report["seconds"] == pytest.approx(100e-6)

    def test_one_is_selected(self, reported: Reported, steps: list[Event]) -> None:
        """`--step N` takes the mark's number."""
        report = reported(steps, "--step", "6")
        assert (report["step"], report["seconds"]) == (6, pytest.approx(0.08))

    def test_a_step_that_is_not_there(
        self, reported: Reported, steps: list[Event], capsys: pytest.CaptureFixture[str]
    ) -> None:
        """The error states the marked ones; without marks, that there are none."""
        for events, there in ((steps, "it has 4-7"), (capture(), "torch's profiler marked none in it")):
            with pytest.raises(AssertionError):
                reported(events, "--step", "9")
            assert f"--step = 9: no such step is in the trace: {there}" in capsys.readouterr().err

    def test_the_noise_of_a_comparison_is_that_between_marked_steps(
        self, tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        """No later step is the first one of its process, and the gate judges with six steps that both have."""
        for name, lengths in (
            ("before", (50, 52, 50, 51, 50, 51)),
            ("after", (70, 72, 71, 70, 71, 70)),
            ("same", (50, 51, 50, 51, 53, 50)),
        ):
            at, events = 0.0, []
            for number, length in enumerate(lengths, 4):
                events += [
                    slice_(f"ProfilerStep#{number}", "user_annotation", at, 1000.0 * length),
                    slice_("gemm", "kernel", at, 900.0 * length, 0, 7),
                ]
                at += 1000.0 * length
            top = {"schemaVersion": 1, "baseTimeNanoseconds": BASE, "traceEvents": events}
            (tmp_path / f"{name}.json").write_text(json.dumps(top))
        before, after, same = (str(tmp_path / f"{name}.json") for name in ("before", "after", "same"))
        assert main(["report", before, after, "--fail-on-regression", "10%"]) == 3
        printed = " ".join(capsys.readouterr().out.split())
        assert "the step took 40% longer: 50 ms before, 70 ms now; the noise is" in printed
        assert "from step to step (12 steps)" in printed
        assert "first step of its process" not in printed
        assert "medians over 6 steps that torch's profiler marked)" in printed
        assert "not recorded" not in printed
        assert main(["report", before, same, "--fail-on-regression", "10%"]) == 0

    def test_a_number_that_is_used_again(self, reported: Reported, steps: list[Event]) -> None:
        """The profiler ran twice in one capture: the last step of each number counts, and a note has the number of the others."""
        earlier = [{**each, "ts": each["ts"] - 400_000.0} for each in steps if each["ts"] < 102_000.0]
        report = reported([*earlier, *steps])
        assert (report["step"], report["seconds"]) == (7, pytest.approx(0.051))
        assert sentences(report, "steps")[0].startswith(
            "torch's profiler marked 4 steps (4-7): this is step 7"
        )
        assert [each["problem"] for each in report["problems"]] == [
            "2 steps that torch's profiler marked have the number of a later one: the last one of each number counts"
        ]

    def test_two_ranks_are_about_one_step(self, tmp_path: Path, steps: list[Event]) -> None:
        """Ranks may differ in which of their steps is the median one."""
        slower = [{**each, "dur": 65_000.0} if each["name"] == "ProfilerStep#5" else each for each in steps]
        # the second rank waits after step 5
        late = [{**each, "ts": each["ts"] + 13_000.0} if each["ts"] >= 102_000.0 else each for each in slower]
        for rank, events in enumerate((steps, late)):
            info = {"backend": "nccl", "rank": rank, "world_size": 2}
            top = {
                "schemaVersion": 1,
                "baseTimeNanoseconds": BASE,
                "host_name": "node",
                "distributedInfo": info,
            }
            (tmp_path / f"rank{rank}.json").write_text(json.dumps({**top, "traceEvents": events}))
        out = tmp_path / "report.json"
        assert main(["report", str(tmp_path), "--json", str(out)]) == 0
        report = json.loads(out.read_text())
        assert report["step"] == 7
        assert [each["calls"] for each in report["kernels"]] == [2]

    @pytest.mark.torch
    def test_steps_of_torch(self, tmp_path: Path) -> None:
        """A schedule with three active steps, of which the second one is slow."""
        import torch
        from torch.profiler import ProfilerActivity, profile, schedule

        trace, out = tmp_path / "steps.json.gz", tmp_path / "report.json"
        with profile(
            activities=[ProfilerActivity.CPU],
            schedule=schedule(wait=1, warmup=1, active=3),
            on_trace_ready=lambda profiler: profiler.export_chrome_trace(str(trace)),
        ) as profiler:
            for number in range(5):
                torch.ones(8).sum()
                time.sleep(0.2 if number == 3 else 0.02)
                profiler.step()
        assert main(["report", str(trace), "--json", str(out)]) == 0
        report = json.loads(out.read_text())
        (text,) = sentences(report, "steps")
        assert text.startswith("torch's profiler marked 3 steps (2-4): this is step ")
        assert "the slowest is step 3 with 2" in text
        assert 0.02 <= report["seconds"] < 0.2
        assert [each["calls"] for each in report["ops"] if each["name"] == "aten::ones"] == [1]


class TestIdle:
    """Why the device had no work."""

    @staticmethod
    def idle(call: str, at: float, dur: float, graphs: bool = False) -> list[Event]:
        """Return a host that is in a call while its device has no work, from 10 to 500 ms."""
        events = [
            slice_("PyTorch Profiler (0)", "Trace", 0, 500_000, "Spans", "PyTorch Profiler"),
            slice_("decode", "user_annotation", 0, 500_000),
            slice_("launch", "cuda_runtime", 10, 5, correlation=1),
            slice_("gemm", "kernel", 20, 9_980, 0, 7, correlation=1),
            arrow("s", 1, 10, 4711, 4711, ("ac2g", "ac2g")),
            arrow("f", 1, 20, 0, 7, ("ac2g", "ac2g")),
            slice_(call, "cuda_runtime", at, dur),
        ]
        return [*events, slice_("cudaGraphLaunch", "cuda_runtime", 12, 1)] if graphs else events

    @pytest.mark.parametrize(
        ("call", "advice"),
        [
            ("cudaStreamSynchronize", "remove the synchronisation"),
            ("hipMemcpyWithStream", "copy from pinned memory"),
            ("cudaHostAlloc", "take the memory once"),
            ("cudaFree", "it may be the first use"),
            ("cudaDeviceGetStreamPriorityRange", "it may be the first use"),
        ],
    )
    def test_the_call_of_the_host_is_named(self, reported: Reported, call: str, advice: str) -> None:
        """The call is the reason if it has at least half of the time."""
        report = reported(self.idle(call, 20_000, 461_000))
        (found,) = (each for each in report["findings"] if each["seconds"] and each["topic"] != "step")
        assert found["topic"] == "host"
        assert found["why"] == f"its host was in `{call}` for 461 ms of it"
        assert found["advice"].startswith(advice)

    @pytest.mark.parametrize("marked", [True, False])
    def test_without_annotations(self, reported: Reported, marked: bool) -> None:
        """Most traces have none, or only marked steps: the reason is given all the same, without a place."""
        events = [
            each for each in self.idle("cudaStreamSynchronize", 20_000, 461_000) if each["name"] != "decode"
        ]
        events.append(slice_("aten::item", "cpu_op", 19_000, 470_000))
        if marked:
            events.append(slice_("ProfilerStep#3", "user_annotation", 0, 500_000))
        report = reported(events)
        (found,) = (each for each in report["findings"] if each["topic"] == "host")
        assert found["text"] == "the device of a.pt.trace.json had no work for 490 ms"
        assert found["why"] == "its host was in `cudaStreamSynchronize` for 461 ms of it"
        took = "the step took" if marked else "the trace covers"
        assert report["findings"][0]["text"] == f"{took} 500 ms, and no annotation divides it"

    @pytest.mark.parametrize(("graphs", "advised"), [(False, True), (True, False)])
    def test_a_short_call_is_no_reason(self, reported: Reported, graphs: bool, advised: bool) -> None:
        """A process that uses CUDA graphs gets no advice to use them."""
        report = reported(self.idle("cudaStreamSynchronize", 20_000, 100_000, graphs))
        (found,) = (each for each in report["findings"] if each["topic"] == "host")
        assert found["why"] == "its host had launched nothing that could run"
        assert ("CUDA graphs" in found["advice"]) == advised

    @pytest.mark.parametrize(
        "mark", ["execute_context_0(0)_generation_4(4)", "execute_new_0_cached_4", "step[DECODE bs=4]"]
    )
    def test_an_engine_whose_device_waits_for_its_host(self, reported: Reported, mark: str) -> None:
        """A forward step is what the host does: without a kernel the device is idle in it."""
        events = [
            {**each, "name": mark if each["name"] == "decode" else each["name"]}
            for each in self.idle("cudaEventQuery", 20_000, 10)
        ]
        report = reported(events)
        assert report["findings"][0]["text"] == "the trace covers 500 ms: forward steps 100%"
        (row,) = report["idle"]
        assert row["busy"] == pytest.approx(0.00998, abs=1e-5)
        assert row["causes"] == {"host": pytest.approx(0.49002, abs=1e-5)}
        assert sentences(report, "host") == [
            "the device of a.pt.trace.json had no work for 490 ms in forward steps"
        ]

    def test_an_engine_between_requests(self, reported: Reported) -> None:
        """The time between its forward steps, before and after them is apart."""
        steps = [10_000, 20_000, 30_000, 130_000, 140_000]
        events = [slice_("step[DECODE bs=4]", "user_annotation", at, 10_000) for at in steps]
        events.append(slice_("PyTorch Profiler (0)", "Trace", 0, 200_000, "Spans", "PyTorch Profiler"))
        report = reported(events)
        text = "the trace covers 200 ms: no forward step 75%, forward steps 25%"
        assert report["findings"][0]["text"] == text
        assert sum(each["seconds"] for each in report["path"]) == pytest.approx(0.2)

    def test_a_kernel_that_was_launched_and_had_not_begun(self, reported: Reported) -> None:
        """The host is not the reason."""
        late = [
            slice_("launch", "cuda_runtime", 11_000, 5, correlation=2),
            slice_("gemm", "kernel", 491_000, 9_000, 0, 7, correlation=2),
            arrow("s", 2, 11_000, 4711, 4711, ("ac2g", "ac2g")),
            arrow("f", 2, 491_000, 0, 7, ("ac2g", "ac2g")),
        ]
        report = reported([*self.idle("cudaStreamSynchronize", 12_000, 470_000), *late])
        (found,) = (each for each in report["findings"] if each["seconds"] and each["topic"] != "step")
        assert found["topic"] == "pending"
        assert found["seconds"] == pytest.approx(0.48, abs=0.001)

    @pytest.mark.parametrize(
        ("name", "advice", "gains"),
        [
            (None, "it may be the first use", True),
            ("Lazy Function Loading", "kernels are loaded at their first use", True),
            ("Runtime Triggered Module Loading", "kernels are loaded at their first use", True),
            ("Driver Compiler", "the driver compiled kernels", True),
            ("Activity Buffer Request", "it is of the profiler", False),
            ("Instrumentation", "it is of the profiler", False),
        ],
    )
    @pytest.mark.parametrize("place", [(-1, 0), (4711, 4711)])
    def test_a_launch_that_does_more(
        self, reported: Reported, name: str | None, advice: str, gains: bool, place: tuple[int, int]
    ) -> None:
        """Until the launching call ends, its kernel is not launched. What the trace calls overhead says why, on whatever row."""
        long = [
            slice_("cudaLaunchKernel", "cuda_runtime", 11_000, 470_000, correlation=2),
            slice_("gemm", "kernel", 481_010, 9_000, 0, 7, correlation=2),
            arrow("s", 2, 11_000, 4711, 4711, ("ac2g", "ac2g")),
            arrow("f", 2, 481_010, 0, 7, ("ac2g", "ac2g")),
        ]
        overhead = [] if name is None else [slice_(name, "overhead", 11_010, 460_000, *place)]
        report = reported([*self.idle("cudaEventQuery", 10_900, 10), *long, *overhead])
        (found,) = (each for each in report["findings"] if each["seconds"] and each["topic"] != "step")
        assert found["topic"] == "host"
        assert found["why"] == (
            f"its trace has `{name}` as overhead for 460 ms of it"
            if name
            else "its host was in `cudaLaunchKernel` for 470 ms of it"
        )
        assert found["advice"].startswith(advice)
        assert (found["saves"] is not None) == gains
        assert report["seconds"] == pytest.approx(0.5)

    def test_overhead_after_a_launch(self, reported: Reported) -> None:
        """A kernel that had not begun did not wait for something unknown."""
        late = [
            slice_("launch", "cuda_runtime", 11_000, 5, correlation=2),
            slice_("gemm", "kernel", 491_000, 9_000, 0, 7, correlation=2),
            arrow("s", 2, 11_000, 4711, 4711, ("ac2g", "ac2g")),
            arrow("f", 2, 491_000, 0, 7, ("ac2g", "ac2g")),
            slice_("Command Buffer Full", "overhead", 12_000, 479_000, -1, 0),
        ]
        report = reported([*self.idle("cudaEventQuery", 10_900, 10), *late])
        (found,) = (each for each in report["findings"] if each["seconds"] and each["topic"] != "step")
        assert found["why"] == "its trace has `Command Buffer Full` as overhead for 479 ms of it"

    def test_without_arrows_no_launch_is_known(self, reported: Reported) -> None:
        """The sentence says that the trace does not connect kernels with their launches."""
        events = [
            {**each, "args": {}} for each in self.idle("cudaEventQuery", 20_000, 10) if each["ph"] == "X"
        ]
        (found,) = (each for each in reported(events)["findings"] if each["topic"] == "host")
        assert found["why"] == "no kernel ran; the trace does not connect kernels with their launches"

    @pytest.mark.parametrize("category", ["user_annotation", "Operator", "cpu_op"])
    def test_a_loader_has_its_name_from_torch(self, reported: Reported, category: str) -> None:
        """The time of `enumerate(DataLoader)` is a wait for data."""
        name = "enumerate(DataLoader)#_MultiProcessingDataLoaderIter.__next__"
        events = [each for each in self.idle("x", 0, 1) if each["name"] != "decode"]
        report = reported([*events, slice_(name, category, 20_000, 400_000)])
        assert sentences(report, "data") == [f"a.pt.trace.json spent 400 ms on data in `{name}`"]


def covered(*slices: Event) -> float:
    """Return the seconds in which any of some slices ran."""
    total, reach = 0.0, -1.0
    for each in sorted(slices, key=lambda each: each["ts"]):
        end = each["ts"] + each["dur"]
        total += max(end - max(each["ts"], reach), 0.0)
        reach = max(reach, end)
    return total / 1e6


class TestFigures:
    """The figures of each maker's form, against unions of the intervals in the file."""

    @pytest.mark.parametrize(
        ("kernel", "copy", "runtime", "collective"),
        [
            ("kernel", "gpu_memcpy", "cuda_runtime", "ncclDevKernel_AllReduce_Sum_f32_RING_LL(x)"),
            ("kernel", "gpu_memcpy", "cuda_driver", "ncclKernel_AllGather_RING_LL_Sum_int8_t(ncclWorkElem)"),
            ("Kernel", "Memcpy", "Runtime", "ncclAllReduceRingLLKernel_sum_f32(ncclColl)"),
            ("kernel", "gpu_memset", "hip_runtime", "rcclGenericKernel"),
            ("mtia_ccp_events", "gpu_memcpy", "mtia_runtime", "nccl_all_gather"),
            ("kernel", "gpu_memcpy", "xpu_runtime", "oneccl_allreduce_kernel"),
            ("kernel", "gpu_memcpy", "privateuse1_runtime", "HcclAllreduce"),
        ],
    )  # fmt: skip
    def test_random_slices(
        self, reported: Reported, kernel: str, copy: str, runtime: str, collective: str
    ) -> None:
        """Two devices with two streams each, whose slices overlap."""
        random = Random(kernel + collective)
        events = [slice_("PyTorch Profiler (0)", "Trace", 0, LENGTH, "Spans", "PyTorch Profiler")]
        for device in (0, 1):
            for stream, name, category in (
                (7, "gemm", kernel),
                (20, collective, kernel),
                (8, "Memcpy HtoD", copy),
            ):
                at = random.uniform(0, 4_000)
                while (at := at + random.uniform(0, 9_000)) < 0.9 * LENGTH:
                    took = random.uniform(10, 5_000)
                    events += [
                        slice_("launch", runtime, at, 5),
                        slice_(name, category, at, took, device, stream, device=device, stream=stream),
                    ]
                    at += took
        report = reported([*events, slice_("train", "user_annotation", 0, LENGTH)])
        assert report["seconds"] == pytest.approx(0.1)
        assert report["problems"] == []
        there = {name: [each for each in events if each["name"] == name] for name in ("gemm", collective)}
        assert {
            each["name"]: (each["calls"], each["seconds"])
            for each in report["kernels"]
            if each["name"] in there
        } == {
            name: (len(of), pytest.approx(sum(each["dur"] for each in of) / 1e6, abs=1e-6))
            for name, of in there.items()
        }
        devices = [[each for each in events if each["pid"] == device] for device in (0, 1)]
        expected = []
        for of in devices:
            computing, moving = (
                [each for each in of if each["name"] == name] for name in ("gemm", collective)
            )
            both = covered(*computing) + covered(*moving) - covered(*computing, *moving)
            expected.append((covered(*computing), covered(*moving), both, covered(*of) / 0.1))
        found = [
            (each["compute"], each["communication"], each["overlapped"], each["busy_share"])
            for each in report["overlap"]
        ]
        assert [*map(pytest.approx, found)] == expected
        idle = 0.1 - covered(*(each for of in devices for each in of))
        assert sum(report["idle"][0]["causes"].values()) >= idle - 1e-5


class TestCauses:
    """One sentence for each cause, whatever the number of its regions and ranks."""

    @staticmethod
    def regions(*kernels: tuple[float, float]) -> list[Event]:
        """Return three regions of 30 ms and 10 ms outside of them, with kernels at some times [ms]."""
        events = [slice_("PyTorch Profiler (0)", "Trace", 0, LENGTH, "Spans", "PyTorch Profiler")]
        events += [
            slice_(name, "user_annotation", 30_000.0 * at, 30_000)
            for at, name in enumerate(("forward", "backward", "optimizer"))
        ]
        return events + [slice_("gemm", "kernel", at * 1e3, dur * 1e3, 0, 7) for at, dur in kernels]

    def test_idle_time_of_several_regions_is_one_finding(self, reported: Reported) -> None:
        """The places have their seconds. Outside of annotations is a place too, with the name that the first sentence uses."""
        report = reported(self.regions((0, 20), (30, 25), (70, 20), (95, 5)))
        assert sentences(report, "step") == [
            "the trace covers 100 ms: `forward` 30%, `backward` 30%, `optimizer` 30%, in no annotation 10%"
        ]
        assert sentences(report, "host") == [
            "the device of a.pt.trace.json had no work for 30 ms in `forward` (10 ms), `optimizer` (10 ms), `backward` (5 ms) and 1 more"
        ]
        (found,) = (each for each in report["findings"] if each["topic"] == "host")
        assert found["seconds"] == pytest.approx(0.030)

    def test_time_of_copies_is_no_idle_time(self, reported: Reported) -> None:
        """While a copy runs alone, the device computes nothing; next to a kernel it costs nothing."""
        name = "Memcpy HtoD (Pageable -> Device)"
        copies = [slice_(name, "gpu_memcpy", at * 1e3, 20_000, 0, 8) for at in (10, 60)]
        report = reported([*self.regions((0, 20), (30, 70)), *copies])
        assert sentences(report, "memcpy") == [
            "the device of a.pt.trace.json only copied data for 10 ms in `forward`"
        ]
        (found,) = (each for each in report["findings"] if each["topic"] == "memcpy")
        assert found["why"] == f"`{name}` took longest of its copies: 10 ms in all"

    @pytest.mark.parametrize("device", [True, False])
    def test_torchs_compiler_is_named(self, reported: Reported, device: bool) -> None:
        """Its phases are operators in the trace, and its annotations of arguments are no regions."""
        events = [
            slice_("_compile.compile_inner (dynamo_timed)", "cpu_op", 1_000, 28_000),
            slice_("compile_file (dynamo_timed)", "cpu_op", 2_000, 20_000),
            slice_("backward._backward_impl (dynamo_timed)", "cpu_op", 30_000, 12_000),
            slice_("GraphLowering.run_data: compile_id=0/0", "user_annotation", 3_000, 10_000),
        ]
        report = reported([*self.regions(*[(50, 50)] * device), *events])
        assert sentences(report, "compile") == [
            "a.pt.trace.json ran torch's compiler for 40 ms in `forward` (28 ms) and `backward` (12 ms)"
        ]
        assert not [each for each in report["regions"] if "compile_id" in each["region"]]

    def test_a_forward_step_that_compiles(self, reported: Reported) -> None:
        """The compiler is the cause, also while the last request is alone; the rest of that time is the last request's."""
        marks = [(0, 40_000, 8), (40_000, 50_000, 1), (90_000, 10_000, 1)]
        events = [
            slice_(f"execute_context_0(0)_generation_{size}({size})", "user_annotation", at, length)
            for at, length, size in marks
        ]
        compiling = slice_("_compile.compile_inner (dynamo_timed)", "cpu_op", 41_000, 45_000)
        report = reported([*events, compiling])
        assert sentences(report, "compile") == [
            "a.pt.trace.json ran torch's compiler for 45 ms in forward steps"
        ]
        (tail,) = (each for each in report["findings"] if each["topic"] == "tail")
        assert tail["text"] == "the last requests took 15 ms: of 8 sequences at most 1 was still generated"
        assert tail["why"] == "the batch had fallen to 12% of its peak"
        assert "rollout" not in tail["advice"]
        assert "samples" not in tail["advice"]

    def test_time_between_phases_of_the_compiler_is_not_its_own(self, reported: Reported) -> None:
        """A thousand phases of 20 us, 100 us apart; those that the device shows are copies of them. From 50 ms on it has a kernel,
        and the compiler keeps nothing waiting.
        """
        name = "compile (dynamo_timed)"
        phases = [slice_(name, "cpu_op", 100.0 * at, 20) for at in range(1, 1000)]
        shown = [slice_(name, "gpu_user_annotation", 0, 100_000, 0, 7)]
        report = reported([*self.regions((50, 50)), *phases, *shown])
        (found,) = (each for each in report["findings"] if each["topic"] == "compile")
        assert found["seconds"] == pytest.approx(499 * 20e-6)

    def test_filling_memory_is_no_copy(self, reported: Reported) -> None:
        """Its advice is not that for copies from the host."""
        fill = slice_("Memset (Device)", "gpu_memset", 20_000, 30_000, 0, 8)
        report = reported([*self.regions((0, 20), (50, 50)), fill])
        assert sentences(report, "memcpy") == [
            "the device of a.pt.trace.json only filled memory for 30 ms in `backward` (20 ms) and `forward` (10 ms)"
        ]
        (found,) = (each for each in report["findings"] if each["topic"] == "memcpy")
        assert "pinned" not in found["advice"]

    @pytest.mark.parametrize("offset", [0.0, 7_000.0])
    def test_64_ranks_fill_one_screen(self, tmp_path: Path, offset: float) -> None:
        """On one clock and on 64 of them; the note about clocks is one too."""
        for rank in range(64):
            events = [
                {**each, "ts": each["ts"] + offset * rank}
                for each in self.regions((0, 20), (30, 25), (70, 30))
            ]
            info = {"rank": rank, "world_size": 64}
            top = {
                "schemaVersion": 1,
                "baseTimeNanoseconds": BASE,
                "distributedInfo": info,
                "traceEvents": events,
            }
            (tmp_path / f"{rank}.json").write_text(json.dumps(top))
        out = tmp_path / "out" / "report.json"
        out.parent.mkdir()
        options = ["--workers", "1", *([] if offset else ["--one-clock"])]
        assert main(["report", str(tmp_path), "--json", str(out), *options]) == 0
        report = json.loads(out.read_text())
        assert len(report["findings"]) + len(report["problems"]) <= 6
        (text,) = sentences(report, "host")
        apart = "; similar in 63 other processes, 25 ms" if offset else ""
        assert text.endswith(
            f"had no work for 25 ms in `forward` (10 ms), `optimizer` (10 ms) and `backward` (5 ms){apart}"
        )


class TestAscend:
    """A whole `trace_view.json` of torch_npu, with its lanes of derived figures."""

    def test_derived_lanes_are_no_work(self, tmp_path: Path) -> None:
        """Overlap Analysis, the planes of Communication, the frequency and the memory repeat or describe the work: none of it counts twice."""
        lanes = {
            1: "Python",
            3: "Ascend Hardware",
            4: "AI Core Freq",
            5: "HBM",
            6: "Communication",
            7: "Overlap Analysis",
        }
        events: list[Event] = [
            {"ph": "M", "name": what, "pid": pid, "tid": 0, "args": {key: value}}
            for pid, name in lanes.items()
            for what, key, value in (
                ("process_name", "name", name),
                ("process_labels", "labels", "CPU" if pid == 1 else "NPU"),
            )
        ]
        rows = {(6, 3): "Group 0 Communication", (6, 4): "Plane 0", (7, 0): "Computing", (7, 1): "Free"}
        events += [
            {"ph": "M", "name": "thread_name", "pid": pid, "tid": tid, "args": {"name": name}}
            for (pid, tid), name in rows.items()
        ]
        for number in range(10):
            at = 1_700_000_000_000_000 + 10_000 * number
            drawn = [
                slice_("aten::mm", "cpu_op", at, 900, 1, 1),
                slice_("MatMulV2", "", at + 1_000, 6_000, 3, 2, **{"Task Type": "AI_CORE", "Stream Id": 2}),
                slice_("hcom_allReduce__123_0_1", "", at + 6_500, 2_500, 6, 3),
                slice_("Notify_Wait", "", at + 6_500, 1_000, 6, 4),
                slice_("Computing", "", at + 1_000, 6_000, 7, 0),
                slice_("Free", "", at + 9_000, 1_000, 7, 1),
            ]
            events += [{**each, "ts": f"{each['ts']}.000"} for each in drawn]
            events += [
                {"ph": "C", "name": name, "pid": pid, "tid": 0, "ts": f"{at}.000", "args": {"value": 1850}}
                for pid, name in ((4, "AI Core Freq"), (5, "HBM 0/Read"))
            ]
        (tmp_path / "trace_view.json").write_text(json.dumps(events))
        out = tmp_path / "out" / "report.json"
        out.parent.mkdir()
        assert main(["report", str(tmp_path), "--json", str(out)]) == 0
        report = json.loads(out.read_text())
        (row,) = report["overlap"]
        expected = {"compute": 0.060, "communication": 0.025, "overlapped": 0.005, "exposed": 0.020}
        assert {key: row[key] for key in expected} == pytest.approx(expected)
        assert sentences(report, "busy") == ["the NPUs were busy for 80% of the captured time"]
        assert {each["name"] for each in report["kernels"]}.isdisjoint({"Computing", "Free"})
        (idle,) = (each for each in report["findings"] if each["topic"] == "host")
        assert "NPU graphs" in idle["advice"]
        assert report["problems"] == []


class TestFiles:
    """Several traces."""

    @staticmethod
    def written(folder: Path, name: str, events: list[Event], **header: Any) -> Path:
        folder.mkdir(parents=True, exist_ok=True)
        top = {"schemaVersion": 1, "baseTimeNanoseconds": BASE, **header}
        (folder / name).write_text(json.dumps({**top, "traceEvents": events}))
        return folder / name

    def test_two_files_are_compared(self, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
        """Two traces that are not of two ranks are before and after."""
        longer = [{**each, "ts": each["ts"] * 2, "dur": each.get("dur", 0) * 2} for each in capture()]
        before = self.written(tmp_path, "before.json", capture())
        after = self.written(tmp_path, "after.json", longer)
        assert main(["report", str(before), str(after)]) == 0
        printed = capsys.readouterr().out
        assert "the whole trace took 100% longer: 100 ms before, 200 ms now" in printed
        assert "None" not in printed
        assert "was recorded with" not in printed

    def test_unlike_options(self, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
        """The heads of the traces state what makes a step longer."""
        before = self.written(tmp_path, "before.json", capture(), with_stack=1, record_shapes=1)
        after = self.written(
            tmp_path, "after.json", capture(), record_shapes=1, profile_memory=1, with_flops=1
        )
        assert main(["report", str(before), str(after)]) == 0
        printed = " ".join(capsys.readouterr().out.split())
        said = "A was recorded with with_stack, and B was recorded with profile_memory, with_flops: this makes a step longer"
        assert said in printed

    @pytest.mark.parametrize("turned", [False, True])
    def test_a_step_and_a_whole_trace(
        self, tmp_path: Path, turned: bool, capsys: pytest.CaptureFixture[str]
    ) -> None:
        """One of them may have any number of steps: they are not compared."""
        mark = slice_("ProfilerStep#3", "user_annotation", 0, LENGTH)
        pair = [
            str(self.written(tmp_path, "before.json", [mark, *capture()])),
            str(self.written(tmp_path, "after.json", capture())),
        ]
        assert main(["report", *(reversed(pair) if turned else pair)]) == 2
        assert capsys.readouterr().err == (
            "stepprof report: before.json step 3 is one step, and after.json has no marked steps: their lengths say nothing; "
            "compare traces that both call profiler.step(), or neither\n"
        )

    def test_files_of_two_ranks_are_one_job(self, tmp_path: Path) -> None:
        """Their heads state the ranks, which are their names; the host is not known."""
        paths = [
            self.written(
                tmp_path,
                f"worker{rank}_step_12.17.pt.trace.json",
                capture(),
                distributedInfo={"rank": rank, "world_size": 2},
            )
            for rank in (0, 1)
        ]
        out = tmp_path / "out.json"
        for options in ([], ["--one-clock"], ["--assume-offset", "0"]):
            assert main(["report", *map(str, paths), "--json", str(out), *options]) == 0
            report = json.loads(out.read_text())
            assert [(each["label"], each["host"]) for each in report["sources"]] == [
                ("rank 0", None),
                ("rank 1", None),
            ]
            assert len(report["islands"]) == (1 if options else 2)

    @pytest.mark.parametrize(
        ("sizes", "later", "alike"),
        [((8, 8, 4), 1.0, True), ((8, 3), 1.0, False), ((8, 8, 4), 200_000.0, False)],
    )
    def test_ranks_of_an_engine(
        self, tmp_path: Path, sizes: tuple[int, ...], later: float, alike: bool
    ) -> None:
        """Ranks that ran the same forward steps at the same time are one engine. Others are engines of their own."""
        for rank in (0, 1):
            steps = [
                slice_(f"step[DECODE bs={size}]", "user_annotation", 30_000.0 * at + later * rank, 25_000)
                for at, size in enumerate(sizes if rank else (8, 8, 4))
            ]
            info = {"backend": "gloo", "rank": rank, "world_size": 2}
            name = f"1690000000.25-TP-{rank}.trace.json"
            self.written(tmp_path, name, steps, distributedInfo=info, host_name="node")
        out = tmp_path / "out" / "report.json"
        out.parent.mkdir()
        assert main(["report", str(tmp_path), "--json", str(out)]) == 0
        report = json.loads(out.read_text())
        assert [(each["label"], each["peak_batch"]) for each in report["rollout"]] == (
            [("rank 0 and rank 1", 8.0)]
            if alike
            else [("rank 0", 8.0), ("rank 1", 8.0), ("all engines", 16.0 if later < 100_000 else 8.0)]
        )

    @pytest.mark.parametrize("compressed", [False, True])
    def test_a_head_behind_the_events(self, tmp_path: Path, compressed: bool) -> None:
        """A tool that writes a trace again may put `traceEvents` first: the rank behind them counts."""
        for rank in (0, 1):
            behind = {
                "schemaVersion": 1,
                "baseTimeNanoseconds": BASE,
                "host_name": "node",
                "distributedInfo": {"rank": rank, "world_size": 2},
            }
            content = json.dumps({"traceEvents": capture(), **behind}).encode()
            (tmp_path / f"{'ab'[rank]}.json").write_bytes(
                gzip.compress(content, mtime=0) if compressed else content
            )
        out = tmp_path / "out" / "report.json"
        out.parent.mkdir()
        assert main(["report", str(tmp_path), "--json", str(out)]) == 0
        sources = json.loads(out.read_text())["sources"]
        assert [(each["label"], each["path"][0]) for each in sources] == [("rank 0", "a"), ("rank 1", "b")]

    def test_names_without_the_time(self, tmp_path: Path) -> None:
        """A process has the name of its worker; of two captures of one, the last one has it too, and the note has the file's name."""
        second = [{**each, "ts": each["ts"] + 10 * LENGTH} for each in capture()]
        names = [f"node_77.17953041{at}4711483.pt.trace.json" for at in ("20", "30")]
        for name, events in zip(names, (capture(), second), strict=True):
            self.written(tmp_path, name, events)
        out = tmp_path / "out" / "report.json"
        out.parent.mkdir()
        for given in (tmp_path, tmp_path / names[1]):
            assert main(["report", str(given), "--json", str(out)]) == 0
            (source,) = json.loads(out.read_text())["sources"]
            assert (source["label"], source["path"]) == ("node_77", names[1])

    def ranks(self, folder: Path, count: int, *, offset: float = 0.0, **header: Any) -> dict[int, float]:
        """Write the traces of ranks that meet four times, the last one late; return how long each waited [s].

        The kernels state neither group nor number. `offset`: how far the clock of the odd ranks is ahead [us].
        """
        waited = dict.fromkeys(range(count), 0.0)
        for rank in range(count):
            events, ahead = [slice_("train", "user_annotation", 0, LENGTH)], offset * (rank % 2)
            for number in range(4):
                end = 25_000.0 * (number + 1)
                begin = end - (3_000 if rank == count - 1 else 12_000)
                waited[rank] += (end - 3_000 - begin) / 1e6
                events += [
                    slice_("gemm", "kernel", begin - 6_000, 6_000, 0, 7, correlation=number),
                    slice_("ncclKernel_SendRecv_RING", "kernel", begin, end - begin + rank / 10, 0, 20),
                ]
            moved = [{**each, "ts": each["ts"] + ahead} for each in events]
            info = {"backend": "nccl", "rank": rank, "world_size": count}
            self.written(
                folder, f"worker{rank}_step_12.17.pt.trace.json", moved, distributedInfo=info, **header
            )
        return waited

    def test_ranks_whose_collectives_end_together_share_a_clock(self, tmp_path: Path) -> None:
        """No clock is doubted, and the report names the last rank, with the seconds that the others waited for it."""
        waited = self.ranks(tmp_path, 8)
        out = tmp_path / "out" / "report.json"
        out.parent.mkdir()
        assert main(["report", str(tmp_path), "--json", str(out)]) == 0
        report = json.loads(out.read_text())
        assert report["problems"] == []
        assert (
            report["clock"]
            == "8 sources on one clock, because their collectives end together, error at most 0.01 ms"
        )
        assert (
            "rank 6 waited 36 ms for rank 7 in the collectives of the step, and 6 other ranks at least half as long"
            in [each["text"] for each in report["findings"]]
        )
        (row,) = (each for each in report["skew"] if each["basis"] == "collectives")
        assert {each["label"]: each["seconds"] for each in row["waited"]} == {
            f"rank {rank}": pytest.approx(seconds, abs=1e-5) for rank, seconds in waited.items() if seconds
        }

    @pytest.mark.parametrize(
        ("regions", "places"), [("ab", " in `b` (30 ms) and `a` (10 ms)"), ("", "")], ids=["annotated", "not"]
    )
    def test_transfers_in_several_regions_are_one_finding(
        self, tmp_path: Path, capsys: pytest.CaptureFixture[str], regions: str, places: str
    ) -> None:
        """They have one cause. Of ranks of which one kept the device idle, its host alone is meant; the clock's error is printed once."""
        for rank in (0, 1):
            begins = (20_000, 60_000) if rank else (30_000, 60_000)
            events = [
                slice_(name, "user_annotation", at, 50_000)
                for name, at in zip(regions, (0, 50_000), strict=False)
            ]
            for number, begin in enumerate(begins):
                end = (40_000, 90_000)[number]
                events += [
                    slice_("gemm", "kernel", begin - 10_000, 10_000, 0, 7, correlation=number),
                    slice_("ncclKernel_AllReduce", "kernel", begin, end - begin, 0, 20),
                ]
            info = {"backend": "nccl", "rank": rank, "world_size": 2}
            self.written(tmp_path, f"{rank}.json", events, distributedInfo=info)
        out = tmp_path / "out" / "report.json"
        out.parent.mkdir()
        assert main(["report", str(tmp_path), "--json", str(out)]) == 0
        report = json.loads(out.read_text())
        (found,) = sentences(report, "overlap")
        assert found.startswith(f"collectives took 40 ms{places} while")
        (host,) = (each for each in report["findings"] if each["topic"] == "host")
        assert host["why"].startswith("no kernel ran")
        assert capsys.readouterr().out.count("error at most") == 1

    def test_ranks_on_two_clocks_are_not_compared(self, tmp_path: Path) -> None:
        """Those of one machine are, and no rank is said to wait for another."""
        self.ranks(tmp_path, 4, offset=700.0)
        out = tmp_path / "out" / "report.json"
        out.parent.mkdir()
        assert main(["report", str(tmp_path), "--json", str(out)]) == 0
        report = json.loads(out.read_text())
        assert sorted(each["hosts"] for each in report["islands"]) == [
            ["rank 0", "rank 2"],
            ["rank 1", "rank 3"],
        ]
        assert all(each["basis"] != "collectives" for each in report["skew"])
        assert "could not be matched across ranks" in sentences(report, "collectives")[0]
        (problem,) = report["problems"]
        assert problem["problem"] == (
            "the clocks of 2 groups of sources (rank 0 and rank 2; rank 1 and rank 3) were never compared with each other, and their "
            "hosts are unknown: each group is placed by its own clock, with an unknown error; --one-clock says that they are of "
            "one machine"
        )
        assert report["clock"] == (
            "2 sources on one clock, because their collectives end together, error at most 0.01 ms; "
            "2 by 1 clock that was never compared, with an unknown error"
        )

    @pytest.mark.parametrize("is_divided", [True, False])
    @pytest.mark.parametrize("is_marked", [True, False])
    def test_traces_on_clocks_that_were_never_compared(
        self, tmp_path: Path, is_divided: bool, is_marked: bool
    ) -> None:
        """Without marked steps there is no step, and what no annotation divides has the advice to name it."""
        half = LENGTH / 2
        marks = [slice_(f"ProfilerStep#{at}", "user_annotation", at * half, half) for at in (0, 1)]
        kept = [each for each in capture() if is_divided or each["name"] != "decode"]
        kept += marks if is_marked else []
        info = [{"distributedInfo": {"rank": rank, "world_size": 2}} for rank in (0, 1)]
        paths = [self.written(tmp_path, f"{rank}.json", kept, **header) for rank, header in enumerate(info)]
        out = tmp_path / "out.json"
        assert main(["report", *map(str, paths), "--json", str(out)]) == 0
        first = json.loads(out.read_text())["findings"][0]
        covered, length = ("the step took", "50 ms") if is_marked else ("the traces cover", "100 ms")
        divided = "" if is_divided else ", and no annotation divides them"
        assert first["text"] == (
            f"{covered} {length} on rank 0, {length} on rank 1, each by its own clock{divided}"
        )
        assert ("record_function" in (first["advice"] or "")) == (not is_divided)
        assert ("`profiler.step()`" in (first["advice"] or "")) == (not is_divided and not is_marked)

    def test_reports_of_one_folder_do_not_replace_each_other(self, tmp_path: Path) -> None:
        """Each has the name of its trace, and none is read as a trace."""
        for name in ("rank0.pt.trace.json", "rank1.json"):
            trace = self.written(tmp_path, name, capture())
            assert main(["report", str(trace)]) == 0
            assert main(["merge", str(trace)]) == 0
        assert {path.name for path in tmp_path.iterdir()} == {
            *("rank0.pt.trace.json", "rank0.report.html", "rank0.report.json", "rank0.timeline.pftrace"),
            *("rank1.json", "rank1.report.html", "rank1.report.json", "rank1.timeline.pftrace"),
        }
        out = tmp_path / "out" / "all.json"
        out.parent.mkdir()
        assert main(["report", str(tmp_path), "--json", str(out)]) == 0
        assert len(json.loads(out.read_text())["sources"]) == 2
