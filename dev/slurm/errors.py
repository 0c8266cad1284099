"""The error shown to users of the development cluster."""

from dev.errors import DevError


class ClusterError(DevError):
    """An error that the user can fix; the text is one line that says what is wrong and how to fix it."""
