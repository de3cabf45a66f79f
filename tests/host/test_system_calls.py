"""The functions of the system, whatever a tool has put into `os` and `signal`."""

from __future__ import annotations

import os
import signal

from stepprof.host.system_calls import signals, system


def test_replaced_functions_are_not_used(monkeypatch) -> None:
    """They are those of the interpreter, also after a tool has replaced the public ones."""
    before = signal.getsignal(signal.SIGTERM)
    monkeypatch.setattr(os, "getpid", lambda: -1)
    monkeypatch.setattr(signal, "getsignal", lambda _: None)
    assert system.getpid() > 0
    assert signals.getsignal(signals.SIGTERM) == before
