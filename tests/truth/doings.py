"""What threads do in worlds, as their samples show it: the frames are those of real jobs."""

from __future__ import annotations

from dataclasses import replace

from truth.worlds import COMPUTING, LOOP, PYTHON, WAITING, Doing, Frame

__all__ = [
    "AWAITING",
    "COLLECTING",
    "COMPILING",
    "COPYING",
    "GATHERING",
    "LOADING",
    "LOCKED",
    "PENDING",
    "PICKLING",
    "POOLING",
    "READING",
    "SCORING",
    "SLEEPING",
    "STARVED",
]


def _own(function: str) -> Frame:
    return (function, "train.py", 12, True)


def _library(function: str, file: str) -> Frame:
    return (function, file, 100, False)


_LOADER = (
    _library("fetch", "fetch.py"),
    _library("_next_data", "dataloader.py"),
    _library("__next__", "dataloader.py"),
)

LOADING = (
    Doing("time.sleep", (_own("__getitem__"), *_LOADER, LOOP)),
    Doing(None, (_own("__getitem__"), *_LOADER, LOOP), 1.0),
    Doing(
        "self._selector.poll",
        (_library("select", "selectors.py"), _library("wait", "connection.py"), _library("get", "queues.py"), *_LOADER[1:], LOOP),
    ),
)  # fmt: skip
"""A data loader that waits for a file, tokenizes, or waits for its worker."""
COPYING = (
    Doing("copy.deepcopy", (_own("snapshot"), LOOP), 1.0),
    Doing("copier", (_library("deepcopy", "copy.py"), _own("snapshot"), LOOP), 1.0),
    Doing("self.data.clone", (_library("__deepcopy__", "_tensor.py"), _library("deepcopy", "copy.py"), _own("snapshot"), LOOP), 1.0),
)  # fmt: skip
PICKLING = (
    Doing("pickle.dumps", (_own("pack"), LOOP), 1.0),
    Doing("Pickler.dump", (_library("dumps", "cloudpickle.py"), _own("send"), LOOP), 1.0),
)
READING = (
    Doing("file.read", (_own("read_log"), LOOP)),
    Doing("self._sock.recv_into", (_library("readinto", "socket.py"), _own("ask"), LOOP)),
    Doing(
        "selector.select", (_library("communicate", "subprocess.py"), _library("run", "subprocess.py"), LOOP)
    ),
)
LOCKED = (
    Doing("self.lock.acquire", (_own("update_shared"), LOOP)),
    Doing("self._semaphore.acquire", (_library("__enter__", "synchronize.py"), _own("update_shared"), LOOP)),
)
SLEEPING = (
    WAITING,
    Doing("queue.get", (_own("next_result"), LOOP)),
    Doing("self.not_empty.wait", (_library("get", "queue.py"), LOOP)),
)
SCORING = (
    Doing("time.sleep", (_own("score_one"), LOOP)),
    Doing("self._sock.recv_into", (_library("readinto", "socket.py"), _own("score_one"), LOOP)),
)
COMPILING = (
    Doing(
        "compiler_fn",
        (_library("call_user_compiler", "output_graph.py"), _own("forward"), LOOP),
        1.0,
        compiles=True,
    ),
)
ALLOCATING = (Doing("torch.empty", (_own("forward"), LOOP), 1.0, "cudaMalloc"),)
LAUNCHING = (replace(PYTHON, call=None), Doing("tensor.item", (_own("log"), LOOP), 1.0))
"""A host that launches no kernel."""
PENDING = (
    Doing("torch.mm", (_own("forward"), LOOP), 1.0, "cudaLaunchKernel", late=True),
    Doing("torch.cuda.synchronize", (_own("log"), LOOP), 1.0, "cudaLaunchKernel", late=True),
)
"""A host whose kernel waits for something else on the device."""
AWAITING = (
    Doing(
        "self._selector.poll",
        (_library("select", "selectors.py"), _library("_run_once", "base_events.py"), _library("run", "runners.py"), LOOP),
        awaits="judge",
    ),
)  # fmt: skip
"""An event loop in which a coroutine awaits a call."""
GATHERING = replace(AWAITING[0], awaits=None)
"""An event loop in which many coroutines wait."""
POOLING = tuple(
    Doing("waiter.acquire", (_library("wait", "threading.py"), _library("result", "_base.py"), _own("collect"), LOOP), others=other)
    for other in (Doing("requests.post", (_own("reward"),)), Doing(None, (_own("reward"),), 1.0))
)  # fmt: skip
"""A thread that waits for the result of a pool."""
COLLECTING = (replace(PYTHON, collects=True), replace(COMPUTING, collects=True, operator=None, kernel=False))
STARVED = (replace(COMPUTING, cpu=0.1, queued=0.9), replace(PYTHON, cpu=0.3, queued=0.7))
"""A thread that other processes keep from its CPU."""
