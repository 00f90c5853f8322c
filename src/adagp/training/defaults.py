"""Defaults that the command line shows before it imports what they are for."""

CHECKPOINT_SECONDS = 30.0
"""The longest time between two checkpoints."""
