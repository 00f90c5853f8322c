import signal
import sys
import time
from pathlib import Path

import pytest

from adagp.patience import TookTooLongError, at_most


def test_what_takes_too_long_is_stopped() -> None:
    before, begin = signal.getsignal(signal.SIGALRM), time.monotonic()
    with pytest.raises(TookTooLongError), at_most(0.1):
        time.sleep(20)
    assert time.monotonic() - begin < 10
    with at_most(0.2):
        pass
    time.sleep(0.4)
    assert signal.getsignal(signal.SIGALRM) is before


def test_an_import_is_not_interrupted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "slow_import.py").write_text("import time\ntime.sleep(0.5)\nwhole = True\n")
    monkeypatch.syspath_prepend(str(tmp_path))

    def work() -> None:
        import slow_import  # type: ignore[import-not-found]

        assert slow_import.whole
        time.sleep(20)

    with pytest.raises(TookTooLongError), at_most(0.1):
        work()
    assert sys.modules.pop("slow_import").whole


def test_a_timer_that_was_set_inside_stays() -> None:
    """Ctrl-C gives a command some seconds to clean up, by the same timer."""
    before = signal.getsignal(signal.SIGALRM)
    try:
        with at_most(20):
            signal.signal(signal.SIGALRM, signal.SIG_IGN)
            signal.alarm(5)
        assert signal.alarm(0) > 0
    finally:
        signal.signal(signal.SIGALRM, before)
