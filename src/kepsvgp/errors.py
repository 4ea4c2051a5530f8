"""The one exception that means: the person at the keyboard can mend this."""


class UserError(ValueError):
    """A mistake in what was given to us: an argument, a configuration, a file.

    Its message says what was expected, what came and what to do. The command line prints
    the message alone and exits with code 2; anything else is a bug and keeps its traceback.
    """
