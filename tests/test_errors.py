"""One root for every error that tells a cause and a remedy; the command line reads its exit code."""

import pytest

from adagp import NonFiniteError
from adagp.accelerator.rtl.tools import ToolError
from adagp.cli.common import InputError
from adagp.data import CorruptDataError, MissingDataError
from adagp.distributed import LostRankError, LostStageError
from adagp.errors import AdagpError
from adagp.training import RecipeError, RunFolderError, TrainingError


@pytest.mark.parametrize(
    ("kind", "also", "code"),
    [
        (InputError, ValueError, 2),
        (RecipeError, ValueError, 2),
        (TrainingError, Exception, 1),
        (RunFolderError, TrainingError, 1),
        (MissingDataError, FileNotFoundError, 1),
        (CorruptDataError, ValueError, 1),
        (ToolError, RuntimeError, 1),
        (NonFiniteError, RuntimeError, 1),
        (LostRankError, RuntimeError, 1),
        (LostStageError, LostRankError, 1),
    ],
)
def test_errors_share_a_root_and_stay_what_users_catch(
    kind: type[AdagpError], also: type[Exception], code: int
) -> None:
    error = kind("x: is wrong; mend it")
    assert isinstance(error, AdagpError)
    assert isinstance(error, also)
    assert error.exit_code == code
    assert str(error) == "x: is wrong; mend it"
