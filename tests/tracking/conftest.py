"""An empty store to copy, as the tests of `analysis` have it."""

from tests.analysis.conftest import empty_store

__all__ = ["empty_store"]
