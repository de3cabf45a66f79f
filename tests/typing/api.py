"""Check the types of the public API as a user's own strict type checker sees them. This file is
checked and never run.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Callable, Coroutine, Generator, Iterator
from pathlib import Path
from typing import Any

from typing_extensions import assert_type

import stepprof

# -- region


@stepprof.region
def bare(a: int, *, b: str = "x") -> list[str]:
    return [b] * a


@stepprof.region("named", batch=64, rate=0.5, shape=[1, 2])
def named(a: int) -> float:
    return a / 2


@stepprof.region
async def coroutine(a: int) -> int:
    return a


@stepprof.region("generator")
def generator(n: int) -> Iterator[int]:
    yield from range(n)


@stepprof.region("generator")
def full_generator(n: int) -> Generator[int, str, bool]:
    yield n
    return True


@stepprof.region
async def async_generator(n: int) -> AsyncIterator[int]:
    yield n


@stepprof.region
async def full_async_generator(n: int) -> AsyncGenerator[int, str]:
    yield n


class Worker:
    @stepprof.region
    def method(self, a: int) -> str:
        return str(a)

    @stepprof.region("async")
    async def coroutine(self, a: int) -> str:
        return str(a)

    @staticmethod
    @stepprof.region
    def static_above(a: int) -> str:
        return str(a)

    @stepprof.region
    @staticmethod
    def static_below(a: int) -> str:
        return str(a)

    @classmethod
    @stepprof.region("named")
    def class_above(cls, a: int) -> str:
        return str(a)

    @stepprof.region("named")
    @classmethod
    def class_below(cls, a: int) -> str:
        return str(a)

    @property
    @stepprof.region
    def value(self) -> int:
        return 1


assert_type(bare(1, b="y"), list[str])
assert_type(named(1), float)
assert_type(generator(1), Iterator[int])
assert_type(full_generator(1), Generator[int, str, bool])
assert_type(async_generator(1), AsyncIterator[int])
assert_type(full_async_generator(1), AsyncGenerator[int, str])
assert_type(Worker().method(1), str)
assert_type(Worker.static_above(1), str)
assert_type(Worker.static_below(1), str)
assert_type(Worker.class_above(1), str)
assert_type(Worker.class_below(1), str)
assert_type(Worker().value, int)

bare("1")  # type: ignore[arg-type]
bare(1, c=2)  # type: ignore[call-arg]
named()  # type: ignore[call-arg]
stepprof.region(3)  # type: ignore[call-overload]
stepprof.region()  # type: ignore[call-overload]

callback: Callable[[int], float] = named


def block() -> int:
    with stepprof.region("reward", batch=64), stepprof.bind(sample="a", step=3):
        return 1  # a block never suppresses an exception: no return is missing below


async def async_block() -> int:
    async with stepprof.region("tool_call"), stepprof.bind(sample=1), stepprof.profile_step(3):
        return 1


stepprof.mark_request({"meta_info": {}})
stepprof.mark_request()  # type: ignore[call-arg]

# -- profile_step


@stepprof.profile_step(step="global_step", role="actor")
def update(batch: list[int], global_step: int) -> dict[str, float]:
    return {"loss": float(global_step)}


@stepprof.profile_step(step=lambda trainer, batch: trainer.global_step, role="ref", version="v1")
async def reference(trainer: Any, batch: list[int]) -> int:
    return len(batch)


assert_type(update([1], global_step=2), dict[str, float])
update([1])  # type: ignore[call-arg]


def windows() -> int:
    window = stepprof.profile_step(2, role="rollout", version=7).start()
    window.stop()
    window.stop(error=ValueError())
    stepprof.profile_step(2, "rollout").start().stop(None)
    stepprof.profile_step(role=3)  # type: ignore[arg-type]
    with stepprof.profile_step(step=2):
        return 1


async def awaited() -> None:
    assert_type(await coroutine(1), int)
    assert_type(await Worker().coroutine(1), str)
    assert_type(await reference(None, [1]), int)
    started: Coroutine[Any, Any, int] = coroutine(1)
    await started


async def async_windows() -> None:
    window = await stepprof.profile_step(2).astart()
    await window.astop(error=None)


# -- points and the session

stepprof.mark("weights_synced", version=3)
stepprof.counter("queue_length", 17)
stepprof.counter("queue_length", "17")  # type: ignore[arg-type]
stepprof.tick()
assert_type(str(stepprof.state()), str)
assert_type(stepprof.state().step, int | None)
assert_type(stepprof.state().recorded_steps, tuple[int, ...])
assert_type(stepprof.init(), stepprof.Session)
stepprof.init("stepprof.toml", rank=0, world_size=8, run_id="job")
stepprof.init(Path("stepprof.toml"))
stepprof.init({"steps": "2"})
stepprof.init(stepprof.Config(steps="2", ranks="0"))
stepprof.shutdown()
stepprof.shutdown(timeout=5.0)
error: type[Exception] = stepprof.errors.ConfigError
