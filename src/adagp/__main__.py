"""The `adagp` command and `python -m adagp`; without the cli extra they print how to install it."""

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
