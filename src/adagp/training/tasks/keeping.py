"""Vocabularies in a run's folder."""

from pathlib import Path

from adagp.data import Vocabulary
from adagp.training.errors import RunFolderError


def keep_vocabulary(vocabulary: Vocabulary, path: Path) -> None:
    """Write a vocabulary into a run's folder: the weights are useless without it.

    Raises:
        RunFolderError: When the folder holds another one under that name, or the file cannot be written.
    """
    if path.exists() and not path.is_file():
        raise RunFolderError(f"'{path}' is not a regular file: remove it, or start in a new folder")
    if path.exists() and Vocabulary.load(path) != vocabulary:
        raise RunFolderError(
            f"'{path}' is not the vocabulary of this training text: the text has changed since the run was "
            "started; restore it, or start in a new folder"
        )
    try:
        vocabulary.save(path)
    except OSError as error:
        raise RunFolderError(f"'{path}' cannot be written: {error.strerror or error}") from error
