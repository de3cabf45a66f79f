"""Run one piece of work on traces in a separate process: ``python trace_child.py SUBJECT '{"files":
[…], …}'``, by any Python that has the library.

It imports nothing of this repository except the subject, so that a peer's environment needs only
the peer. It prints JSON with the result of the work, its processor seconds without the imports
(user and system, with children), and its wall seconds. It also prints the highest resident memory
of the process and of its largest child.
"""

from __future__ import annotations

import gzip
import json
import logging
import os
import resource
import sys
import tempfile
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

Work = Callable[[], object]


def decode(given: dict[str, Any]) -> Work:
    """Prepare msgspec's typed decode of text in memory: the limit of any JSON reader in Python."""
    import msgspec
    from isal import igzip

    fields: list[Any] = [("ph", str, ""), ("name", str, ""), ("pid", int | str, 0), ("tid", int | str, 0)]
    fields += [("ts", float, 0.0), ("dur", float, 0.0), ("args", msgspec.Raw, msgspec.Raw(b""))]
    event = msgspec.defstruct("Event", fields, gc=False)
    trace: Any = msgspec.defstruct("Trace", [("traceEvents", list[event])])  # type: ignore[valid-type]
    decoder = msgspec.json.Decoder(trace)
    texts = [igzip.decompress(Path(file).read_bytes()) for file in given["files"]]

    def work() -> object:
        return sum(len(decoder.decode(text).traceEvents) for text in texts)

    return work


def merge(given: dict[str, Any]) -> Work:
    """Prepare `stepprof merge`."""
    from stepprof.analysis.timeline.find import find
    from stepprof.analysis.timeline.merge import merge as merge_inputs

    output = Path(given["folder"], "stepprof.pftrace")

    def work() -> object:
        found = find(given["files"], output_dir=Path())
        merge_inputs(found.inputs, output, workers=given["workers"])
        return output.stat().st_size

    return work


def report(given: dict[str, Any]) -> Work:
    """Prepare `stepprof report` without the page."""
    from stepprof.analysis.report.analyse import analyse
    from stepprof.analysis.timeline.find import find

    def work() -> object:
        found = find(given["files"], output_dir=Path())
        done = analyse(found, workers=given["workers"])
        return {
            "events": sum(source.events for source in done.sources),
            "overlap": {
                each.label: [each.compute, each.communication, each.overlapped, each.exposed]
                for each in done.overlap
                if each.device == "gpu"
            },
        }

    return work


def sglang(given: dict[str, Any]) -> Work:
    """Prepare SGLang's merger, from its own file, because the package would import an engine."""
    import importlib.util

    package = next(Path(place) for place in sys.path if Path(place, "sglang").is_dir())
    spec = importlib.util.spec_from_file_location(
        "profile_merger", package / "sglang/srt/utils/profile_merger.py"
    )
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    folder = Path(given["folder"])
    for number, file in enumerate(given["files"]):
        link = folder / f"p-TP-{number}.trace.json.gz"
        if not link.exists():
            link.symlink_to(file)

    def work() -> object:
        return Path(module.ProfileMerger(str(folder), "p").merge_chrome_traces()).stat().st_size

    return work


def viztracer(given: dict[str, Any]) -> Work:
    """Prepare `viztracer --combine`, which reads and writes uncompressed text."""
    from viztracer.main import VizUI

    folder = Path(given["folder"])
    plain = []
    for number, file in enumerate(given["files"]):
        plain.append(folder / f"plain-{number}.json")
        if not plain[-1].exists():
            plain[-1].write_bytes(gzip.decompress(Path(file).read_bytes()))
    output = folder / "combined.json"

    def work() -> object:
        ui = VizUI()
        ui.parse(["viztracer", "--quiet", "--combine", *map(str, plain), "-o", str(output)])
        ui.run()
        return output.stat().st_size

    return work


def hta(given: dict[str, Any]) -> Work:
    """Prepare HolisticTraceAnalysis: overlap and temporal breakdown. It reads GPU traces only."""
    warnings.simplefilter("ignore")
    from hta.common.trace import Trace
    from hta.trace_analysis import TraceAnalysis

    del Trace
    logging.disable(logging.CRITICAL)
    os.environ["HTA_DISABLE_NS_ROUNDING"] = "1"

    def work() -> object:
        analysis = TraceAnalysis(trace_files=dict(enumerate(given["files"])), trace_dir="/")
        overlap = analysis.get_comm_comp_overlap(visualize=False)
        temporal = analysis.get_temporal_breakdown(visualize=False)
        return {"overlap": overlap.to_dict("list"), "temporal": temporal.to_dict("list")}

    return work


def tensorboard(given: dict[str, Any]) -> Work:
    """Prepare torch-tb-profiler, as TensorBoard's plug-in calls it for each worker."""
    warnings.simplefilter("ignore")
    from torch_tb_profiler.profiler.data import RunProfileData

    logging.disable(logging.CRITICAL)

    def work() -> object:
        with tempfile.TemporaryDirectory() as cache:
            done = [RunProfileData.parse(str(n), None, file, cache) for n, file in enumerate(given["files"])]
            return len(done)

    return work


def rl_insight(given: dict[str, Any]) -> Work:
    """Prepare rl-insight's parser of torch traces, which returns begin and end of each."""
    logging.disable(logging.CRITICAL)
    sys.path.insert(0, given["source"])
    from cluster_analysis.torch_parser import TorchClusterParser

    parser = TorchClusterParser({})

    def work() -> object:
        return [len(parser.parse_analysis_data(file, 0, "actor")) for file in given["files"]]

    return work


def tracelens(given: dict[str, Any]) -> Work:
    """Prepare TraceLens' performance report of each file, written as CSV. It reads GPU traces only."""
    warnings.simplefilter("ignore")
    from TraceLens.Reporting.generate_perf_report_pytorch import generate_perf_report_pytorch

    logging.disable(logging.CRITICAL)

    def work() -> object:
        sheets = 0
        for file in given["files"]:
            with tempfile.TemporaryDirectory() as folder:
                sheets += len(generate_perf_report_pytorch(file, output_csvs_dir=folder))
        return sheets

    return work


SUBJECTS = {
    each.__name__: each
    for each in (decode, merge, report, sglang, viztracer, hta, tensorboard, rl_insight, tracelens)
}


def _processor_seconds() -> float:
    usages = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(usage.ru_utime + usage.ru_stime for usage in usages)


def _peak_mib() -> float:
    """Return the peak of this program's memory. `ru_maxrss` begins at that of the process that started it."""
    for line in Path("/proc/self/status").read_text(encoding="ascii").splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) / 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def main() -> None:
    """Prepare the work, run and time it, and print the result."""
    sys.path.pop(0)  # this folder: its modules have generic names
    given = json.loads(sys.argv[2])
    work = SUBJECTS[sys.argv[1]](given)
    before, began = _processor_seconds(), time.perf_counter()
    answer = work()
    wall, seconds = time.perf_counter() - began, _processor_seconds() - before
    print()
    print(
        json.dumps(
            {
                "cpu_seconds": seconds,
                "wall_seconds": wall,
                "rss_mib": _peak_mib(),
                "child_rss_mib": resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss / 1024,
                "answer": answer,
            }
        )
    )


if __name__ == "__main__":
    main()
