"""The root of every error that tells the user a cause and a remedy."""


class AdagpError(Exception):
    """Something that was foreseen: the message alone is enough, and the command line shows it without a traceback.

    Attributes:
        exit_code: What the command ends with: 1 when the work failed, 2 when the input is wrong.
    """

    exit_code: int = 1
