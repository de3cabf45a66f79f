"""A simulator of steps whose truth is known, and the comparison of the report with it."""
