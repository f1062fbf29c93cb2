"""Local folders: what is a row, what is left out, what is told. No Spark."""

from __future__ import annotations

import os
import socket
from collections import Counter

import pytest

from sparkinfer.core.errors import SourceError
from sparkinfer.driver.sources.local_files import look_up, walk


def listed(folder, **options):
    left_out = Counter()
    rows = {row.path.removeprefix(f"file:{folder}/"): row for row in walk(str(folder), left_out, **options)}
    return rows, dict(left_out)


def write(folder, *names, content=b"x"):
    for name in names:
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)


def test_every_visible_file_is_a_row_empty_ones_too(tmp_path):
    write(tmp_path, "a b.jpg", "100%.jpg", "фото.jpg", "label=cat/x.jpg", "deep/er/c:d#?[1].jpg", content=b"123")
    write(tmp_path, "empty.jpg", content=b"")
    os.utime(tmp_path / "empty.jpg", ns=(0, 1_600_000_000_123_456_000))
    rows, left_out = listed(tmp_path)
    assert {name: row.length for name, row in rows.items()} == {
        "a b.jpg": 3,
        "100%.jpg": 3,
        "фото.jpg": 3,
        "label=cat/x.jpg": 3,
        "deep/er/c:d#?[1].jpg": 3,
        "empty.jpg": 0,
    }
    assert rows["empty.jpg"].modified == 1_600_000_000_123_456
    assert not any(row.problem for row in rows.values())
    assert left_out == {}


def test_hidden_names_are_counted(tmp_path):
    write(tmp_path, "_SUCCESS", ".DS_Store", "sub/.x", "a.jpg", "_temporary/0/b.jpg", ".git/c", "_k=v/d.jpg")
    rows, left_out = listed(tmp_path)
    assert set(rows) == {"a.jpg", "_k=v/d.jpg"}
    assert left_out == {"hidden": 3, "hidden folders": 2}


def test_not_recursive(tmp_path):
    write(tmp_path, "a.jpg", "sub/b.jpg")
    assert set(listed(tmp_path, recursive=False)[0]) == {"a.jpg"}


def test_links_are_followed_but_never_in_circles(tmp_path):
    write(tmp_path, "real/a.jpg", "inside/b.jpg")
    inside = tmp_path / "inside"
    (inside / "file.jpg").symlink_to(tmp_path / "real" / "a.jpg")
    (inside / "folder").symlink_to(tmp_path / "real")
    (inside / "up").symlink_to(tmp_path)
    (inside / "self").symlink_to(inside)
    rows, left_out = listed(inside)
    assert set(rows) == {"b.jpg", "file.jpg", "folder/a.jpg"}
    assert left_out == {"link loops": 2}


def test_a_dangling_link_is_a_row_that_cannot_be_read(tmp_path):
    (tmp_path / "gone.jpg").symlink_to(tmp_path / "nowhere.jpg")
    rows, _ = listed(tmp_path)
    assert rows["gone.jpg"].problem == "no such file"
    assert rows["gone.jpg"].length is None


def test_pipes_and_sockets_are_left_out(tmp_path, monkeypatch):
    os.mkfifo(tmp_path / "pipe.jpg")
    monkeypatch.chdir(tmp_path)  # the path of a socket is short
    with socket.socket(socket.AF_UNIX) as unix:
        unix.bind("s.jpg")
        rows, left_out = listed(tmp_path)
    assert rows == {}
    assert left_out == {"special": 2}


def test_names_that_are_not_utf8_are_rows_of_their_own(tmp_path):
    for name in (b"/\xff.jpg", b"/\xfe.jpg", "/\u00e9.jpg".encode()):
        with open(os.fsencode(tmp_path) + name, "wb"):  # noqa: PTH123
            pass
    rows, _ = listed(tmp_path)
    assert set(rows) == {"\\xff.jpg", "\\xfe.jpg", "\u00e9.jpg"}
    assert rows["\\xff.jpg"].problem == "the name is not UTF-8, so that Java cannot open it"
    assert rows["\u00e9.jpg"].problem is None


def test_a_folder_that_may_not_be_listed_is_told(tmp_path, monkeypatch):
    def refuse(folder):
        raise PermissionError(13, "Permission denied", folder)

    monkeypatch.setattr(os, "scandir", refuse)
    with pytest.raises(SourceError, match="cannot be listed: permission denied") as caught:
        listed(tmp_path)
    assert caught.value.hint


def test_a_folder_deleted_meanwhile_has_no_files(tmp_path):
    assert listed(tmp_path / "gone") == ({}, {})


def test_look_up(tmp_path):
    write(tmp_path, "a.jpg", content=b"12")
    os.mkfifo(tmp_path / "pipe")
    assert look_up(f"{tmp_path}/a.jpg")[:2] == (f"file:{tmp_path}/a.jpg", 2)
    assert look_up(f"{tmp_path}/b.jpg").problem == "no such file"
    assert look_up(str(tmp_path)).problem == "is a folder"
    assert look_up(f"{tmp_path}/pipe").problem == "is a pipe, a socket or a device"
    assert "null" in str(look_up("/a\0b").problem)
