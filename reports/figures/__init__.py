"""Figures: data is reduced to a frozen info, which is then drawn. Only this package uses matplotlib."""
