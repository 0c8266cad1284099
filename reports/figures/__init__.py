"""Figures: data is reduced to a frozen info, which is then drawn. Only reports use matplotlib.

Guarantees of this package:

- A figure has a frozen dataclass with all that it shows, a function that computes it, and a function that draws it.
- It is drawn once; the same info gives the same bytes of SVG (which the page shows), PNG and PDF (`drawing.py`).
- Its CSV has every number and label of the info, or building fails (`drawing.py`).
- A figure that cannot be drawn is replaced by the reason (`drawing.py`: `Absent`).
- Style is set in a context, never globally (`drawing.py`); colours come from palettes, also for the colour-blind, with
  their dark values beside them (`drawing.py`).

Begin with `drawing.py` and `curves.py`. `gallery.py` has the paper's figures. Figures that only a single page has
stand with its text: those of a search, which Optuna draws, and of the exact core's study.
"""
