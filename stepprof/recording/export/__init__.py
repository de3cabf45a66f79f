"""Exports of captures, away from the training thread."""
