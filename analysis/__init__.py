"""From MLflow to tidy frames, selection and statistics. Nothing here draws."""
