"""What gives access is masked, whatever stands around it; nothing else is touched."""

import pytest

from cppo_lab.tracking.masking import masked


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("postgresql://ada:s3cret@db:5432/mlflow", "postgresql://ada:***@db:5432/mlflow"),
        ("https://:s3cret@host/x", "https://:***@host/x"),
        ("https://s3cret@github.com/a/b.git", "https://***@github.com/a/b.git"),
        ("http://ada:s3c@ret@host", "http://ada:***@host"),
        ("mysql://ada:s3/cret@host/db", "mysql://ada:***@host/db"),
        ('{"uri":"http://a:s3cret@h","mail":"x@y"}', '{"uri":"http://a:***@h","mail":"x@y"}'),
        ("two http://a:s3cret@h http://b:s3cret@i", "two http://a:***@h http://b:***@i"),
        ("written so far: postgresql://ada:s3cre", "written so far: postgresql://ada:***"),
        ("http://127.0.0.1:5000/#/runs mail me@home", "http://127.0.0.1:5000/#/runs mail me@home"),
        ("step 3: reward=0.5", "step 3: reward=0.5"),
    ],
)
def test_masked(text: str, shown: str) -> None:
    assert masked(text) == shown
    assert masked(shown) == shown
