"""All benchmarks, one after the other, and the page docs/benchmarks.md that they make."""
