"""MLflow -> tidy frames -> selection -> statistics. Never draws."""
