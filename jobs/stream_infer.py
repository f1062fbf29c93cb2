"""spark-submit entry point for a job that never ends: `spark-submit jobs/stream_infer.py JOB.yaml [--set KEY=VALUE]`.

Takes what `sparkinfer run` takes, and needs `resume.checkpoint`. Looks for new input every `resume.trigger` (30 s
where the job file says nothing) and predicts it; a termination signal ends it after the snapshot at hand. Nothing that
executors need may be defined here: a function of `__main__` would be pickled by value.
"""

from __future__ import annotations

import sys

from sparkinfer.cli import main

if __name__ == "__main__":
    status = main(["run", "--continuous", *sys.argv[1:]])
    if status:
        sys.exit(status)
