"""What is said about a wrong job file shows no secret of it."""

from __future__ import annotations

import pytest

from sparkinfer.core.errors import SpecError
from sparkinfer.driver.config import load_job

SECRET = "Zq7secretqZ"
JOB = "source: {{images: x}}\nmodel: {{path: m.onnx}}\nsink: {{path: out}}\n{more}\n"


@pytest.mark.parametrize(
    "more",
    [
        f"spark: {{conf: {{fs.s3a.secret.key: [{SECRET}]}}}}",
        f"spark: {{conf: {{spark.hadoop.fs.azure.account.key.me: {{a: {SECRET}}}}}}}",
        f"spark: {{conf: {{fs.s3a.secret.key: [{SECRET}], spark.x.password: [{SECRET}]}}}}\nbatch: {{size: 0}}",
        f"postprocess: {{password: {SECRET}}}",
        f"errors: {{row_timeout: 's3a://a:{SECRET}@bucket'}}",
        f"sharding: 's3a://a:{SECRET}@bucket'",
    ],
)
def test_wrong_values(tmp_path, more):
    job = tmp_path / "job.yaml"
    job.write_text(JOB.format(more=more))
    with pytest.raises(SpecError) as caught:
        load_job(str(job))
    assert SECRET not in caught.value.render()


@pytest.mark.parametrize(
    "setting",
    [
        f"spark.conf.fs.s3a.secret.key=[{SECRET}",
        f"spark.conf.fs.s3a.secret.key={{a: {SECRET}}}",
        f"batch.size=s3a://a:{SECRET}@bucket",
        f"source.images.x=s3a://a:{SECRET}@bucket",
        f"password={SECRET}",
        f"sharding=s3a://AKIAIOSFODNN7EXAMPLE:{SECRET}wJalrXUtnFEMIbPxRfiCYEXAMPLEKEYwJalrXUtnFEMI@bucket/",  # is cut
    ],
)
def test_wrong_settings(setting):
    with pytest.raises(SpecError) as caught:
        load_job(None, ["source.images=x", "model.path=m.onnx", "sink.path=out", setting])
    assert SECRET not in caught.value.render()
