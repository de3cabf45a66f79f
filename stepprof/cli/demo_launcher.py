"""How `stepprof demo` runs its loop: torchrun in a process group of its own, which is gone when this call is.

torchrun gives each rank a session of its own, so that a signal to the group reaches torchrun alone; it passes SIGTERM on to the ranks and kills after 30 seconds what is left of them. Therefore the
way to end the ranks is to ask torchrun, and to kill only when torchrun itself does not answer.
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

from stepprof.cli.output import say
from stepprof.redaction import quoted

__all__ = ["launch"]

NOISE = re.compile(r"^(USDT:.*)?$")
"""What libraries write to stderr for their own developers: Kineto's probe lines, at each start and stop of a profiler.

Kineto ends its lines in a write of their own, so that those of two ranks can leave an empty one.
"""
LONGEST_LINE = 1 << 16
"""Characters that are read at once; the rest of a longer line is the next one."""
STOP_SECONDS = 40.0
_ENDING = (signal.SIGTERM, signal.SIGHUP)


def launch(script: Sequence[str], environ: Mapping[str, str], ranks: int) -> int:
    """Run a script on this machine's processor in `ranks` processes that find each other.

    Args:
        script: the path of the script, and its arguments.
        environ: its environment; what keeps libraries silent, offline and on few threads is added.
        ranks: how many processes.

    Returns:
        the exit status of torchrun: 0 when all ranks ended well.
    """
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--local-addr", "127.0.0.1"]
    command += ["--nproc-per-node", str(ranks)]
    with TemporaryDirectory(
        prefix="stepprof-demo-"
    ) as logs:  # torchrun never removes the one it makes for itself
        return _run([*command, "--log-dir", logs, *script], _environment(environ))


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
        defaults["GLOO_SOCKET_IFNAME"] = (
            "lo"  # else gloo asks for the address of the host's name, which may have none
        )
    fixed = {
        "HF_HUB_OFFLINE": "1",
        "CUDA_VISIBLE_DEVICES": "",  # the loop computes on the processor; the profiler need not wake up a device
    }
    return {**defaults, **environ, **fixed}


def _relay(stream: IO[str] | None, stopping: threading.Event) -> None:
    """Pass on what the ranks write to stderr, fit for a terminal; not torchrun's traceback when it is stopped, which fills a screen."""
    while stream is not None and (line := stream.readline(LONGEST_LINE)):
        if not (NOISE.match(line) or stopping.is_set()):
            say(quoted(line.rstrip("\n")), file=sys.stderr)


@contextmanager
def _ending_signals_raise() -> Iterator[None]:
    """Within, a signal that would end this process at once ends it by SystemExit, so that it can stop its children."""

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
    """Ends torchrun and its ranks, which may take the time to write what they have recorded."""
    say("stopping the ranks …", file=sys.stderr)
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
    """Every process that `pid` has started, and those that they have; none where there is no /proc."""
    children: list[int] = []
    for file in Path("/proc", str(pid), "task").glob("*/children"):
        with suppress(OSError):
            children += map(int, file.read_text().split())
    return [*itertools.chain.from_iterable(map(_descendants, children)), *children]
