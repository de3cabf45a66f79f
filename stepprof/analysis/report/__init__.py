"""Compute where the time of a step went, and print it as tables, JSON or a page.

Facts of each source are combined into one report. This package needs the extra ``report``.
"""
