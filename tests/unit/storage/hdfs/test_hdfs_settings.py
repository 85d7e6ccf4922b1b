"""URLs and settings of HDFS."""

from __future__ import annotations

import getpass

import pytest

from streamhouse_spark import InvalidOptionError
from streamhouse_spark.storage.hdfs.storage import HdfsAddress

URL = "hdfs://namenode:8020/some/path"
TOKEN = "JAAJ-canary-4711"


@pytest.mark.parametrize(
    ("url", "given", "namenodes", "path"),
    [
        (URL, None, ("http://namenode:9870",), "some/path"),
        ("hdfs://namenode", None, ("http://namenode:9870",), ""),
        ("hdfs://namenode/", None, ("http://namenode:9870",), ""),
        ("hdfs://name-service_1/a b/", "nn1:50070", ("http://nn1:50070",), "a b"),
        (URL, "nn1:9870, https://nn2:9871/", ("http://nn1:9870", "https://nn2:9871"), "some/path"),
    ],
)
def test_a_url_tells_the_namenode_and_a_setting_where_it_answers(url, given, namenodes, path):
    found, root = HdfsAddress.parse(url, {} if given is None else {"hdfs.webhdfs.address": given})
    assert (found.namenodes, root) == (namenodes, path)


@pytest.mark.parametrize(
    "url", ["hdfs:///path", "hdfs:/path", "hdfs://user@host/p", "hdfs://host/a//b", "hdfs://host/../b", "hdfs://h/a:b"]
)
def test_bad_urls(url):
    with pytest.raises(InvalidOptionError) as told:
        HdfsAddress.parse(url, {})
    assert "user@" not in str(told.value)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"hdfs.usr": "x"}, "did you mean hdfs.user"),
        ({"hdfs.webhdfs.address": "ftp://host"}, "expected a URL"),
        ({"hdfs.webhdfs.address": "http://user:pw@host"}, "put credentials into hdfs.user"),
        ({"hdfs.request-timeout": "soon"}, "expected a number of seconds"),
        ({"hdfs.kerberos_ticket": "/tmp/krb5cc"}, r"Kerberos is not supported; get a delegation token"),
        ({"hdfs.delegation-token": TOKEN, "hdfs.user": "ada"}, "exclude each other"),
        ({"hdfs.delegation-token-file": "/t", "hdfs.user": "ada"}, "exclude each other"),
        ({"hdfs.delegation-token-file": "/t", "hdfs.delegation-token": TOKEN}, "exclude each other"),
    ],
)
def test_bad_settings(given, message):
    with pytest.raises(InvalidOptionError, match=message) as told:
        HdfsAddress.parse(URL, given)
    assert TOKEN not in str(told.value)


def test_the_user_is_the_one_that_hadoop_would_name(monkeypatch):
    monkeypatch.delenv("HADOOP_USER_NAME", raising=False)
    assert HdfsAddress.parse(URL, {})[0].user == getpass.getuser()
    monkeypatch.setenv("HADOOP_USER_NAME", "ada")
    assert HdfsAddress.parse(URL, {})[0].user == "ada"
    assert HdfsAddress.parse(URL, {"hdfs.user": "eve"})[0].user == "eve"
    assert HdfsAddress.parse(URL, {"hdfs.delegation-token": TOKEN})[0].user is None


def test_a_user_without_a_name_is_asked_for(monkeypatch):
    def nobody() -> str:
        raise OSError("No username set in the environment")

    monkeypatch.delenv("HADOOP_USER_NAME", raising=False)
    monkeypatch.setattr(getpass, "getuser", nobody)
    with pytest.raises(InvalidOptionError, match=r"has no name .*: set hdfs\.user"):
        HdfsAddress.parse(URL, {})


def test_the_text_form_shows_no_secret():
    assert TOKEN not in repr(HdfsAddress.parse(URL, {"hdfs.delegation-token": TOKEN})[0])
