"""Paths as text: what Hadoop makes of them."""

from __future__ import annotations

from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sparkinfer.driver.paths import Root, has_glob, is_hidden, local_path, parse, qualify, url


def root_of(scheme, authority):
    if scheme in {None, "hdfs"}:
        return Root(f"hdfs://{authority or 'nn:8020'}", "/user/me")
    if scheme == "file":
        return Root("file:", "/home/me")
    raise ValueError(f"no file system for {scheme}")


@pytest.mark.parametrize(
    ("text", "qualified"),
    [
        ("hdfs://nn:8020/a/b.jpg", "hdfs://nn:8020/a/b.jpg"),
        ("hdfs:///a/b.jpg", "hdfs://nn:8020/a/b.jpg"),
        ("hdfs:/a/b.jpg", "hdfs://nn:8020/a/b.jpg"),
        ("hdfs://other/a", "hdfs://other/a"),
        ("/a/b.jpg", "hdfs://nn:8020/a/b.jpg"),
        ("a/b.jpg", "hdfs://nn:8020/user/me/a/b.jpg"),
        ("file:///a/b.jpg", "file:/a/b.jpg"),
        ("file:/a//b///c/", "file:/a/b/c"),
        ("/a/./b/../c.jpg", "hdfs://nn:8020/a/c.jpg"),
        ("../x.jpg", "hdfs://nn:8020/user/x.jpg"),
        ("/a b/100%/%20/q?x#y.jpg", "hdfs://nn:8020/a b/100%/%20/q?x#y.jpg"),
        ("/10:30.jpg", "hdfs://nn:8020/10:30.jpg"),
        ("/.hidden/..x", "hdfs://nn:8020/.hidden/..x"),
        ("/", "hdfs://nn:8020/"),
    ],
)
def test_qualified_paths(text, qualified):
    assert qualify(text, root_of) == qualified


@pytest.mark.parametrize(
    ("text", "why"),
    [("", "empty"), ("file:x.jpg", "no absolute path"), ("10:30.jpg", "no absolute"), ("foo://x/y", "foo")],
)
def test_paths_that_hadoop_does_not_take(text, why):
    with pytest.raises(ValueError, match=why):
        qualify(text, root_of)


@given(
    st.text(st.characters(exclude_categories=["Cs"], exclude_characters="/"), min_size=1).filter(lambda n: n.strip("."))
)
def test_a_url_gives_back_the_path_whatever_the_name(name):
    encoded = url(f"file:/photos/{name}")
    assert encoded.isascii()
    assert '"' not in encoded
    assert "\\" not in encoded
    assert unquote(urlsplit(encoded).path) == f"/photos/{name}"


def test_parse_keeps_scheme_and_authority():
    assert parse("s3a://my_bucket/k?ey#") == ("s3a", "my_bucket", "/k?ey#")
    assert parse("abfs://box@account.dfs.core.windows.net") == ("abfs", "box@account.dfs.core.windows.net", "")


@pytest.mark.parametrize(
    ("name", "hidden"),
    [
        ("_SUCCESS", True),
        (".DS_Store", True),
        ("x.jpg._COPYING_", True),
        ("_k=v", False),
        ("a_b.jpg", False),
        ("a.b", False),
    ],
)
def test_hidden_names(name, hidden):
    assert is_hidden(name) is hidden


def test_globs():
    assert all(has_glob(text) for text in ("*.jpg", "a?c", "[ab]", "{a,b}"))
    assert not has_glob("/a/b c%20.jpg")


def test_local_paths(tmp_path, monkeypatch):
    monkeypatch.delenv("HADOOP_CONF_DIR", raising=False)
    monkeypatch.delenv("YARN_CONF_DIR", raising=False)
    monkeypatch.delenv("SPARK_YARN_STAGING_DIR", raising=False)
    assert local_path("file:///x/a%20b") == Path("/x/a%20b")
    assert local_path("x/y") == Path("x/y")
    assert local_path("hdfs:///x") is None
    assert local_path("file://host/x") is None
    assert local_path("") is None
    # With a Hadoop configuration a path without a scheme may well be remote.
    for name in ("SPARK_YARN_STAGING_DIR", "HADOOP_CONF_DIR"):
        monkeypatch.setenv(name, "/etc/hadoop")
        assert local_path("/surely/not/here") is None
        monkeypatch.delenv(name)
    monkeypatch.setenv("YARN_CONF_DIR", "/etc/hadoop")
    assert local_path("/surely/not/here") is None
    assert local_path(str(tmp_path)) == tmp_path
    assert local_path("file:///surely/not/here") == Path("/surely/not/here")
