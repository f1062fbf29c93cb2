"""What runs leave beside their target when they are killed: gone with the next run, unless its writer is alive."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path

import pytest

from sparkinfer.core.errors import SinkError
from sparkinfer.core.spec import SinkSpec
from sparkinfer.driver.checkpoints.owner import Owner
from sparkinfer.driver.listing import hadoop_path
from sparkinfer.driver.sinks.aside import SILENT_SECONDS, kept_alive
from sparkinfer.driver.write import write

pytestmark = pytest.mark.spark

THIS_RUN = "f" * 32


def leave(place: Path, run_id: str, owner: dict[str, object] | None, silent: float = 0) -> list[str]:
    """What a killed run leaves: names, sorted."""
    for kind in ("new", "old"):
        folder = place / f".out.{run_id}.{kind}"
        folder.mkdir()
        (folder / "part").write_text("half")
    if owner is not None:
        sign = place / f".out.{run_id}.alive"
        sign.write_text(json.dumps(owner))
        os.utime(sign, (time.time() - silent,) * 2)
    return [f".out.{run_id}.{kind}" for kind in ("alive", "new", "old") if owner is not None or kind != "alive"]


def names(place: Path) -> list[str]:
    return sorted(path.name for path in place.iterdir())


def test_the_next_run_removes_what_dead_runs_left_and_nothing_else(spark, tmp_path):
    here = Owner.this("").content
    dead = {**here, "process_started": "0"}
    far = {**here, "host": "elsewhere"}
    leave(tmp_path, "a" * 32, dead)
    leave(tmp_path, "b" * 32, None)
    leave(tmp_path, "c" * 32, far, silent=SILENT_SECONDS + 60)
    kept = [
        *leave(tmp_path, "1" * 32, here),  # this very process
        *leave(tmp_path, "2" * 32, far),
        *leave(tmp_path, "3" * 32, here, silent=SILENT_SECONDS + 60),  # stopped, and known to be there
    ]
    for other in (".out2." + "a" * 32 + ".new", "out.old"):  # another table's, and somebody's own
        (tmp_path / other).mkdir()
        kept.append(other)
    (tmp_path / "out").mkdir()
    write(spark.range(5).toDF("path"), SinkSpec(path=str(tmp_path / "out"), mode="overwrite"), THIS_RUN)
    assert spark.read.parquet(str(tmp_path / "out")).count() == 5
    assert names(tmp_path) == sorted([*kept, "out"])


def test_an_old_table_without_a_new_one_stays(spark, tmp_path):
    leave(tmp_path, "a" * 32, None)
    path, _ = hadoop_path(spark, str(tmp_path / "out"))
    with kept_alive(spark, path, THIS_RUN):
        assert f".out.{THIS_RUN}.alive" in names(tmp_path)
    assert names(tmp_path) == [f".out.{'a' * 32}.old"]


def test_a_run_that_was_taken_for_dead_commits_nothing(spark, tmp_path):
    path, _ = hadoop_path(spark, str(tmp_path / "out"))
    sign = tmp_path / f".out.{THIS_RUN}.alive"
    with kept_alive(spark, path, THIS_RUN) as mine:
        mine.touch()
        mine.check()
        # As from another machine, and silent.
        sign.with_name(f".{sign.name}.crc").unlink()
        sign.write_text(json.dumps({**Owner.this("").content, "host": "elsewhere"}))
        os.utime(sign, (time.time() - SILENT_SECONDS - 60,) * 2)
        with kept_alive(spark, path, "e" * 32):
            assert not sign.exists()
            mine.touch()
            assert not sign.exists()
            with pytest.raises(SinkError, match="silent for so long"):
                mine.check()
