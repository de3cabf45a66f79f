"""Between the wings: the layout and the files of a run directory, written by the recording and read by the analysis."""
