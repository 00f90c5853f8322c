"""What cannot be advised, and why."""

from adagp.errors import AdagpError


class AdviceError(AdagpError, ValueError):
    """A model, an optimizer, a closure or a batch cannot be used; the message names it, the cause and the remedy."""

    exit_code = 2
