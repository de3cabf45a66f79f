"""Process sources as tasks of a Ray cluster, each on the node that has the file: only the results
are transferred.

Only this module knows how to choose a node: it must see the file, and the host that recorded it is
preferred. It also knows that such a task requests no processor, since training occupies all of
those.
"""

from __future__ import annotations

import contextlib
import logging
import os
import socket
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, TypeVar

from stepprof.analysis.timeline.find import Gathered, Input, gather
from stepprof.analysis.timeline.workers import Failed, call
from stepprof.errors import ConfigError
from stepprof.run.runs import is_run, read_run, steps
from stepprof.run.same_run import Evidence, evidence_of, is_part

Result = TypeVar("Result")
LOOK_SECONDS = 60.0
"""The time limit for asking a node which files it sees."""
CONNECT_SECONDS = 10.0
CONCURRENT_TASKS = 2
"""Concurrent tasks on one node. Each needs the memory of one source, in addition to training on
that node.
"""


class Cluster:
    """A Ray cluster that runs the work of `each_in_worker` instead of processes of this machine.

    Args:
        address: as `ray.init` takes it; "auto": $RAY_ADDRESS, else the cluster of this machine. A program that is connected already stays connected.

    Raises:
        ConfigError: Ray is not installed, or no cluster answers.
    """

    def __init__(self, address: str = "auto") -> None:
        try:
            import ray
            from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy
        except ImportError:
            raise ConfigError("--ray: Ray is not installed here: pip install ray") from None
        self._ray: Any = ray
        self._affinity: Any = NodeAffinitySchedulingStrategy
        self._ours = not ray.is_initialized()
        if self._ours:
            try:
                _require_listener(address)
                with _in_library():
                    ray.init(
                        address=address,
                        log_to_driver=False,
                        logging_level=logging.ERROR,
                        namespace="stepprof",
                    )
            except (OSError, OverflowError, RuntimeError, ValueError) as error:
                raise ConfigError(
                    f'--ray = "{address}": no cluster responds: {_first_line(error)}; pass "HOST:6379", or omit --ray'
                ) from error

    def __enter__(self) -> Cluster:
        return self

    def __exit__(self, *_: object) -> None:
        """Disconnect, unless the program was connected before."""
        if self._ours:
            self._ray.shutdown()

    def each(
        self,
        function: Callable[..., Any],
        tasks: Sequence[tuple[Any, ...]],
        *,
        sizes: Sequence[int],
        workers: int | None = None,
        progress: Callable[[int, int], None] | None = None,
        taken: Callable[[int, Any], Any] | None = None,
    ) -> list[Any]:
        """Call `function(*task)` for each task on a node that sees the files of its input, or here
        if no node does.

        Args:
            function: of a module that is installed on the nodes.
            tasks: the arguments of each call; the first is the `Input`.
            sizes: bytes of each; the largest start first.
            workers: concurrent tasks on a node.
            progress: called with (tasks done, all tasks) after each.
            taken: called with the index and the result of each task; returns the part to keep, so that not all results are in memory.

        Returns:
            The result of each call, in order; `Failed` if the task or its node died.
        """
        results: dict[int, Any] = {}

        def note(number: int, result: Any) -> None:
            results[number] = taken(number, result) if taken and not isinstance(result, Failed) else result
            if progress:
                progress(len(results), len(tasks))

        order = sorted(range(len(tasks)), key=lambda number: -sizes[number])
        nodes = self._places([tasks[number][0] for number in order], [sizes[number] for number in order])
        waiting: dict[str, deque[int]] = {}
        here = []
        for number, node in zip(order, nodes, strict=True):
            if node is None:
                here.append(number)
            else:
                waiting.setdefault(node, deque()).append(number)
        running: dict[Any, tuple[int, str]] = {}

        def submit(node: str) -> None:
            number = waiting[node].popleft()
            running[self._on(node, call).remote(function, tasks[number])] = (number, node)

        for node, queue in waiting.items():
            for _ in range(min(len(queue), workers or CONCURRENT_TASKS)):
                submit(node)
        for number in here:
            note(number, call(function, tasks[number]))
        while running:
            ready, _ = self._ray.wait(list(running), num_returns=1)
            number, node = running.pop(ready[0])
            if waiting[node]:
                submit(node)
            try:
                result = self._ray.get(ready[0])
            except self._ray.exceptions.RayError as error:
                result = Failed(
                    f"its task on a node of the cluster failed: {_first_line(error)}", unread=True
                )
            note(number, result)
        return [results[number] for number in range(len(tasks))]

    def _on(self, node: str, function: Callable[..., Any]) -> Any:
        """Return the function as a task on that node only."""
        options = {"num_cpus": 0, "max_retries": 1, "scheduling_strategy": self._affinity(node, soft=False)}
        return self._ray.remote(function).options(**options)

    def elsewhere(self, runs: Sequence[Path], step: int | None) -> list[Gathered]:
        """Return the files of a step that each node has under the paths of a run; by default of the last step
        on any node.

        `stepprof.analysis.timeline.find.find` takes it.
        """
        paths = [str(run) for run in runs]
        run_ids = [(read_run(run).get("run_id"), evidence_of(run)) for run in runs]
        recorded = {number for run in runs for number in steps(run)}
        for numbers in self._everywhere(steps_there, paths, run_ids).values():
            recorded.update(numbers)
        if step is None:
            step = max(recorded, default=None)
        if step not in recorded:
            return []  # the caller knows which steps exist
        found = self._everywhere(gathered_there, paths, run_ids, step)
        return [part for _, parts in sorted(found.items()) for part in parts]

    def _everywhere(self, function: Callable[..., Any], *arguments: Any) -> dict[str, Any]:
        """Return the result of a function on each node, without nodes that do not answer in time or
        lack stepprof.
        """
        alive = [node["NodeID"] for node in self._ray.nodes() if node["Alive"]]
        asked = {self._on(node, function).remote(*arguments): node for node in alive}
        answered, _ = self._ray.wait(list(asked), num_returns=len(asked), timeout=LOOK_SECONDS)
        answers: dict[str, Any] = {}
        for each in answered:
            with contextlib.suppress(
                self._ray.exceptions.RayError
            ):  # the node has left the cluster: use the others
                answers[asked[each]] = self._ray.get(each)
        return answers

    def _places(self, inputs: Sequence[Input], sizes: Sequence[int]) -> list[str | None]:
        """Return a node for each input; None if no node sees it."""
        alive = [node for node in self._ray.nodes() if node["Alive"]]
        sees = {
            node: [size == wanted.bytes for size, wanted in zip(found, inputs, strict=True)]
            for node, found in self._everywhere(seen, [wanted.paths for wanted in inputs]).items()
        }
        hosts = {
            node["NodeID"]: {node.get("NodeManagerHostname"), node.get("NodeManagerAddress")}
            for node in alive
        }
        load = dict.fromkeys(sees, 0)
        places: list[str | None] = []
        for number, wanted in enumerate(inputs):
            candidates = [node for node, which in sees.items() if which[number]]
            home = [node for node in candidates if wanted.origin.host in hosts[node]]
            chosen = min(home or candidates, key=load.__getitem__, default=None)
            if chosen is not None:
                load[chosen] += sizes[number]
            places.append(chosen)
        return places


def steps_there(runs: Sequence[str], run_ids: Sequence[tuple[object, Evidence]]) -> list[int]:
    """Return the steps of a run's directories on this node. Runs on a node."""
    return [number for run in _same(runs, run_ids) for number in steps(run)]


def gathered_there(
    runs: Sequence[str], run_ids: Sequence[tuple[object, Evidence]], step: int
) -> list[Gathered]:
    """Return the files of a step in the run's directories on this node. Runs on a node."""
    return [gather(run, step) for run in _same(runs, run_ids) if step in steps(run)]


def _same(runs: Sequence[str], run_ids: Sequence[tuple[object, Evidence]]) -> list[Path]:
    """Return the directories that exist here and belong to the run: another job may have used the
    path on this node.
    """
    there = [(Path(run), *known) for run, known in zip(runs, run_ids, strict=True)]
    return [
        run
        for run, run_id, evidence in there
        if is_run(run) and read_run(run).get("run_id") == run_id and is_part(run, evidence)
    ]


def seen(paths: Sequence[Sequence[str]]) -> list[int | None]:
    """Return the total size of each input's files here; None if one is missing. Runs on a node."""
    sizes: list[int | None] = []
    for files in paths:
        try:
            sizes.append(sum(Path(file).stat().st_size for file in files))
        except OSError:
            sizes.append(None)
    return sizes


@contextlib.contextmanager
def _in_library() -> Iterator[None]:
    """Within the context, the current folder is that of the standard library.

    `ray.init` has all tasks search the current folder first for modules: it may be the folder of a
    stranger's run.
    """
    before = Path.cwd()
    os.chdir(Path(os.__file__).parent)
    try:
        yield
    finally:
        os.chdir(before)


def _require_listener(address: str) -> None:
    """Raise OSError where no process listens at HOST:PORT: Ray itself would try for minutes."""
    host, _, port = address.rpartition(":")
    if port.isdecimal() and "/" not in host:
        socket.create_connection((host, int(port)), timeout=CONNECT_SECONDS).close()


def _first_line(error: BaseException) -> str:
    """Return the error of a failed task: the last line of a traceback, or the first line of other
    text.
    """
    lines = str(error).strip().splitlines() or [type(error).__name__]
    return lines[-1] if "Traceback" in str(error) else lines[0]
