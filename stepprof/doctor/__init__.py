"""Findings of `stepprof doctor`: what this machine can record, and what to do where it cannot."""
