"""Figures: data -> frozen info -> draw. The one home of matplotlib."""
