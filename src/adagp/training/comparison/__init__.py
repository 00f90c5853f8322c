"""Several runs side by side: comparisons of methods, and the runs of a table, interleaved and resumable."""
