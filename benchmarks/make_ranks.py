"""Fabricate a run of many ranks: ``python -m benchmarks.make_ranks FOLDER --ranks 1024``.

One rank is real: a process that records through stepprof and has no work. All others are copies of
its spans, its status and its manifest, under other ranks, hosts and process ids. Eight ranks share
a host, some a little later than the others. The traces are fabricated. Each window has a few
operators and a few collectives of all ranks, and each host has the iterations of one engine. The
run serves to measure the cost of many ranks, not to be viewed.
"""

from __future__ import annotations

import argparse
import gzip
import json
import os
import re
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.child import run_python
from benchmarks.ranks_child import RECORDED, ROLES

__all__ = ["make_ranks"]

PER_HOST = 8
LATER_NS = 20_000
"""The delay of each rank of a host after the previous one."""
OPERATORS = 8
COLLECTIVES = 4
_START = re.compile(rb'"start": (\d+)')


def make_ranks(folder: Path, ranks: int) -> Path:
    """Fabricate a run, or reuse the one of an earlier call.

    Args:
        folder: the folder of runs of all sizes.
        ranks: the number of ranks.

    Returns:
        the run's folder.
    """
    path = folder / f"ranks-{ranks}"
    if not (path / "run.json").is_file():
        real = folder / "real" / path.name
        folder.mkdir(parents=True, exist_ok=True)
        run_python("-m", "benchmarks.ranks_child", str(real.parent.resolve()), path.name, str(ranks))
        _Fabric.of(real, path, ranks).write()
    return path


@dataclass(frozen=True)
class _Fabric:
    """The parts of every rank's files, prepared for each place on a host."""

    path: Path
    ranks: int
    run: dict[str, Any]
    status: dict[str, Any]
    head: dict[str, Any]
    spans: tuple[bytes, ...]
    fragments: dict[str, dict[str, Any]]
    traces: dict[str, tuple[tuple[bytes, int], ...]]
    """The trace of each role, and its number of events."""

    @classmethod
    def of(cls, real: Path, path: Path, ranks: int) -> _Fabric:
        manifest = real / f"step-{RECORDED:06d}" / "manifest"
        fragments = {role: _read(manifest / f"{role}-rank-0.json") for role in ROLES}
        (file,) = (real / "spans").iterdir()
        head, _, spans = file.read_bytes().partition(b"\n")
        later = [place * LATER_NS for place in range(PER_HOST)]
        return cls(
            path,
            ranks,
            _read(real / "run.json"),
            _read(real / "status" / "rank-0.json"),
            json.loads(head),
            tuple(_later(spans, nanoseconds) for nanoseconds in later),
            fragments,
            {
                role: tuple(_trace(fragment["windows"][0], nanoseconds, ranks) for nanoseconds in later)
                for role, fragment in fragments.items()
            },
        )

    def write(self) -> None:
        """Write the run, and `run.json` last, so that an interrupted run is not mistaken for a
        complete one.
        """
        for folder in ("spans", "status", f"{self._step}/manifest", *(f"{self._step}/{r}" for r in ROLES)):
            (self.path / folder).mkdir(parents=True, exist_ok=True)
        for rank in range(self.ranks):
            self._write_rank(rank)
        self._write_engines()
        _write(self.path / "run.json", self.run)

    @property
    def _step(self) -> str:
        return f"step-{RECORDED:06d}"

    def _write_rank(self, rank: int) -> None:
        place, who = rank % PER_HOST, self._process(rank)
        writer = {**self.run["writer"], **who}
        head = {**self.head, **who, "rank": rank}
        (self.path / "spans" / f"rank-{rank}.000001.jsonl").write_bytes(
            json.dumps(head).encode() + b"\n" + self.spans[place]
        )
        _write(
            self.path / "status" / f"rank-{rank}.json", {**self.status, **who, "rank": rank, "writer": writer}
        )
        for role, fragment in self.fragments.items():
            data, events = self.traces[role][place]
            name = f"{role}/rank-{rank}.trace.json.gz"
            self._link(f"{self._step}/{name}", f"{self._step}/{role}/rank-{place}.trace.json.gz", data)
            artifact = {"path": name, "kind": "torch-trace", "bytes": len(data), "events": events}
            window = {
                **fragment["windows"][0],
                "host": who["host"],
                "pid": who["pid"],
                "rank": rank,
                "backend": "torch",
                "artifacts": [artifact],
            }
            for edge in ("start_unix_ns", "end_unix_ns"):
                window[edge] += place * LATER_NS
            clocks = [{**clock, "host": who["host"], "error_ns": 100 + rank} for clock in fragment["clocks"]]
            content = {**fragment, "writer": writer, "windows": [window], "clocks": clocks}
            _write(self.path / self._step / "manifest" / f"{role}-rank-{rank}.json", content)

    def _write_engines(self) -> None:
        """Write the fragment of the process that drives one engine per host and has compared the
        clocks of all hosts.
        """
        fragment = self.fragments["rollout"]
        edges = {key: fragment["windows"][0][key] for key in ("start_unix_ns", "end_unix_ns")}
        engines, clocks = [], list(fragment["clocks"])
        data, events = _iterations(int(edges["start_unix_ns"]))
        for replica in range(self.ranks // PER_HOST):
            name = f"rollout/engine-{replica}/rank-0.trace.json.gz"
            (self.path / self._step / name).parent.mkdir(parents=True, exist_ok=True)
            self._link(f"{self._step}/{name}", f"{self._step}/rollout/engine-0/rank-0.trace.json.gz", data)
            engine = {"role": "rollout", "replica": replica, "kind": "vllm", "name": f"engine-{replica}"}
            engine |= {"host": f"node-{replica:04d}", "status": "complete", "health": "ok", **edges}
            artifact = {"path": name, "kind": "trace", "bytes": len(data), "events": events}
            engines.append({**engine, "start_seconds": 0.001, "stop_seconds": 0.002, "artifacts": [artifact]})
            compared = {"offset_ns": 0, "error_ns": 20_000 + replica, "method": "ping-pong"}
            clocks.append({"host": f"node-{replica:04d}", **compared})
        writer = {**self.run["writer"], **self._process(0)}
        content = {**fragment, "writer": writer, "windows": [], "engines": engines, "clocks": clocks}
        _write(self.path / self._step / "manifest" / "rollout-engines.json", content)

    def _link(self, name: str, first: str, data: bytes) -> None:
        """Write a file, or link the file with the same content."""
        if name == first:
            (self.path / name).write_bytes(data)
        else:
            os.link(self.path / first, self.path / name)

    @staticmethod
    def _process(rank: int) -> dict[str, Any]:
        host = f"node-{rank // PER_HOST:04d}"
        return {"host": host, "boot_id": f"boot-of-{host}", "pid": 1000 + rank % PER_HOST}


def _later(spans: bytes, nanoseconds: int) -> bytes:
    return _START.sub(lambda found: b'"start": %d' % (int(found[1]) + nanoseconds), spans)


def _trace(window: Mapping[str, Any], later_ns: int, ranks: int) -> tuple[bytes, int]:
    """Return operators on a thread and collectives of all ranks on a device, within the window."""
    whole_us = (window["end_unix_ns"] - window["start_unix_ns"]) / 1e3
    each = whole_us / OPERATORS
    events: list[dict[str, Any]] = [
        {"ph": "X", "cat": "cpu_op", "name": "aten::mm", "pid": window["pid"], "tid": window["thread"], "ts": round(number * each, 3), "dur": round(each * 0.9, 3), "args": {"External id": number}}
        for number in range(OPERATORS)
    ]  # fmt: skip
    group = {"Process Group Name": "0", "Process Group Description": "default_pg", "Group size": ranks}
    events += [
        {"ph": "X", "cat": "kernel", "name": "ncclDevKernel_AllReduce_Sum_bf16_RING_LL(ncclDevKernelArgsStorage<4096ul>)", "pid": 0, "tid": 20, "ts": round(number * 2 * each, 3), "dur": round(each * 1.5, 3), "args": {"stream": 20, "device": 0, **group, "Seq": number, "Collective name": "allreduce"}}
        for number in range(COLLECTIVES)
    ]  # fmt: skip
    return _packed(window["start_unix_ns"] + later_ns, events)


def _iterations(start_unix_ns: int) -> tuple[bytes, int]:
    """Return the iterations that an engine's worker writes."""
    return _packed(
        start_unix_ns,
        [
            {"ph": "X", "cat": "user_annotation", "name": f"step[DECODE bs={16 - number}]", "pid": 1, "tid": 1, "ts": number * 250, "dur": 240, "args": {}}
            for number in range(16)
        ],
    )  # fmt: skip


def _packed(base_ns: int, events: list[dict[str, Any]]) -> tuple[bytes, int]:
    trace = {"schemaVersion": 1, "baseTimeNanoseconds": base_ns, "traceEvents": events}
    return gzip.compress(json.dumps(trace).encode(), 1, mtime=0), len(events)


def _read(path: Path) -> dict[str, Any]:
    content: dict[str, Any] = json.loads(path.read_bytes())
    return content


def _write(path: Path, content: object) -> None:
    path.write_text(json.dumps(content, indent=1), encoding="utf-8")


def main() -> int:
    """Fabricate a run, and print its folder."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.make_ranks", description="Fabricate a run of many ranks."
    )
    parser.add_argument("folder", type=Path)
    parser.add_argument("--ranks", type=int, default=256, help="by default 256")
    given = parser.parse_args()
    print(make_ranks(given.folder, given.ranks))
    return 0


if __name__ == "__main__":
    sys.exit(main())
