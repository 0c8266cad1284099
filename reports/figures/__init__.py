"""Figures: data is reduced to a frozen info, which is then drawn. Only this package uses matplotlib.

Guarantees of this package:

- A figure's module has a frozen dataclass with all that it shows, a function that computes it, and `draw`.
- An info has numbers, text and run ids only, so a test can compare it and a cache can tell whether it has changed.
- The same info gives the same bytes of PNG, SVG and PDF (`files.py`); its numbers are also written as CSV (`data.py`).
- A figure that cannot be drawn is replaced by the reason (`picture.py`: `Absent`).
- Style is set in a context, never globally (`style.py`); colours come from a palette, also one for the colour-blind
  (`palette.py`).

Begin with `picture.py` and `curves.py`. `gallery.py` lists the paper's figures; `frame.py`: title, source and legend.
"""
