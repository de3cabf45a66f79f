"""Test where log lines go, with the real structlog."""

from __future__ import annotations

import asyncio
import logging
import warnings
from collections.abc import Iterator
from typing import Any

import pytest
import structlog

from stepprof.log import logger
from stepprof.log.logger import sentence


@pytest.fixture(autouse=True)
def restored() -> Iterator[None]:
    """Restore structlog after the test."""
    yield
    structlog.reset_defaults()


class Lacking(structlog.BoundLoggerBase):
    """A wrapper with a method of its own, and without `info` and `warning`, as structlog's for Twisted."""

    def msg(self, event: str, **fields: object) -> Any:
        return self._proxy_to_logger("info", event, **fields)


class Asynchronous(structlog.BoundLoggerBase):
    """A wrapper whose methods are coroutine functions, without a synchronous logger."""

    async def warning(self, event: str, **fields: object) -> Any:
        return self._proxy_to_logger("warning", event, **fields)


def refuse(*_: object) -> Any:
    raise ValueError("a processor of the job")


def configure(wrapper: Any, *processors: Any) -> None:
    structlog.configure(
        wrapper_class=wrapper,
        logger_factory=structlog.stdlib.LoggerFactory(),
        processors=[*processors, structlog.processors.JSONRenderer()],
    )


def write() -> None:
    logger.warning("rank.nonexistent", reason="there is no rank 8")


class TestConfigured:
    def test_an_asynchronous_wrapper(self, caplog: pytest.LogCaptureFixture) -> None:
        """With structlog's own asynchronous wrapper the line is written at once, by the job's processors. Outside of an
        event loop that wrapper cannot even be made, and the standard logger writes the line.
        """
        configure(structlog.stdlib.AsyncBoundLogger)

        async def write_in_a_loop() -> None:
            write()

        with caplog.at_level(logging.INFO), warnings.catch_warnings():
            warnings.simplefilter("error")
            asyncio.run(write_in_a_loop())
            write()
        assert caplog.messages == [
            '{"reason": "there is no rank 8", "event": "rank.nonexistent"}',
            "event=rank.nonexistent reason=there is no rank 8",
        ]

    @pytest.mark.parametrize(
        ("wrapper", "processors"),
        [(Lacking, ()), (Asynchronous, ()), (structlog.stdlib.BoundLogger, (refuse,))],
    )
    def test_a_wrapper_that_cannot_write(
        self, caplog: pytest.LogCaptureFixture, wrapper: Any, processors: tuple[Any, ...]
    ) -> None:
        """If the wrapper has no such method, is asynchronous, or raises, the standard logger writes the line."""
        configure(wrapper, *processors)
        with caplog.at_level(logging.INFO), warnings.catch_warnings():
            warnings.simplefilter("error")
            write()
        assert [(record.name, record.levelname) for record in caplog.records] == [("stepprof", "WARNING")]
        assert "there is no rank 8" in caplog.text

    def test_a_level_that_the_job_filters(self, caplog: pytest.LogCaptureFixture) -> None:
        """A line below the level of the job's wrapper is written nowhere."""
        configure(structlog.make_filtering_bound_logger(logging.ERROR))
        with caplog.at_level(logging.INFO):
            write()
        assert caplog.records == []


class TestSentence:
    def test_an_event_of_a_plug_in(self) -> None:
        """An event that stepprof does not know is written with its name."""
        line = {"event": "plugin.ready", "reason": "the card is warm", "cards": 2}
        assert sentence(line) == "stepprof: plugin.ready: the card is warm (cards=2)"
