"""The runs of a plan under the parents of their sweeps in MLflow."""

import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager

from mlflow import MlflowClient
