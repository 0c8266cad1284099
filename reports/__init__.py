"""From scored sweeps to tables, figures and one page. Nothing here talks to MLflow."""
