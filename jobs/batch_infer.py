"""spark-submit entry point: `spark-submit jobs/batch_infer.py JOB.yaml [--set KEY=VALUE ...]`.

Takes what `sparkinfer run` takes. Nothing that executors need may be defined here: a function of `__main__` would be
pickled by value.
"""

from __future__ import annotations

import sys

from sparkinfer.cli import main

if __name__ == "__main__":
    status = main(["run", *sys.argv[1:]])
    if status:
        sys.exit(status)
