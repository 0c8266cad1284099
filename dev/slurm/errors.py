"""The one kind of error that a user of the development cluster is meant to see."""

from dev.errors import DevError


class ClusterError(DevError):
    """Something the user can mend; the text is one line that says what and how."""
