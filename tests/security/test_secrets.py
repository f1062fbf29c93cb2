"""What counts as a secret, and that nothing of it is left. No Spark, no framework."""

from __future__ import annotations

import io
import json
import logging
import pickle
import re
import string
import traceback

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sparkinfer.core.errors import ErrorCode, ModelError, RowError, SourceError
from sparkinfer.core.secrets import (
    LOGIN_PATTERN,
    LOGIN_REPLACEMENT,
    MASK,
    RedactingFilter,
    is_secret_name,
    redact_logs,
    redacted,
    redacted_data,
)
from sparkinfer.core.spec import JobSpec

URI_CHARS = string.ascii_letters + string.digits + "-._~!$()*+,;=%"
secrets = st.text(string.ascii_letters + string.digits + "+=", min_size=12, max_size=40).map(lambda s: f"Zq{s}qZ")
users = st.text(URI_CHARS, max_size=20).map(lambda s: f"u{s}")
schemes = st.sampled_from(["s3a", "s3", "ftp", "sftp", "https", "wasbs", "webhdfs", "jdbc:postgresql"])
hosts = st.from_regex(r"[a-z][a-z0-9.-]{0,15}(:[0-9]{2,5})?", fullmatch=True)
paths = st.text(string.ascii_letters + "/@:-_.*", max_size=30).map(lambda s: f"/{s}")
around = st.text(string.ascii_letters + " .,()", max_size=30)


@settings(deadline=None)
@given(schemes, users, secrets, hosts, paths, around, around)
def test_no_login_of_a_uri_is_left(scheme, user, secret, host, path, before, after):
    shown = redacted(f"{before} '{scheme}://{user}:{secret}@{host}{path}' {after}")
    assert secret not in shown
    assert f"{scheme}://{user}:" not in shown
    assert f"{MASK}@" in shown


@settings(deadline=None)
@given(schemes, users, st.tuples(secrets, secrets).map("/".join), hosts)
def test_a_secret_with_a_slash_that_nobody_encoded(scheme, user, secret, host):
    shown = redacted(f"cannot open {scheme}://{user}:{secret}@{host}/x: no such bucket")
    assert not any(part in shown for part in secret.split("/"))
    assert shown.endswith(f"@{host}/x: no such bucket")


PARAMETERS = ["sig", "X-Amz-Signature", "X-Amz-Security-Token", "X-Amz-Credential", "password", "Signature", "pwd"]


@settings(deadline=None)
@given(st.sampled_from(PARAMETERS), secrets, hosts)
def test_no_parameter_of_a_url_is_left(name, secret, host):
    value = secret.replace("=", "%3D")
    shown = redacted(f"GET https://{host}/x.jpg?sv=2021&{name}={value}&se=1 failed")
    assert value not in shown
    assert shown.endswith("&se=1 failed")


SECRET_SETTINGS = [
    "fs.s3a.access.key",
    "fs.s3a.secret.key",
    "fs.s3a.session.token",
    "fs.s3a.encryption.key",
    "fs.s3a.bucket.photos.secret.key",
    "spark.hadoop.fs.s3a.secret.key",
    "spark.hadoop.fs.azure.account.key.photos.dfs.core.windows.net",
    "fs.azure.sas.photos.account.blob.core.windows.net",
    "fs.azure.sas.fixed.token.photos",
    "fs.azure.account.oauth2.client.secret",
    "fs.gs.auth.service.account.private.key",
    "spark.ssl.keyPassword",
    "spark.authenticate.secret",
    "ssl.server.keystore.password",
    "ssl.client.keystore.pass",
    "javax.jdo.option.ConnectionPassword",
    "password",
    "accountKey",
    "AWS_SECRET_ACCESS_KEY",
]
PLAIN_SETTINGS = [
    "spark.executor.memory",
    "spark.sql.shuffle.partitions",
    "spark.io.encryption.keySizeBits",
    "fs.s3a.endpoint",
    "fs.s3a.aws.credentials.provider",
    "path_column",
    "tokenizer",
    "partition_by",
    "user",
]


@pytest.mark.parametrize("name", SECRET_SETTINGS)
@settings(deadline=None)
@given(secret=secrets)
def test_no_setting_is_left(name, secret):
    assert is_secret_name(name)
    shown = json.dumps(redacted_data({"conf": [{name: secret, "spark.executor.memory": "4g"}]}))
    assert secret not in shown
    assert "4g" in shown


TOLD_BY_NAME_ALONE = {"fs.azure.sas.photos.account.blob.core.windows.net", "ssl.client.keystore.pass"}


@pytest.mark.parametrize("name", [name for name in SECRET_SETTINGS if name not in TOLD_BY_NAME_ALONE])
def test_no_setting_in_running_text_is_left(name):
    for text in (f"--conf {name}=Zq1==", f"{{'{name}': 'Zq1=='}}", json.dumps({name: "Zq1=="}), f"{name} = Zq1== x"):
        assert "Zq1" not in redacted(text)


@pytest.mark.parametrize("name", PLAIN_SETTINGS)
def test_other_settings_stay(name):
    assert not is_secret_name(name)
    assert redacted_data({name: "value"}) == {name: "value"}
    assert redacted(f"{name}=value") == f"{name}=value"


@pytest.mark.parametrize(
    "text",
    [
        "hdfs://nn:8020/photos/@me/a:b.jpg does not exist",
        "abfss://container@account.dfs.core.windows.net/x",
        "wasbs://photos@account.blob.core.windows.net/",
        "file:/data/key=5/part-0.parquet, user_key=3",
        "name columns with path_column=, content_column=, keep=",
        "spark://host:7077 and k8s://https://10.0.0.1:6443",
        '["hdfs://nn:8020", "a@b"]',
        "mail me@example.org: 3 of 4 rows failed",
        "",
    ],
)
def test_what_is_no_secret_stays_as_it_is(text):
    assert redacted(text) == text


@settings(deadline=None)
@given(st.text(st.sampled_from(":/@='\"{}& \nabK?.-_") | st.characters(codec="utf-8"), max_size=200))
def test_any_text_can_be_redacted_and_again_changes_nothing(text):
    once = redacted(text)
    assert redacted(once) == once


def test_long_texts_take_no_time_to_speak_of():
    for text in ("a" * 300_000, "://a:" * 20_000, "secret" * 20_000, "'a':" * 20_000, "x=" * 50_000):
        redacted(text)  # would take hours with a pattern that backtracks over all pairs of positions


@settings(deadline=None)
@given(users, secrets, hosts)
def test_arrow_and_python_agree_about_logins(user, secret, host):
    uri = f"s3a://{user}:{secret}@{host}/a@b:c.jpg"
    (by_arrow,) = pc.replace_substring_regex(pa.array([uri]), LOGIN_PATTERN, LOGIN_REPLACEMENT).to_pylist()
    assert by_arrow == re.sub(LOGIN_PATTERN, LOGIN_REPLACEMENT, uri) == f"s3a://***@{host}/a@b:c.jpg"


LEAKY = "s3a://AKIA123:Zq5ecret@bucket/x"


def test_an_error_holds_no_secret():
    error = SourceError(f"{LEAKY!r} is gone", key="source.images", allowed=[LEAKY], hint=f"did you mean {LEAKY}?")
    for shown in (str(error), repr(error), error.render(), repr(pickle.loads(pickle.dumps(error)).__dict__)):
        assert "Zq5ecret" not in shown
    assert "s3a://***@bucket/x" in error.render()
    with pytest.raises(SourceError) as caught:
        raise error
    assert "Zq5ecret" not in "".join(traceback.format_exception(caught.value))


def test_a_row_error_is_redacted_before_it_is_cut():
    row = RowError(ErrorCode.READ_FAILED, "x" * 480 + f" {LEAKY}")
    assert "Zq5" not in row.message
    assert "AKIA" not in row.message


def test_a_described_job_holds_no_secret():
    spec = JobSpec.model_validate(
        {
            "source": {"images": ["s3a://AKIA1:Zq1@photos/2026", "hdfs://nn:8020/photos"]},
            "model": {"path": "https://store/m.onnx?sig=Zq2", "options": {"api_key": "Zq3", "graph": "on"}},
            "sink": {"table": "db.t", "format": "jdbc", "options": {"user": "me", "password": "Zq4"}},
            "spark": {"conf": {"spark.hadoop.fs.s3a.secret.key": "Zq5", "spark.executor.memory": "4g"}},
        }
    )
    described = spec.describe()
    assert "Zq" not in json.dumps(described)
    assert described["source"]["images"] == ["s3a://***@photos/2026", "hdfs://nn:8020/photos"]
    assert described["sink"]["options"] == {"user": "me", "password": "***"}
    assert described["spark"]["conf"]["spark.executor.memory"] == "4g"


def test_log_records_are_redacted_with_their_arguments_and_traces():
    out = io.StringIO()
    handler = logging.StreamHandler(out)
    handler.addFilter(RedactingFilter())
    log = logging.getLogger("tests.security.secrets")
    log.addHandler(handler)
    try:
        log.warning("reading %s", LEAKY)
        log.error("failed", exc_info=OSError(f"cannot open {LEAKY}"))
    finally:
        log.removeHandler(handler)
    assert "Zq5ecret" not in out.getvalue()
    assert "reading s3a://***@bucket/x" in out.getvalue()
    assert "OSError: cannot open s3a://***@bucket/x" in out.getvalue()


def test_redact_logs_covers_the_root_and_the_last_resort_once():
    handler = logging.NullHandler()
    logging.getLogger().addHandler(handler)
    try:
        redact_logs()
        redact_logs()
        assert logging.lastResort is not None
        for one in (handler, logging.lastResort):
            assert [type(f) for f in one.filters] == [RedactingFilter]
    finally:
        logging.getLogger().removeHandler(handler)
        logging.lastResort.filters.clear()


def test_a_model_error_from_a_helper_process_stays_redacted():
    from sparkinfer.executor.inspection import error_from_dict, error_to_dict

    assert "Zq5" not in error_from_dict(error_to_dict(ModelError(f"{LEAKY!r} is damaged"))).render()
