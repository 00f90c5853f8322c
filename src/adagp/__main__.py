"""`python -m adagp` is the `adagp` command."""

from adagp.cli import main

if __name__ == "__main__":
    main()
