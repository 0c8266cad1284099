"""Searches: tune constants with Optuna, where every trial is a set of ordinary runs."""
