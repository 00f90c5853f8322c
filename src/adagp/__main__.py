"""The `adagp` command, also as `python -m adagp`; without its extra it says how to install that."""

import sys

from adagp.cli.signals import exit_on_signals
from adagp.extras import remedy


def main() -> None:
    """Run the command line."""
    exit_on_signals()
    try:
        from adagp.cli.commands import run
    except ModuleNotFoundError as error:
        what = remedy(error)
        if what is None:
            raise
        print(f"adagp: error: the command line is an extra; {what}", file=sys.stderr)
        sys.exit(1)
    run()


if __name__ == "__main__":
    main()
