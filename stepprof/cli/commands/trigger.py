"""`stepprof trigger RUN`: ask a running job to record a step on every rank and engine, or withdraw
a request.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping
from typing import Any

from stepprof.cli.common import add_json, add_run, chosen_run, print_json, seconds
from stepprof.cli.output import print_lines, print_text
from stepprof.errors import ConfigError
from stepprof.formatting import printable
from stepprof.run.requests import Request, withdraw_request
from stepprof.run.runs import is_run
from stepprof.run.trigger import NEXT, ask, wait_for_answers

WAIT_SECONDS = 4.0


def add(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments of `trigger`."""
    parser.description = "Ask a running job to record a step, without a restart. Options that are not given here keep the job's configuration."
    parser.epilog = "exit status: 0 ranks accepted the request and none missed it, 1 a rank missed or refused it, or none accepted it, 2 the request was not placed"
    add_run(parser)
    parser.add_argument(
        "--step", default=NEXT, metavar="N", help='the step number, or "next" (default): the next step that every rank can still reach'
    )  # fmt: skip
    parser.add_argument(
        "--count", type=int, default=1, metavar="K", help="number of consecutive steps (default 1)"
    )
    parser.add_argument("--role", help="only windows of this role (default: every role)")
    parser.add_argument(
        "--ranks", help='the ranks that record, such as "0-3,8" or "all" (default: as configured)'
    )
    parser.add_argument(
        "--backend", help='the backends, such as "torch" or "torch,memory" (default: as configured)'
    )
    parser.add_argument(
        "--set", action="append", default=[], metavar="KEY=VALUE", help='any other key of the table of a role: "max_seconds=30", "torch.with_stack=true"; may be repeated'
    )  # fmt: skip
    parser.add_argument("--withdraw", metavar="NAME", help="withdraw this request instead")
    parser.add_argument(
        "--wait", type=seconds, default=WAIT_SECONDS, metavar="SECONDS", help="timeout for the ranks' answers (default %(default)s)"
    )  # fmt: skip
    add_json(parser)


def run(args: argparse.Namespace) -> int:
    """Place or withdraw a request. Return 1 if a rank could not accept it."""
    path = chosen_run(args, is_run)
    try:
        if args.withdraw is not None:
            fresh = withdraw_request(path, args.withdraw)
            print_lines(f"request {args.withdraw}: {'withdrawn' if fresh else 'was withdrawn before'}")
            return 0
        step = int(args.step[:20]) if args.step.isdecimal() else args.step  # 20 digits are too large already
        backend = args.backend.split(",") if args.backend else None
        options = _options(args.set)
        for key, value in (("ranks", args.ranks), ("backend", backend)):
            if value is not None and key in options:
                raise ConfigError.at(key, options[key], f"given twice; omit --{key} or --set {key}")
        for key in ("step", "count", "role"):
            if key in options:
                raise ConfigError.at("set", f"{key}={options[key]}", f"is no key of a role; use --{key}")
        request = ask(
            path, step, count=args.count, role=args.role, **{**options, **_given(ranks=args.ranks, backend=backend)}
        )  # fmt: skip
    except OSError as error:
        raise ConfigError(f"{path}: the request cannot be written: {error.strerror or error}") from error
    if not args.json:
        print_text(_render_request(request, path.name))
    found = wait_for_answers(path, request.name, args.wait)
    if args.json:
        print_json({"path": str(path), "request": request.to_dict(), "answers": found})
    else:
        print_text(_render_answers(found))
    return 0 if {"accepted", "reached"} & set(found) and not {"missed", "refused"} & set(found) else 1


def _given(**values: Any) -> dict[str, Any]:
    return {key: value for key, value in values.items() if value is not None}


def _options(items: list[str]) -> dict[str, Any]:
    """Return KEY=VALUE pairs as one mapping. A value is parsed as JSON, else kept as a string."""
    table: dict[str, Any] = {}
    for item in items:
        key, equals, value = item.partition("=")
        if not equals or not key.strip():
            raise ConfigError.at("set", item, 'expected KEY=VALUE, such as "max_seconds=30"')
        try:
            parsed = json.loads(value)
        except (ValueError, RecursionError):
            parsed = None
        if parsed is None:  # also "null", which is the name of a backend
            parsed = value.strip()
        names = [name.strip() for name in key.split(".")]
        inner = table
        for name in names[:-1]:
            inner = inner.setdefault(name, {})
            if not isinstance(inner, dict):
                raise ConfigError.at("set", item, f"{name} is already set to a value")
        inner[names[-1]] = parsed
    return table


def _render_request(request: Request, run_id: str) -> str:
    what = "windows without a role and of every role" if request.role is None else f"role {request.role}"
    changes = "".join(f", {key} = {value}" for key, value in request.changes.items())
    steps = f"step {request.step}" if request.count == 1 else f"steps {request.steps}"
    return (
        printable(f"request {request.name} to run {run_id}") + "\n" + printable(f"{steps}: {what}{changes}")
    )


def _render_answers(found: Mapping[str, list[dict[str, Any]]]) -> str:
    if not found:
        return "no process of the run has answered; `stepprof status` shows their state"
    lines = []
    for outcome, seen in sorted(found.items()):
        ranks = [str(answer["rank"]) for answer in seen]
        shown = ", ".join(ranks if len(ranks) <= 8 else [*ranks[:8], "…"])
        lines.append(f"{outcome} by {len(ranks)} ({'rank' if len(ranks) == 1 else 'ranks'} {shown})")
        reasons = dict.fromkeys(str(answer["reason"]) for answer in seen if answer["reason"])
        lines += [f"  {reason}" for reason in list(reasons)[:4]]
    return "\n".join(printable(line) for line in lines)
