"""Statistics across seeds, models and methods, with their uncertainty. Pure numbers: nothing here draws."""
