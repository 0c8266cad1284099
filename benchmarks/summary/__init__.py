"""All benchmarks, one after the other, and the page docs/evidence/benchmarks.md that they make."""
