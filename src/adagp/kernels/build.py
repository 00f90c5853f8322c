"""Compiling a C++ file on first use, into a cache that several processes may share.

There is no build step at installation: the machine that runs the code compiles it for its own processor, and without a
compiler torch is used. A library file ends with the digest of its content, because loading a damaged one could crash
the process. `torch.utils.cpp_extension` would need ninja and Python's headers.
"""

import hashlib
import logging
import os
import shlex
import shutil
import subprocess
import tempfile
from pathlib import Path

from adagp.files import cache_folder

_LOG = logging.getLogger(__name__)
_FLAGS = ("-O3", "-march=native", "-std=c++17", "-fopenmp", "-fPIC", "-shared")
_COMPILERS = ("c++", "g++", "clang++")
_INSTRUCTION_SETS = {"AVX-512": "__AVX512F__", "AVX2": "__AVX2__", "AVX": "__AVX__", "SSE2": "__SSE2__"}
_DIGEST_BYTES = hashlib.sha256().digest_size
_TIMEOUT_SECONDS = 120


class CannotBuildError(RuntimeError):
    """The library cannot be built; the message has the cause and the remedy."""


def shared_library(source: Path) -> Path:
    """The library compiled from `source`, from the cache if it is intact there.

    Raises:
        CannotBuildError: if there is no compiler, it failed, or the cache cannot be written.
    """
    compiler = _compiler()
    # The predefined macros identify compiler and processor, so that different machines can share a home folder.
    identity = _macros(compiler)
    key = hashlib.sha256(b"\0".join([source.read_bytes(), " ".join(_FLAGS).encode(), identity])).hexdigest()[:24]
    library = cache_folder() / f"{source.stem}-{key}.so"
    if _is_intact(library):
        return library
    try:
        library.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=library.parent, prefix=".build-") as folder:
            fresh = Path(folder) / library.name
            _run([*compiler, *_FLAGS, str(source), "-o", str(fresh)])
            with fresh.open("ab") as file:
                file.write(hashlib.sha256(fresh.read_bytes()).digest())
            # Processes that compile at the same time write the same file; the last one stays.
            fresh.replace(library)
    except OSError as error:
        raise CannotBuildError(
            f"the cache {library.parent} cannot be written ({error.strerror}); set ADAGP_CACHE to a folder that can"
        ) from error
    _LOG.info("compiled %s into %s", source.name, library)
    return library


def instruction_set() -> str:
    """The vector instructions that libraries are compiled for: `AVX-512`, `AVX2` and so on.

    Raises:
        CannotBuildError: if there is no compiler, or it failed.
    """
    defined = _macros(_compiler()).decode(errors="replace").split()
    return next((name for name, macro in _INSTRUCTION_SETS.items() if macro in defined), "no vectors that are known")


def _macros(compiler: list[str]) -> bytes:
    return _run([*compiler, *_FLAGS, "-dM", "-E", "-x", "c++", os.devnull])


def _compiler() -> list[str]:
    named = os.environ.get("CXX")
    if named:
        try:
            return shlex.split(named)
        except ValueError as error:
            raise CannotBuildError(f"CXX={named!r} is not a command ({error}); correct or unset it") from error
    for name in _COMPILERS:
        if shutil.which(name):
            return [name]
    raise CannotBuildError(f"no C++ compiler ({', '.join(_COMPILERS)}) is on PATH; install one or name it in CXX")


def _run(command: list[str]) -> bytes:
    """The output of a command; CannotBuildError with the end of its error output if it fails."""
    try:
        return subprocess.run(command, capture_output=True, check=True, timeout=_TIMEOUT_SECONDS).stdout
    except subprocess.CalledProcessError as error:
        stderr = error.stderr.decode(errors="replace").strip()[-400:]
        raise CannotBuildError(f"the C++ compiler {command[0]} failed: {stderr or error}") from error
    except (OSError, subprocess.TimeoutExpired) as error:
        raise CannotBuildError(f"the C++ compiler {command[0]} did not run: {error}") from error


def _is_intact(library: Path) -> bool:
    try:
        content = library.read_bytes()
    except OSError:
        return False
    return hashlib.sha256(content[:-_DIGEST_BYTES]).digest() == content[-_DIGEST_BYTES:]
