"""The errors that a user of the programs in this folder is meant to see."""


class DevError(Exception):
    """Something the user can mend; the text is one line that says what and how."""
