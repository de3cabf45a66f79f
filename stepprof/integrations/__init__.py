"""Adapters for training frameworks: they record a job whose code does not mention stepprof."""
