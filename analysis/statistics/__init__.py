"""Statistics across seeds, models and methods, with their uncertainty. Nothing here draws."""
