"""Reading what was recorded: traces of every backend and engine and the spans, placed on one clock, and written as one timeline.

The offline half of the reading wing. It meets the recording side in the run directory alone, and reads traces that stepprof did not record as well. Needs the extra ``report``.
"""
