"""List the findings in the order in which they claim time: causes before their consequences."""

from __future__ import annotations

from stepprof.analysis.findings.blocked import blocked, compiling
from stepprof.analysis.findings.coroutines import (
    awaited_calls,
    held_coroutines,
    last_coroutines,
    serial_coroutines,
)
from stepprof.analysis.findings.device_time import copies, exposed_communication, host_bound
from stepprof.analysis.findings.facts import Facts
from stepprof.analysis.findings.half_batch import half_batch
from stepprof.analysis.findings.ledger import Ledger
from stepprof.analysis.findings.named_work import named_work
from stepprof.analysis.findings.overhead import (
    garbage,
    memory_pressure,
    preemption,
    recording,
    unfinished_engines,
)
from stepprof.analysis.findings.poll import poll
from stepprof.analysis.findings.rare import rare_work
from stepprof.analysis.findings.serial import serial
from stepprof.analysis.findings.straggler import straggler
from stepprof.analysis.findings.tail import long_tail
from stepprof.analysis.findings.threads import other_regions, other_threads
from stepprof.analysis.report.schema import Finding

LEAST = 0.01
"""Share of the step below which nothing is a finding."""


def findings_of(facts: Facts) -> list[Finding]:
    """Return the findings of a step, the largest gain first. They share no second with each other.

    Where the gain is not known, the seconds take its place: it is at most these.
    """
    ledger = Ledger(facts, LEAST * facts.seconds)
    recording(ledger)
    unfinished_engines(ledger)
    compiling(ledger)
    garbage(ledger)
    memory_pressure(ledger)
    poll(ledger)
    preemption(ledger)
    long_tail(ledger)
    held_coroutines(ledger)
    last_coroutines(ledger)
    straggler(ledger)
    named_work(ledger)
    half_batch(ledger)
    serial_coroutines(ledger)
    serial(ledger)
    awaited_calls(ledger)
    other_threads(ledger)
    other_regions(ledger)
    blocked(ledger)
    straggler(ledger, shared=False)
    rare_work(ledger)
    exposed_communication(ledger)
    copies(ledger)
    host_bound(ledger)
    return sorted(ledger.found, key=worth, reverse=True)


def worth(finding: Finding) -> tuple[float, float]:
    """Return the most that mending the cause can save, then its seconds."""
    seconds = finding.seconds or 0.0
    return (seconds if finding.saves is None else finding.saves), seconds
