"""Scored sweeps -> tables and figures -> one page. Never talks to MLflow."""
