"""The name by which `adagp.cli.simulate` still knows `adagp.files`."""

from adagp.files import write_bytes

__all__ = ["write_bytes"]
