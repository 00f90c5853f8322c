"""Budgets of the design, measured; `python -m benchmarks` runs them all."""
