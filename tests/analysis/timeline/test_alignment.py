"""Two processes on different clocks record while they exchange messages. On the merged timeline no
message arrives before it was sent.
"""

from __future__ import annotations

import gzip
import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from warm import Running, Server

from stepprof.analysis.timeline.clocks import never_compared, worst_error
from stepprof.analysis.timeline.find import find
from stepprof.analysis.timeline.load import load

MESSAGES = 20

PEER = '''
"""One of two processes that record a step while they exchange messages: rank 0 compares the other's clock with its own, as stepprof does with engines."""

import json, os, socket, sys, threading, time

rank, port, ahead_ns, backend = int(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]), sys.argv[4]

# a host of its own: another name, another boot, another clock
from stepprof.host import real_time
real_ns = time.time_ns
if rank == 1:
    time.time_ns = real_time.time_ns = lambda: real_ns() + ahead_ns
    time.time = real_time.time = lambda: time.time_ns() / 1e9
socket.gethostname = lambda: f"node-{rank}"

import stepprof
import stepprof.host.process_identity
from stepprof.remote.base import Clock, EngineDriver, Stopped
from stepprof.remote.ray.clock import ping_pong
from stepprof.run.model import Artifact

stepprof.host.process_identity.boot_id = lambda: f"boot-{rank}"
import stepprof.run.layout, stepprof.run.manifest_writer


class Peer:
    """The other process, as an engine: it tells the time, and leaves a trace on its own clock."""

    def __init__(self, connection):
        self.connection = connection


class PeerDriver(EngineDriver):
    kind, name, key, host = "peer", "peer", "peer", "node-1"

    def __init__(self, peer):
        self.peer = peer

    async def arm(self, window): pass

    async def start(self, window):
        self.began = self.ask()

    async def stop(self, window):
        path = window.output / "rank-0.trace.json"
        event = {"ph": "X", "name": "step[DECODE bs=1]", "pid": 1, "tid": 1, "ts": 0, "dur": (self.ask() - self.began) / 1000}
        path.write_text(json.dumps({"baseTimeNanoseconds": self.began, "traceEvents": [event]}))
        return Stopped([Artifact(f"{window.stem}/{path.name}", "trace", path.stat().st_size, 1)])

    async def abort(self): pass

    def ask(self):
        self.peer.connection.sendall(b"?")
        return int.from_bytes(self.peer.connection.recv(16, socket.MSG_WAITALL), "little")

    async def clock(self):
        async def asked():
            return (self.ask(),)
        return await ping_pong(self.host, asked)


class PeerKind:
    def recognises(self, target):
        return isinstance(target, Peer)

    def connect(self, target, **options):
        return PeerDriver(target)


def tell_the_time(connection):
    while connection.recv(1):
        connection.sendall(time.time_ns().to_bytes(16, "little"))


def exchange(connection):
    for number in range(20):
        if rank == 0:
            with stepprof.region("send", message=number):
                connection.sendall(b"a")
            connection.recv(1)
            with stepprof.region("received answer", message=number):
                stepprof.mark("answer", message=number)
        else:
            connection.recv(1)
            with stepprof.region("received", message=number):
                stepprof.mark("message", message=number)
            with stepprof.region("send answer", message=number):
                connection.sendall(b"b")


def main():
    if rank == 1:
        listener = socket.create_server(("127.0.0.1", port))
        print(listener.getsockname()[1], flush=True)
        messages, clock = listener.accept()[0], listener.accept()[0]
        threading.Thread(target=tell_the_time, args=(clock,), daemon=True).start()
    else:
        messages = socket.create_connection(("127.0.0.1", port))
        clock = socket.create_connection(("127.0.0.1", port))
    for each in (messages, clock):
        each.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    config = {"output_dir": "runs", "steps": "2", "ranks": "all", "backend": backend}
    stepprof.init(config, rank=rank, world_size=2, run_id="r")
    if rank == 0:
        stepprof.attach(Peer(clock), role="rollout")
    for step in (1, 2):
        with stepprof.profile_step(step, role="rollout"):
            exchange(messages)
    stepprof.shutdown()
    if rank == 1:
        messages.recv(1)  # it tells the time until the other one has ended


if __name__ == "__main__":
    sys.modules["peer"] = sys.modules["__main__"]
    main()
'''


def install(folder: Path) -> dict[str, str]:
    """Write the program of both processes and return their environment."""
    (folder / "peer.py").write_text(PEER)
    info = folder / "peer-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: peer\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[stepprof.engines]\npeer = peer:PeerKind\n")
    for rank in (0, 1):
        (folder / f"node-{rank}").mkdir()
    return {name: value for name, value in os.environ.items() if not name.startswith("STEPPROF")}


def record_traces(folder: Path, server: Server) -> None:
    """Let both processes record step 2 with torch, each into its own folder, as on nodes without a
    shared disk.
    """
    environment = install(folder)

    def start(rank: int, port: str) -> Running:
        arguments = (str(rank), port, "0", "torch")
        out, err = folder / f"{rank}.out", folder / f"{rank}.err"
        node = folder / f"node-{rank}"
        return server.start(
            folder / "peer.py", *arguments, cwd=node, env=environment, out=out, err=err, leave=False
        )

    second = start(1, "0").wait_for("\n")
    first = start(0, second.stdout.strip())
    for each in (first, second):
        each.wait().check()


def record(folder: Path, ahead_ns: int = 0, other: dict[str, str] | None = None) -> None:
    """Let both processes record step 2 without traces. `other` is added to the environment of node-1."""
    environment = install(folder)
    processes = []
    port = 0
    for rank in (1, 0):
        node = folder / f"node-{rank}"
        command = [sys.executable, str(folder / "peer.py"), str(rank), str(port), str(ahead_ns), "null"]
        env = environment | (other or {}) if rank == 1 else environment
        process = subprocess.Popen(
            command, cwd=node, env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
        processes.append(process)
        if rank == 1:
            port = int(process.stdout.readline())
    for process in processes:
        _, errors = process.communicate(timeout=200)
        assert process.returncode == 0, errors


def shift_host(folder: Path, ahead_ns: int) -> None:
    """Change the files of node-1, and its measured offset, as if its clock were `ahead_ns` ahead."""
    run = folder / "node-1" / "runs" / "r"
    for file in run.glob("step-*/*/*.trace.json.gz"):
        text = re.sub(
            rb'("baseTimeNanoseconds":\s*)(\d+)',
            lambda match: match[1] + b"%d" % (int(match[2]) + ahead_ns),
            gzip.decompress(file.read_bytes()),
        )
        file.write_bytes(gzip.compress(text))
    for file in (run / "spans").iterdir():
        lines = [json.loads(line) for line in file.read_text().splitlines()]
        shifted = [{**line, "start": line["start"] + ahead_ns} if "start" in line else line for line in lines]
        file.write_text("".join(json.dumps(line) + "\n" for line in shifted))
    for file in (folder / "node-0" / "runs" / "r").glob("step-*/manifest/*.json"):
        content = json.loads(file.read_text())
        for clock in content["clocks"]:
            clock["offset_ns"] += ahead_ns if clock["host"] == "node-1" else 0
        file.write_text(json.dumps(content))
    for file in (folder / "node-0" / "runs" / "r").glob("step-*/rollout/replica-0/*.json"):
        content = json.loads(file.read_text())
        file.write_text(
            json.dumps({**content, "baseTimeNanoseconds": content["baseTimeNanoseconds"] + ahead_ns})
        )


def loaded(folder):
    """Return the found files and the sources by (kind, rank)."""
    found = find([folder / "node-0" / "runs" / "r", folder / "node-1" / "runs" / "r"], output_dir=folder)
    sources = [load(each, args=True) for each in found.inputs]
    return found, {(source.origin.kind, source.origin.rank): source for source in sources}


def moments(source, name, category, edge):
    """Return the times at which the slices of that name, one for each message, began or ended."""
    slices = source.slices
    which = [
        number
        for number in range(len(slices))
        if source.names[slices.name[number]] == name
        and source.categories[slices.category[number]] in category
        and source.tracks[slices.track[number]].kind in ("thread", "async")
    ]
    times = slices.start + (slices.duration if edge == "end" else 0)
    return sorted(int(times[number]) for number in which)


def check(sender, receiver, sent, received, category, error_ns):
    """Check that each message arrives after it was sent, within the error of the clocks."""
    begins = moments(sender, sent, category, "start")
    ends = moments(receiver, received, category, "end")
    assert len(begins) == len(ends) == MESSAGES
    for begin, end in zip(begins, ends, strict=True):
        assert end - begin >= -error_ns


def check_both_ways(sources, kind, category, error_ns):
    first, second = sources[kind, 0], sources[kind, 1]
    check(first, second, "send", "received", category, error_ns)
    check(second, first, "send answer", "received answer", category, error_ns)


@pytest.mark.parametrize("ahead_ns", [0, 3_700_000_000, -5_200_000_000])
def test_spans(tmp_path, ahead_ns):
    """The clock of one host is seconds off while both processes record. stepprof compares the
    clocks and places all sources on one.
    """
    record(tmp_path, ahead_ns)
    found, sources = loaded(tmp_path)
    assert found.findings == []
    alignment = sources["spans", 1].alignment
    assert alignment.method == "ping-pong"
    assert sources["spans", 0].alignment.method == "reference"
    assert abs(alignment.offset_ns - ahead_ns) <= alignment.error_ns
    assert worst_error(each.alignment for each in found.inputs) == alignment.error_ns
    check_both_ways(sources, "spans", {"region"}, alignment.error_ns)
    # the engine's trace, which has only the other host's clock, is placed between the messages
    engine = sources["engine", 0]
    assert engine.alignment == alignment
    begin, end = int(engine.slices.start[0]), int(engine.slices.start[0] + engine.slices.duration[0])
    sent = moments(sources["spans", 0], "send", {"region"}, "start")
    answered = moments(sources["spans", 0], "received answer", {"region"}, "end")
    assert begin - alignment.error_ns <= sent[0]
    assert answered[-1] <= end + alignment.error_ns


def test_without_a_comparison_times_stay_and_a_finding_says_so(tmp_path):
    """If the clocks were not compared, the times of the other host stay unchanged, and a finding says so."""
    record(tmp_path, 3_700_000_000)
    for file in (tmp_path / "node-0" / "runs" / "r").glob("step-*/manifest/*.json"):
        content = json.loads(file.read_text())
        content["clocks"] = [clock for clock in content["clocks"] if clock["host"] == "node-0"]
        file.write_text(json.dumps(content))
    found, sources = loaded(tmp_path)
    assert worst_error(each.alignment for each in found.inputs) is None
    assert {source.alignment.method for source in sources.values()} == {"reference", "unmeasured"}
    for source in sources.values():
        told = never_compared(source.origin, source.alignment)
        assert bool(told) == (source.alignment.method == "unmeasured") == (source.alignment.island != "")
    begins = moments(sources["spans", 0], "send", {"region"}, "start")
    ends = moments(sources["spans", 1], "received", {"region"}, "end")
    assert min(end - begin for begin, end in zip(begins, ends, strict=True)) > 3_000_000_000


@pytest.fixture(scope="module")
def recorded(tmp_path_factory, torch_server):
    """Return the folder of a recording of both processes with torch's profiler, on one clock."""
    folder = tmp_path_factory.mktemp("recorded")
    record_traces(folder, torch_server)
    return folder


@pytest.mark.torch
@pytest.mark.parametrize("ahead_ns", [0, 3_700_000_000, -5_200_000_000])
def test_traces(recorded, tmp_path, ahead_ns):
    """The traces of both processes, on Kineto's clock, and their spans are on one timeline."""
    folder = tmp_path / "copy"
    shutil.copytree(recorded, folder)
    shift_host(folder, ahead_ns)
    found, sources = loaded(folder)
    assert found.findings == []
    error_ns = worst_error(each.alignment for each in found.inputs)
    assert abs(sources["rank", 1].alignment.offset_ns - ahead_ns) <= error_ns
    check_both_ways(sources, "rank", {"user_annotation"}, error_ns)
    check_both_ways(sources, "spans", {"region"}, error_ns)
