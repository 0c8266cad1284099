"""What can be said across seeds, models and methods, and how sure it is. Pure numbers: nothing here draws."""
