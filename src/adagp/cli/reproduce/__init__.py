"""`adagp reproduce`: the papers' tables and figures, ours beside theirs."""

from adagp.cli.reproduce.app import reproduce_app

__all__ = ["reproduce_app"]
