"""What a session of pytest starts once, whichever folder's fixtures ask for it first."""

from collections.abc import Callable, Iterator
from typing import Any, TypeVar

T = TypeVar("T")
_things: dict[str, Any] = {}


def shared(name: str, make: Callable[[], T], end: Callable[[T], object]) -> Iterator[T]:
    """For a fixture of the session: yields what there is under a name, made if nobody has, and ended by who made it.

    pytest ends all fixtures of the session together.
    """
    if name in _things:
        yield _things[name]
        return
    _things[name] = made = make()
    try:
        yield made
    finally:
        del _things[name]
        end(made)
