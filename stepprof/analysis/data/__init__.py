"""Read a run in Python: steps, spans, slices, forward steps of engines and the report, as tables that
pandas, Polars and DuckDB take.

This package needs the extra ``data``.
"""
