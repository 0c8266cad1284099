"""Colours and dashes of the palette for colour-blind readers.

Okabe and Ito's colours (2008) without the yellow, which is too light for a line on white.
"""

BLACK, ORANGE, SKY, GREEN = "#000000", "#E69F00", "#56B4E9", "#009E73"
BLUE, VERMILLION, PURPLE = "#0072B2", "#D55E00", "#CC79A7"
LONG, SHORT, DOTS, DASH_DOT = (6.0, 2.0), (3.0, 1.5), (1.0, 1.5), (6.0, 1.5, 1.0, 1.5)
DASH_DOTS, LONG_SHORT = (6.0, 1.5, 1.0, 1.5, 1.0, 1.5), (8.0, 1.5, 3.0, 1.5)
