"""Read recorded traces and spans, place them on one clock, and write one timeline.

Traces of every backend and engine are supported, also those that stepprof did not record. This
package shares only the run directory with the recording side. It needs the extra ``report``.
"""
