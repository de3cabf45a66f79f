"""The layout and the files of a run directory. The recording writes them, the analysis reads them."""
