"""Servers of engines, controlled over HTTP."""
