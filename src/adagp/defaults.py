"""Sizes that sources, predictor, the cost of plans and the accelerator model share. Free of torch."""

PREDICTOR_GRID = 4
"""Outputs are pooled to a grid of this many cells along each axis."""
PREDICTOR_CHANNELS = 1
"""Channels of the predictor's convolution."""
SAMPLED_RATE = 0.25
"""The share of positions that `sampled` draws."""
