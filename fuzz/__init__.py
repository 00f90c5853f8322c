"""Mutated inputs and killed runs, by the thousand: `python -m fuzz`, or `make fuzz`."""
