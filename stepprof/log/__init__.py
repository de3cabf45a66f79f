"""The log: one logger, and the table of everything that it writes."""

from stepprof.log.logger import bind_session, bound, logger

__all__ = ["bind_session", "bound", "logger"]
