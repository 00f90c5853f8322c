import os
import signal
import threading

import pytest

from adagp.training import Interrupted
from adagp.training.run.interrupt import Interrupt, catch_signals


def test_a_signal_is_remembered_until_the_run_can_stop() -> None:
    before = signal.getsignal(signal.SIGTERM)
    with catch_signals() as interrupt:
        interrupt.check()
        os.kill(os.getpid(), signal.SIGTERM)
        assert interrupt.requested
        assert signal.getsignal(signal.SIGTERM) is before  # the same signal again stops at once
        with pytest.raises(Interrupted) as stop:
            interrupt.check()
    assert stop.value.signal_number == signal.SIGTERM
    assert signal.getsignal(signal.SIGTERM) is before


def test_one_rank_stops_all() -> None:
    asked, other = Interrupt(), Interrupt()
    asked.signal_number = signal.SIGINT
    assert asked.agree(lambda mine: mine)
    assert asked.signal_number == signal.SIGINT
    assert not other.agree(lambda mine: mine)
    assert other.agree(lambda mine: True)
    assert other.signal_number == signal.SIGTERM


def test_other_threads_catch_no_signals() -> None:
    caught: list[Interrupt] = []

    def work() -> None:
        with catch_signals() as interrupt:
            caught.append(interrupt)

    before = signal.getsignal(signal.SIGINT)
    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert not caught[0].requested
    assert signal.getsignal(signal.SIGINT) is before
