"""A run whose every figure is chosen by hand, for tests of the report without Spark."""

from __future__ import annotations

import base64
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from sparkinfer.core.errors import BudgetExceededError
from sparkinfer.core.model_spec import Artifact, ModelSpec, Signature, TensorInfo
from sparkinfer.core.spec import JobSpec
from sparkinfer.core.telemetry import Figures, TaskState
from sparkinfer.driver.model import Inspected
from sparkinfer.driver.reporting.content import Run, content_of
from sparkinfer.driver.reporting.html import page
from sparkinfer.driver.reporting.images import Thumbnails
from sparkinfer.driver.reporting.table import FailedRow, LabelCount, Prediction, TableFigures
from sparkinfer.driver.watching.devices import DeviceRecord
from sparkinfer.driver.watching.telemetry import Sample, Snapshot, TaskRecord
from sparkinfer.executor.table_summary import CONFIDENCE_BINS
from tests.images import encode, noise

__all__ = ["HOSTILE", "content", "hostile_page", "run", "sample_page", "table"]

HOSTILE = """</style></title><script>document.title='owned'</script><img src=http://127.0.0.1:9 onerror="alert('1')">"""
"""What a file name or a message may be."""

VERSIONS = {"sparkinfer": "0.1.0", "spark": "4.3.0", "python": "3.11.2"}
ENVIRONMENT = {"master": "local[2]", "platform": "Linux", "settings": {"spark.executor.memory": "8g"}}

GPU = DeviceRecord(
    host="node-1",
    kind="cuda",
    name="cuda:0",
    uuid="GPU-1",
    memory_total_bytes=24_000_000_000,
    peak_memory_used_bytes=6_000_000_000,
    mean_utilisation=0.5,
    busy_share=0.6,
)

ROWS, SECONDS, PARTITIONS = 2_000, 20.0, 8
ERRORS = {"TRUNCATED": 60, "UNSUPPORTED_FORMAT": 40}


def figures() -> Figures:
    """Each image: 4 ms of decoding, 1 ms of preprocessing; each batch of 50: 40 ms of inference."""
    found = Figures(rows=ROWS, errors=dict(ERRORS), image_bytes=ROWS * 100_000)
    for _ in range(ROWS):
        found.stages["decode"].observe(0.004)
        found.stages["preprocess"].observe(0.001)
    for _ in range(ROWS // 50):
        found.stages["infer"].observe(0.040)
        found.batch_images.observe(50)
    found.model_loads, found.model_load_seconds, found.busy_seconds = 2, 0.5, 24.0
    return found


def run(*, error: BaseException | None = None, name: str = "product-photos", **outcome: Any) -> Run:
    """2,000 images in 20 s, 8 partitions, 100 failed rows."""
    spec = JobSpec.model_validate(
        {
            "name": name,
            "source": {"images": "photos"},
            "model": {"path": "resnet50.onnx", "version": "3"},
            "sink": {"path": "out/predictions", "options": {"password": "hunter2"}},
            "report": "out/report",
        }
    )
    tensor = TensorInfo(name="images", shape=(None, 224, 224, 3), dtype="uint8")
    model = Inspected(
        spec=ModelSpec(path="resnet50.onnx", format="onnx", version="3"),
        preprocess=spec.preprocess,
        inside=None,
        path=Path("resnet50.onnx"),
        digest="ab" * 32,
        artifact=Artifact(digest="ab" * 32, size=102_500_000, suffix=".onnx"),
        signature=Signature(input=tensor, scores=tensor, num_classes=1000),
        labels=None,
    )
    snapshot = Snapshot(
        run_id="c0ffee" * 5,
        seconds=SECONDS + 1,
        active_seconds=SECONDS,
        rows=ROWS,
        errors=ERRORS,
        figures=figures(),
        task_seconds=2 * SECONDS,
    )
    # Partition i takes 3 + i/2 s: the mean is 4.75 s, the longest 6.5 s.
    records = [
        TaskRecord(
            stage=3,
            partition=i,
            attempt_number=0,
            host="node-1",
            state=TaskState.ENDED,
            seconds=3 + i / 2,
            rows=ROWS // PARTITIONS,
            errors={"TRUNCATED": i},
            image_bytes=25_000_000 + 1_000_000 * i,
            infer_seconds=1.0,
            decode_seconds=2.0,
            read_seconds=0.1,
        )
        for i in range(PARTITIONS)
    ]
    # 100 rows in each second, but for a stand-still in the eleventh and 200 in the twelfth.
    counts = [100 * second if second != 11 else 1000 for second in range(21)]
    history = [Sample(float(second), rows, rows // 20, 0.6) for second, rows in enumerate(counts)]
    return Run(
        spec=spec,
        run_id=snapshot.run_id,
        model=model,
        started=datetime(2026, 2, 3, 4, 5, 6, tzinfo=UTC),
        phases={"start": 4.0, "listing": 1.0, "predict and write": SECONDS},
        snapshot=snapshot,
        records=records,
        history=history,
        devices=[GPU],
        outcome={"rows": ROWS, "errors": ERRORS, "output": "out/predictions", "seconds": 25.5, **outcome},
        error=error,
    )


def table(path: str = "photos/cat{}.jpg", message: str = "JPEG: the data ends early") -> TableFigures:
    """1,900 good rows: 19 in each bin of the confidence."""
    return TableFigures(
        rows=ROWS,
        errors=ERRORS,
        confidence=(19,) * CONFIDENCE_BINS,
        outside=0,
        labels=(LabelCount(281, "tabby", 950), LabelCount(285, "Egyptian cat", 475), LabelCount(7, None, 19)),
        more_labels=True,
        sample=tuple(Prediction(path.format(i), 281, "tabby", 0.5 + i / 50) for i in range(12)),
        least=tuple(Prediction(path.format(i), 285, "Egyptian cat", 0.01 * i) for i in range(12, 18)),
        failed=(
            *(FailedRow(path.format(i), "TRUNCATED", "decode", message) for i in range(20, 24)),
            FailedRow("photos/notes.txt", "UNSUPPORTED_FORMAT", "decode", "not an image (begins with b'no image')"),
        ),
    )


def content(**changes: Any) -> dict[str, Any]:
    """The report of `run` and `table`."""
    return content_of(run(**changes), table(), VERSIONS, ENVIRONMENT)


def pictures(found: TableFigures) -> Thumbnails:
    """A picture of noise for every good row, and for one of the failed."""
    paths = [*(row.path for row in (*found.sample, *found.least)), found.failed[0].path]
    return Thumbnails(
        jpegs={
            str(path): base64.b64encode(encode(noise((192, 120 + 3 * i), i), "JPEG", quality=75)).decode()
            for i, path in enumerate(paths)
        },
        problems={"photos/notes.txt": "not an image that can be decoded"},
    )


def sample_page() -> str:
    """A page with everything on it."""
    return page(content(), pictures(table()))


def hostile_page() -> str:
    """A page of a run that failed, and whose every text tries to become markup."""
    found = table(path=HOSTILE + "{}", message=HOSTILE)
    error = BudgetExceededError(HOSTILE, hint=HOSTILE)
    evil = run(name=HOSTILE, error=error, output=HOSTILE)
    return page(content_of(evil, found, {"sparkinfer": HOSTILE}, {"settings": {HOSTILE: HOSTILE}}), pictures(found))
