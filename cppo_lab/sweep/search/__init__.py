"""Searches: constants tuned with Optuna, whose every evaluation is a set of ordinary runs."""
