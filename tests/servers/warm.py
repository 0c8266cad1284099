"""Imported by the fork server alone: what every process of a run would do once, done before any is forked."""

import mlflow.store.artifact.local_artifact_repo
import mlflow.store.artifact.mlflow_artifacts_repo
import mlflow.store.tracking.rest_store
import mlflow.store.tracking.sqlalchemy_store  # noqa: F401
from sqlalchemy.orm import configure_mappers

configure_mappers()
