"""`stepprof doctor`: check what can record on this machine, with a remedy for each problem."""

from __future__ import annotations

import argparse
import dataclasses
import os
import socket

from stepprof.cli.common import add_json, add_output_dir, output_dir, print_json
from stepprof.cli.output import print_lines, print_text
from stepprof.doctor.backends import backend_lines
from stepprof.doctor.machine import machine_findings
from stepprof.doctor.npu import npu_findings
from stepprof.doctor.torch import torch_findings
from stepprof.doctor.upload import upload_findings
from stepprof.formatting import table
from stepprof.integrations.activation import adapters
from stepprof.integrations.source_check import check


def add(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments of `doctor`."""
    parser.description = "Check what can record on this machine; list each problem with its remedy."
    parser.epilog = "exit status: 0 no problems (warnings are possible), 1 at least one problem"
    parser.add_argument(
        "--timeout",
        type=float,
        default=120.0,
        metavar="SECONDS",
        help="timeout for importing and trying torch (default 120)",
    )
    parser.add_argument(
        "--upload",
        metavar="URL",
        help="also test uploads to this URL: write and remove a small file",
    )
    add_output_dir(parser)
    add_json(parser)


def run(args: argparse.Namespace) -> int:
    """Run all checks. Return 1 if there is a problem, else 0."""
    findings = torch_findings(os.environ, args.timeout) + npu_findings(os.environ)
    findings += machine_findings(output_dir(args), os.environ)
    lines = backend_lines(findings)
    if args.upload is not None:
        findings += upload_findings(args.upload, args.timeout)
    frameworks = [line for line in map(check, adapters()) if line.status != "not_installed"]
    problems = sum(finding.level == "problem" for finding in findings)
    warnings = sum(finding.level == "warning" for finding in findings)
    if args.json:
        print_json(
            {
                "host": socket.gethostname(),
                "ok": not problems,
                "backends": [dataclasses.asdict(line) for line in lines],
                "adapters": [line._asdict() for line in frameworks],
                "findings": [dataclasses.asdict(finding) for finding in findings],
            }
        )
        return 1 if problems else 0
    width = max(len(finding.name) for finding in findings)
    for finding in findings:
        mark = finding.level.upper() if finding.level == "problem" else finding.level
        print_lines(f"{mark:<8} {finding.name:<{width}}  {finding.detail}")
        if finding.remedy:
            print_lines(f"{'':<8} {'':<{width}}  -> {finding.remedy}")
    print_lines()
    words = {True: "records", False: "cannot", None: "unknown"}
    rows = [[line.name, words[line.records], line.reason] for line in lines]
    print_text(table(["backend", "here", "result or reason"], rows))
    print_lines()
    if frameworks:
        print_text(table(["adapter", "version", "here", "reason"], [list(line) for line in frameworks]))
        print_lines()
    print_lines(f"{problems} problem{'s' * (problems != 1)}, {warnings} warning{'s' * (warnings != 1)}")
    return 1 if problems else 0
