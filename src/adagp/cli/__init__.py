"""The `adagp` command: parses, calls, prints. Progress and errors go to stderr, results to stdout."""

from typing import TYPE_CHECKING

from adagp.lazy import lazily

if TYPE_CHECKING:
    from adagp.cli.commands import app

__all__ = ["app"]

# Nothing slow is imported here: the signal handlers must be in place before Ctrl-C can come.
__getattr__ = lazily(__name__, {"app": "adagp.cli.commands"})
