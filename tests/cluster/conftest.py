"""One Hadoop cluster for all tests of this folder, with photographs, model and Python environment in HDFS."""

from __future__ import annotations

import io
import os
import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from PIL import Image

from tests.cluster.yarn import DEMO, ROOT, SCRIPT, Hadoop

PARQUET_FILES = 4
MISSING = 2
"""Exit status of the script that starts the cluster, where something is not installed."""


@pytest.fixture(scope="session")
def photos(tmp_path_factory) -> Path:
    """What is put into HDFS: `images/` (12 photographs, one damaged file, one empty), `parquet/` (the photographs,
    by the same names)."""
    place = tmp_path_factory.mktemp("photos")
    (place / "images" / "more").mkdir(parents=True)
    (place / "parquet").mkdir()
    rows = []
    for number in range(12):
        original = sorted((DEMO / "images").iterdir())[number % 11]
        with Image.open(original) as picture:
            small = picture.convert("RGB").resize((256, 256 + number))
        file = io.BytesIO()
        small.save(file, "JPEG")
        folder = place / "images" / ("more" if number % 2 else "")
        (folder / f"photo {number:02d}.jpg").write_bytes(file.getvalue())
        rows.append({"path": f"photo {number:02d}.jpg", "content": file.getvalue()})
    (place / "images" / "damaged.jpg").write_bytes(rows[0]["content"][:2000])
    (place / "images" / "empty.jpg").write_bytes(b"")
    for part in range(PARQUET_FILES):
        pq.write_table(pa.Table.from_pylist(rows[part::PARQUET_FILES]), place / "parquet" / f"part-{part}.parquet")
    return place


@pytest.fixture(scope="session")
def hadoop(tmp_path_factory, photos):
    """The cluster; ended with everything that came of it."""
    place = tmp_path_factory.mktemp("cluster")
    folder = place / "hadoop"
    archive = place / "sparkinfer.tar.gz"
    said = place / "packing.log"
    packing = _pack(archive, said)
    try:
        command = [sys.executable, str(SCRIPT), "--folder", str(folder)]
        started = subprocess.run([*command, "start"], check=False, capture_output=True, text=True)
        if started.returncode == MISSING:
            _missing(started.stderr)
        assert started.returncode == 0, started.stderr
        try:
            cluster = Hadoop(folder)
            cluster.dfs("-mkdir", "-p", "/env", "/jobs", "/spark-events", "/out")
            cluster.dfs("-put", photos / "images", photos / "parquet", *DEMO.glob("*.onnx"), DEMO / "labels.txt", "/")
            assert packing.wait() == 0, said.read_text("utf-8")
            cluster.dfs("-put", archive, "/env")
            yield cluster
        finally:
            subprocess.run([*command, "stop"], check=True)
    finally:
        packing.kill()
        packing.wait()


def _pack(archive: Path, said: Path) -> subprocess.Popen[bytes]:
    """Starts `deploy/pack_env.sh`, with the environment kept between runs."""
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "sparkinfer" / "executor-env"
    environment = {**os.environ, "PYTHON": sys.executable, "ENV_FOLDER": str(cache)}
    with said.open("wb") as log:
        return subprocess.Popen([ROOT / "deploy" / "pack_env.sh", archive], stdout=log, stderr=log, env=environment)


def _missing(why: str) -> None:
    if os.environ.get("CI"):
        pytest.fail(why)
    pytest.skip(why)
