"""Check the options of `stepprof merge`."""

from __future__ import annotations

import argparse
from collections.abc import Mapping

from stepprof.errors import ConfigError

_LARGEST = 1e9  # seconds, and microseconds: decades, and hours


def check_options(args: argparse.Namespace) -> None:
    """Raise ConfigError for a value out of range, or for options that contradict each other."""
    _check_range(args)
    if args.critical_path:
        # the timeline would have no place for the path, or not all of its processes
        given = {
            "--per-replica": args.per_replica,
            "--roles": args.roles is not None,
            "--ranks": args.ranks is not None,
        }
        _refuse(given, "--critical-path, which needs all processes of the step")


def _numbers(args: argparse.Namespace) -> dict[str, float | None]:
    return {"--from": args.from_seconds, "--to": args.to_seconds, "--min-us": args.min_us}


def _refuse(given: Mapping[str, bool], beside: str) -> None:
    """Raise ConfigError for the first option that is given."""
    for option, is_given in given.items():
        if is_given:
            raise ConfigError(f"{option}: cannot be combined with {beside}; omit one of them")


def _check_range(args: argparse.Namespace) -> None:
    for option, value in _numbers(args).items():
        if value is not None and not abs(value) < _LARGEST:
            raise ConfigError(f"{option} = {value}: must be between {-_LARGEST:g} and {_LARGEST:g}")
    if args.min_us is not None and args.min_us < 0:
        raise ConfigError(f"--min-us = {args.min_us:g}: must be >= 0")
    if args.from_seconds is not None and args.to_seconds is not None and args.from_seconds >= args.to_seconds:
        raise ConfigError(f"--from = {args.from_seconds:g}: must be less than --to = {args.to_seconds:g}")
