"""Run a job of two ranks with gloo, as torchrun starts it on two nodes. The nodes share no disk,
have different host names and boot ids, and their clocks were never compared.
"""

from __future__ import annotations

import gzip
import json
import os
import re
import socket
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from warm import Server

JOB = """
import select, socket, sys, time

rank, port, host = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3]
# libfaketime cannot sleep until a moment of the monotonic clock, as Python does since 3.11
time.sleep = lambda seconds: select.select([], [], [], seconds) and None

import torch
import torch.distributed as dist

import stepprof
import stepprof.host.process_identity

boot = stepprof.host.process_identity.boot_id()
if not host:
    stepprof.host.process_identity.boot_id = lambda: f"{boot}-{rank}"
dist.init_process_group("gloo", init_method=f"tcp://127.0.0.1:{port}", rank=rank, world_size=2)
socket.gethostname = lambda: host or f"node-{rank}"

config = {"output_dir": f"node-{rank}", "steps": "2", "ranks": "all", "backend": "torch"}
stepprof.init(config, run_id="r", rank=rank, world_size=2)
ones = torch.ones(100)
for step in (1, 2):
    with stepprof.profile_step(step, role="actor"):
        for number in range(5):
            with stepprof.region("work"):
                time.sleep(0.03 * (1 + (rank + number) % 3))
            dist.all_reduce(ones)
        dist.broadcast(ones, 0)
        dist.barrier()
        dist.all_gather([torch.empty(100), torch.empty(100)], ones)
stepprof.shutdown()
dist.destroy_process_group()
"""


def record(
    folder: Path, other: dict[str, str] | None = None, server: Server | None = None, host: str = ""
) -> list[Path]:
    """Record step 2 on both ranks, each into its own folder, and return the run directories.

    Args:
        folder: where the folders of both ranks are created.
        other: additional variables of node-1.
        server: starts the ranks with torch loaded; it ignores `other`.
        host: the name of the host that both ranks share.
    """
    (folder / "job.py").write_text(JOB)
    environment = {name: value for name, value in os.environ.items() if not name.startswith("STEPPROF")}
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    if server is not None:
        ranks = [
            server.start(
                folder / "job.py",
                *(str(rank), str(port), host),
                cwd=folder,
                env=environment,
                out=folder / f"{rank}.out",
                err=folder / f"{rank}.err",
                leave=True,
            )
            for rank in (0, 1)
        ]
        for each in ranks:
            each.wait(120).check()
        return [folder / f"node-{rank}" / "r" for rank in (0, 1)]
    processes = [
        subprocess.Popen(
            [sys.executable, "job.py", str(rank), str(port), host],
            cwd=folder,
            env=environment | (other or {} if rank else {}),
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for rank in (0, 1)
    ]
    for process in processes:
        output, _ = process.communicate(timeout=120)
        assert process.returncode == 0, output
    return [folder / f"node-{rank}" / "r" for rank in (0, 1)]


def shift(run: Path, ahead_ns: int) -> None:
    """Change the files of a node to those that it would have written with a clock that is ahead by
    this amount.
    """
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
    for file in run.glob("step-*/manifest/*.json"):
        content = json.loads(file.read_text())
        for window in content["windows"]:
            for key, value in window.items():
                if key.endswith("_unix_ns") and value is not None:
                    window[key] = value + ahead_ns
        file.write_text(json.dumps(content))
