"""Findings: what made a step long, with its place, its evidence and what to try."""
