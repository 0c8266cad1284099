"""The processor time of chosen calls: a small cost in a long step, which a ratio of two steps would not resolve."""

import time
from collections.abc import Callable
from typing import Any


class Clock:
    """Adds up the processor time of calls."""

    def __init__(self) -> None:
        self.seconds = 0.0

    def around(self, owner: Any, name: str) -> None:
        """Watch a function of a module, or a method of a class or object."""
        real: Callable[..., Any] = getattr(owner, name)

        def timed(*arguments: Any, **named: Any) -> Any:
            began = time.process_time()
            try:
                return real(*arguments, **named)
            finally:
                self.seconds += time.process_time() - began

        setattr(owner, name, timed)
