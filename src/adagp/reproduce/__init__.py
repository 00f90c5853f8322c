"""The papers' tables and figures, ours beside theirs, at a scale that is stated."""
