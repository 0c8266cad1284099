"""The errors shown to users of the programs in this folder."""


class DevError(Exception):
    """An error that the user can fix; the text is one line that says what is wrong and how to fix it."""
