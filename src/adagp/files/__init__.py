"""Files: written whole or not at all, read without trust in what they hold, and the cache folder. Needs no torch."""

from adagp.files.cache import cache_folder
from adagp.files.reading import read_bytes, read_text
from adagp.files.values import parse_json, parse_toml, strict
from adagp.files.writing import remove_leftovers, write_atomically, write_bytes, write_json

__all__ = [
    "cache_folder",
    "parse_json",
    "parse_toml",
    "read_bytes",
    "read_text",
    "remove_leftovers",
    "strict",
    "write_atomically",
    "write_bytes",
    "write_json",
]
