"""What gives access is masked, whatever stands around it; nothing else is touched."""

import pytest

from cppo_lab.files import redacted


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
        ("see http://127.0.0.1:5000", "see http://127.0.0.1:5000"),
        ("http://ada:5000@host", "http://ada:***@host"),
        ("postgresql+psycopg://me:a@b:c@host/db", "postgresql+psycopg://me:***@host/db"),
        ("postgresql://host/db?user=me&password=s3cret", "postgresql://host/db?user=me&password=***"),
        ("sqlite:////tmp/x.db", "sqlite:////tmp/x.db"),
        ("step 3: reward=0.5", "step 3: reward=0.5"),
        ("HF_TOKEN=s3cret x", "HF_TOKEN=*** x"),
        ("export MLFLOW_TRACKING_PASSWORD='s3cret two'", "export MLFLOW_TRACKING_PASSWORD='***'"),
        ("AWS_SECRET_ACCESS_KEY: s3/cret+", "AWS_SECRET_ACCESS_KEY: ***"),
        ("cppo x --api-key s3cret --password=s3cret y", "cppo x --api-key *** --password=*** y"),
        ("{'db_password': 's3cret', 'n': 1}", "{'db_password': '***', 'n': 1}"),
        ('{"api_key": "s3cret"}', '{"api_key": "***"}'),
        ("Authorization: Basic dXNlcjpzM2NyZXQ=", "Authorization: Basic ***"),
        ("Bearer eyJhbGciOiJIUzI1NiJ9.e30", "Bearer ***"),
        ("https://h/x?token=s3cret&n=1", "https://h/x?token=***&n=1"),
        ("https://b/x?X-Amz-Signature=s3cret", "https://b/x?X-Amz-Signature=***"),
        (f"got hf_{'a' * 34} here", "got hf_*** here"),
        ("ghp_0123456789abcdefghij", "ghp_***"),
        ("tokens=5 MAX_TOKENS=6 token=the", "tokens=5 MAX_TOKENS=6 token=the"),
        ("unknown model '../../etc/passwd': valid: a", "unknown model '../../etc/passwd': valid: a"),
        ("TOKENIZERS_PARALLELISM=false", "TOKENIZERS_PARALLELISM=false"),
        ("no password was given; sk-learn-and-more", "no password was given; sk-learn-and-more"),
    ],
)
def test_redacted(text: str, shown: str) -> None:
    assert redacted(text) == shown
    assert redacted(shown) == shown
