"""The one exception for mistakes that the user can mend."""


class UserError(Exception):
    """Bad input: the message names the file, line or key, what was found and what is expected.

    The command line prints it without a traceback and exits with 1.
    """
