"""One training run: the run itself, its folder and checkpoints, its ranks, and the loop that drives it."""
