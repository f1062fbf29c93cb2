"""The class archive: made once, adopted when it is whole, used from then on."""

from __future__ import annotations

from pathlib import Path

import pytest

from sparkinfer.driver.spark.jvm import archive_options


@pytest.fixture
def java(tmp_path: Path) -> Path:
    home = tmp_path / "java"
    home.mkdir()
    (home / "release").write_text('JAVA_VERSION="17.0.15"')
    return home


def named(options: str, option: str) -> Path:
    (found,) = (word.split("=", 1)[1] for word in options.split() if word.startswith(f"-XX:{option}="))
    return Path(found)


def test_the_first_run_leaves_an_archive_that_a_later_run_uses(java: Path, tmp_path: Path) -> None:
    folder = tmp_path / "cache"
    left = named(archive_options(java, folder), "ArchiveClassesAtExit")
    assert left.parent == folder
    left.write_bytes(b"classes")
    written = left.stat().st_mtime
    assert archive_options(java, folder, now=written + 1) == ""
    used = named(archive_options(java, folder, now=written + 3600), "SharedArchiveFile")
    assert used.read_bytes() == b"classes"
    assert not left.exists()
    assert named(archive_options(java, folder), "SharedArchiveFile") == used


def test_another_java_has_another_archive(java: Path, tmp_path: Path) -> None:
    first = named(archive_options(java, tmp_path / "cache"), "ArchiveClassesAtExit")
    (java / "release").write_text('JAVA_VERSION="21.0.1"')
    assert named(archive_options(java, tmp_path / "cache"), "ArchiveClassesAtExit").stem != first.stem


def test_a_folder_that_others_may_write_to_is_not_used(java: Path, tmp_path: Path) -> None:
    folder = tmp_path / "cache"
    folder.mkdir(mode=0o777)
    folder.chmod(0o777)
    assert archive_options(java, folder) == ""
    link = tmp_path / "link"
    link.symlink_to(tmp_path)
    assert archive_options(java, link) == ""


def test_a_run_that_left_nothing_is_followed_by_another(java: Path, tmp_path: Path) -> None:
    folder = tmp_path / "cache"
    archive_options(java, folder)
    (claim,) = folder.glob("*.claim")
    tomorrow = claim.stat().st_mtime + 48 * 3600
    assert "ArchiveClassesAtExit" in archive_options(java, folder, now=tomorrow)
