"""How many task attempts of an application have failed."""

from __future__ import annotations

from pyspark.sql import SparkSession

__all__ = ["failed_attempts"]


def failed_attempts(spark: SparkSession) -> int:
    """Of all jobs so far, as Spark's own status tracker knows it once its event queue is empty."""
    context = spark.sparkContext
    context._jsc.sc().listenerBus().waitUntilEmpty()
    tracker = context.statusTracker()
    # By their numbers, which are consecutive: every run has a job group of its own.
    jobs = [tracker.getJobInfo(job) for job in range(context._jsc.sc().dagScheduler().numTotalJobs())]
    stages = {stage for job in jobs if job for stage in job.stageIds}
    return sum(info.numFailedTasks for stage in stages if (info := tracker.getStageInfo(stage)))
