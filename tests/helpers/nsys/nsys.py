"""Stand in for `nsys` on PATH. It starts the command with a tool for NVTX and a libcudart, and
writes a report for each range. $NSYS_STAND_IN says when and how:

`now`, `late SECONDS`, `never`, `empty`, `growing`, `pausing` (for two seconds in the middle),
`foreign` (named after another process), `unfinished` (a .qdstrm). The tests show how stepprof
starts nsys and waits for it; they do not test nsys.
"""

import json
import os
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path

HERE = Path(__file__).parent
OLD = "--capture-range-end= Possible values are none, stop, stop-shutdown, repeat[:N] or repeat-shutdown:N\n"
NEW = (
    "--capture-range-end= Possible values are none, stop, stop-shutdown, repeat[:N][:mode] or repeat-shutdown:N[:mode]\n"
    "--discard-environment= Possible values are true or false\n"
)


def main(arguments):
    if arguments[:1] != ["profile"]:
        print("NVIDIA Nsight Systems version 0.stand-in")
        return 0
    if arguments[1:] == ["--help"]:
        print(OLD if os.environ.get("NSYS_STAND_IN_IS_OLD") else NEW)
        return 0
    options, command = parsed(arguments[1:])
    note({"options": options, "command": command})
    output = Path(options.get("output") or options.get("o"))
    if not output.parent.is_dir():
        print(f"{output.parent} does not exist", file=sys.stderr)
        return 1
    log = output.parent / f".ranges-{os.getpid()}"
    environment = {
        **os.environ,
        "NSYS_PROFILING_SESSION_ID": str(os.getpid()),
        "NVTX_INJECTION64_PATH": str(HERE / "injection.so"),
        "LD_PRELOAD": str(HERE / "libcudart.so"),
        "CUDART_LOG": str(log),
    }
    environment.setdefault("NVTX_LOG", os.devnull)
    environment.update(part.split("=", 1) for part in options.get("env-var", "").split(",") if part)
    child = subprocess.Popen(command, env=environment)
    session = Session(options, str(output), child.pid)
    while child.poll() is None:
        session.look(log)
        time.sleep(0.01)
    session.look(log)
    session.close()
    log.unlink(missing_ok=True)
    return child.returncode


def parsed(arguments):
    options = {}
    while arguments and arguments[0].startswith("-"):
        name = arguments.pop(0)
        if name.startswith("--"):
            key, _, value = name[2:].partition("=")
        else:
            key, value = name[1:], arguments.pop(0)
        options[key] = value
    return options, arguments


class Session:
    """One session of the tool: its ranges, and its pending reports."""

    def __init__(self, options, output, pid):
        kind, *rest = options.get("capture-range-end", "stop-shutdown").split(":")
        self.most = int(rest[0]) if rest and rest[0].isdigit() else 1 if kind == "stop-shutdown" else 1 << 30
        self.deferred = "async" not in rest
        self.listens = options.get("capture-range") == "cudaProfilerApi"
        self.manner, _, seconds = os.environ.get("NSYS_STAND_IN", "now").partition(" ")
        self.seconds = float(seconds or 0)
        self.name = output.replace("%h", socket.gethostname())
        self.pid = pid
        self.seen = 0
        self.owed = []
        self.writing = []

    def look(self, log):
        calls = log.read_text().split()[::2] if log.exists() and self.listens else []
        while self.seen < min(ranges_in(calls), self.most):
            self.seen += 1
            self.owed.append(self.seen)
        if not self.deferred or self.seen == self.most:
            self.write()

    def close(self):
        if self.manner != "never":
            self.write()
        for thread in self.writing:
            thread.join()

    def write(self):
        for number in self.owed:
            self.writing.append(threading.Thread(target=self.report, args=(number,)))
            self.writing[-1].start()
        self.owed = []

    def report(self, number):
        time.sleep(self.seconds)
        pid = self.pid + 1 if self.manner == "foreign" else self.pid
        suffix = ".qdstrm" if self.manner == "unfinished" else ".nsys-rep"
        numbered = "" if self.most == 1 else f".{number}"  # as the real nsys does
        path = Path(f"{self.name.replace('%p', str(pid))}{numbered}{suffix}")
        if self.manner == "never":
            return
        content = json.dumps({"range": number, "pid": self.pid}).encode()
        with path.open("wb") as file:
            if self.manner == "pausing":
                file.write(b" " * 100)
                file.flush()
                time.sleep(2)
            for _ in range(5 if self.manner == "growing" else 0):
                file.write(b" " * 100)
                file.flush()
                time.sleep(0.15)
            if self.manner != "empty":
                file.write(content)


def ranges_in(calls):
    """Return the number of ended ranges. A start inside a range has no effect, nor has a stop
    outside of one.
    """
    ended = running = 0
    for call in calls:
        if call == "cudaProfilerStart":
            running = 1
        elif running:
            ended, running = ended + 1, 0
    return ended


def note(entry):
    path = os.environ.get("NSYS_STAND_IN_LOG")
    if path:
        with Path(path).open("a") as file:
            file.write(json.dumps(entry) + "\n")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
