"""Run the loop of `stepprof demo` under torchrun, and stop all its processes when this call ends.

torchrun runs in its own process group and gives each rank a session of its own. A signal to the
group therefore reaches only torchrun, which forwards SIGTERM and kills the remaining ranks after 30
seconds. So the ranks are stopped through torchrun. They are killed directly only if torchrun does
not respond.
"""

from __future__ import annotations

import itertools
import os
import re
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from types import FrameType
from typing import IO

from stepprof.cli.output import print_lines
from stepprof.host.own_python import own_python
from stepprof.redaction.messages import quoted

NOISE = re.compile(r"^(USDT:.*)?$")
"""Lines that libraries write to stderr for their own developers: Kineto's probe lines.

Kineto prints them at each start and stop of a profiler. It writes line ends separately, so the
lines of two ranks can leave an empty one.
"""
LONGEST_LINE = 1 << 16
"""Number of characters to read at once; a longer line is split."""
STOP_SECONDS = 40.0
_TORCHRUN = "import runpy; runpy.run_module('torch.distributed.run', run_name='__main__', alter_sys=True)"
_ENDING = (signal.SIGTERM, signal.SIGHUP)


def launch(script: Sequence[str], environ: Mapping[str, str], ranks: int) -> int:
    """Run a script on the CPU in `ranks` processes that find each other.

    Args:
        script: the path of the script, and its arguments.
        environ: its environment; settings for quiet, offline libraries with few threads are added.
        ranks: the number of processes.

    Returns:
        the exit status of torchrun: 0 when all ranks ended well.
    """
    path, *arguments = script
    script = [str(Path(path).absolute()), *arguments]
    torchrun = ["--standalone", "--local-addr", "127.0.0.1", "--nproc-per-node", str(ranks)]
    with TemporaryDirectory(
        prefix="stepprof-demo-"
    ) as logs:  # torchrun never removes the folder that it makes itself
        command = own_python(_TORCHRUN, *torchrun, "--log-dir", logs, *script)
        return _run(command, _environment(environ))


def _run(command: Sequence[str], environ: Mapping[str, str]) -> int:
    process = subprocess.Popen(  # noqa: S603 - torchrun of this Python, as a list, without a shell
        command,
        env=environ,
        stdin=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        errors="replace",
        start_new_session=True,
    )
    stopping = threading.Event()
    relay = threading.Thread(
        target=_relay, args=(process.stderr, stopping), name="stepprof-demo-stderr", daemon=True
    )
    relay.start()
    try:
        with _ending_signals_raise():
            return process.wait()
    finally:
        if process.poll() is None:
            stopping.set()
            _stop(process)
        relay.join(timeout=5)


def _environment(environ: Mapping[str, str]) -> dict[str, str]:
    defaults = {"OMP_NUM_THREADS": "1", "TRANSFORMERS_VERBOSITY": "error", "TOKENIZERS_PARALLELISM": "false"}
    if any(name == "lo" for _, name in socket.if_nameindex()):
        defaults["GLOO_SOCKET_IFNAME"] = "lo"  # else gloo resolves the host's name, which may have no address
    fixed = {
        "HF_HUB_OFFLINE": "1",
        "CUDA_VISIBLE_DEVICES": "",  # the loop runs on the CPU; the profiler need not initialise a device
    }
    return {**defaults, **environ, **fixed}


def _relay(stream: IO[str] | None, stopping: threading.Event) -> None:
    """Forward the ranks' stderr, made safe for a terminal.

    torchrun's traceback at a stop is omitted: it fills a screen.
    """
    while stream is not None and (line := stream.readline(LONGEST_LINE)):
        if not (NOISE.match(line) or stopping.is_set()):
            print_lines(quoted(line.rstrip("\n")), file=sys.stderr)


@contextmanager
def _ending_signals_raise() -> Iterator[None]:
    """Turn signals that would end this process into SystemExit, so that it can stop its children."""

    def end(number: int, frame: FrameType | None) -> None:
        raise SystemExit(128 + number)

    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {number: signal.signal(number, end) for number in _ENDING}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _stop(process: subprocess.Popen[str]) -> None:
    """Stop torchrun and its ranks, with time to write their recordings."""
    print_lines("stopping the ranks …", file=sys.stderr)
    is_main = threading.current_thread() is threading.main_thread()
    before = signal.signal(signal.SIGINT, signal.SIG_IGN) if is_main else None
    try:
        process.terminate()
        process.wait(STOP_SECONDS)
    except subprocess.TimeoutExpired:
        for pid in [*_descendants(process.pid), process.pid]:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        process.wait()
    finally:
        if is_main:
            signal.signal(signal.SIGINT, before)


def _descendants(pid: int) -> list[int]:
    """Return all descendants of `pid`; none on systems without /proc."""
    children: list[int] = []
    for file in Path("/proc", str(pid), "task").glob("*/children"):
        with suppress(OSError):
            children += map(int, file.read_text().split())
    return [*itertools.chain.from_iterable(map(_descendants, children)), *children]
