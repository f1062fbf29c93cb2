"""A few images through the whole chain, with no Spark: `python -m sparkinfer.executor.validation`. Driver side.

The driver runs this in a process of its own, so that neither a framework nor a poison image enters the driver, and
compares what comes out with what the cluster answers (`driver.validate`).

Request on stdin, pickled by the driver for its own child: a `TaskPlan` and a `pyarrow.RecordBatch`. Answer on stdout,
one line of JSON: `rows`, as `task.run_task` gives them with every class in `top_k`, or `error` with the fields of a
`UserError`.
"""

from __future__ import annotations

import json
import os
import pickle
import sys
from dataclasses import replace
from typing import Any

from sparkinfer.core.errors import UserError
from sparkinfer.executor.inspection import error_to_dict
from sparkinfer.executor.postprocess import effective_classes
from sparkinfer.executor.task import run_task

__all__ = ["main"]


def main() -> None:
    """Answers one request. What frameworks print meanwhile goes to stderr."""
    answers = os.dup(1)
    os.dup2(2, 1)
    plan, batch = pickle.load(sys.stdin.buffer)  # noqa: S301 - from our own parent
    classes = effective_classes(plan.num_classes, plan.postprocess.activation)
    whole = replace(plan, guard="always", postprocess=plan.postprocess.model_copy(update={"top_k": classes}))
    answer: dict[str, Any]
    try:
        answer = {"rows": [row for out in run_task([batch], whole) for row in out.to_pylist()]}
    except UserError as error:
        answer = {"error": error_to_dict(error)}
    with os.fdopen(answers, "w") as file:
        file.write(f"{json.dumps(answer)}\n")


if __name__ == "__main__":
    main()
