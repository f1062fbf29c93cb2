"""`make bench`: prepares images and models, runs the rounds, checks the outputs, writes the report.

Runs in the peers' environment, from the root of the checkout; `run.sh` makes that environment.
"""

from __future__ import annotations

import argparse
import json
import logging
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from tests.benchmarks.agreement import check_outputs
from tests.benchmarks.chart import draw_chart
from tests.benchmarks.contestants.job import Job
from tests.benchmarks.machine import cores, machine_facts, versions
from tests.benchmarks.models import MODELS, prepare_model
from tests.benchmarks.photos import SIZES, PhotoSet, prepare_photos
from tests.benchmarks.report import Measured, markdown
from tests.benchmarks.roster import CONTESTANTS, REFERENCE
from tests.benchmarks.rounds import run_rounds

log = logging.getLogger("bench")

BUILD = Path("build/bench")
DEMO = Path("build/demo")
RESULTS = Path("tests/benchmarks/results")
OWN_PYTHON = Path(".venv/bin/python")

BATCH_SIZE = 16
STAGE_ROWS = 200
OWN_PACKAGES = ["numpy", "onnxruntime-gpu", "pillow", "pyarrow", "pyspark"]
PEER_PACKAGES = [*OWN_PACKAGES, "daft", "ray", "torch", "torchvision"]


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the benchmark. Returns 1 when a contestant failed or wrote something else than the reference."""
    options = _parser().parse_args(arguments)
    logging.basicConfig(level=logging.INFO, format="%(message)s", stream=sys.stderr)
    facts = machine_facts()
    job, photos = _prepare(options)
    contestants = [c for c in CONTESTANTS if (c.name in options.only if options.only else c.default)]
    own, peers = OWN_PYTHON.absolute(), Path(sys.executable)
    outcomes = run_rounds(
        contestants,
        job,
        rounds=options.rounds,
        seed=options.seed,
        scratch=BUILD.resolve() / "runs",
        command=lambda contestant, file: contestant.command(peers, own, file),
    )
    agreements = check_outputs({name: outcome.outputs for name, outcome in outcomes.items()}, REFERENCE)
    for name, agreement in agreements.items():
        outcomes[name].failed = outcomes[name].failed or agreement.problem
    stages, stages_problem = _stages(job, own)
    measured = Measured(
        setting=_setting(options, photos, job),
        rows=photos.rows,
        contestants=contestants,
        outcomes=outcomes,
        agreements=agreements,
        stages=stages,
        stages_problem=stages_problem,
        machine=facts,
        versions=_versions(peers, own),
    )
    name = f"{options.model}-{options.size}-{options.rows}-{options.stored}"
    _write(measured, options.results, name)
    return int(any(outcome.failed for outcome in outcomes.values()))


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="tests/benchmarks/run.sh", formatter_class=argparse.ArgumentDefaultsHelpFormatter
    )
    names = [c.name for c in CONTESTANTS]
    parser.add_argument("--rows", type=int, default=1000, help="images")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--jobs", type=int, default=3, help="in each contestant's session, the first one included")
    parser.add_argument("--model", choices=MODELS, default=MODELS[0])
    parser.add_argument("--size", choices=sorted(SIZES), default="imagenet", help="of the images")
    parser.add_argument("--stored", choices=("parquet", "folder"), default="parquet", help="how the images are stored")
    parser.add_argument("--images", type=Path, default=DEMO / "images", help="photographs to make the images from")
    parser.add_argument("--only", type=_names, default=(), help=f"contestants, with commas; of {', '.join(names)}")
    parser.add_argument("--seed", type=int, default=0, help="of the order in each round")
    parser.add_argument("--results", type=Path, default=RESULTS, help="folder for the report")
    return parser


def _names(text: str) -> tuple[str, ...]:
    names = tuple(text.split(","))
    known = [c.name for c in CONTESTANTS]
    for name in names:
        if name not in known:
            raise argparse.ArgumentTypeError(f"no contestant {name!r}; there are {', '.join(known)}")
    return names


def _prepare(options: argparse.Namespace) -> tuple[Job, PhotoSet]:
    photos = prepare_photos(
        options.images,
        BUILD.resolve() / "images",
        rows=options.rows,
        size=options.size,
        stored=options.stored,
        workers=cores(),
    )
    model = prepare_model(options.model, DEMO.resolve(), BUILD.resolve() / "models", Path(photos.path))
    job = Job(
        images=photos.path,
        stored=photos.stored,
        onnx=str(model.onnx),
        torchscript=str(model.torchscript),
        recipe=model.recipe,
        workers=cores(),
        batch_size=BATCH_SIZE,
        output="",
        jobs=options.jobs,
    )
    return job, photos


def _stages(job: Job, own: Path) -> tuple[dict[str, float], str | None]:
    """The stage table of sparkinfer's chain, or why there is none."""
    file = BUILD / "stages.json"
    job.save(file)
    command = [own, "-m", "tests.benchmarks.stages", file, str(STAGE_ROWS)]
    answer = subprocess.run(command, capture_output=True, text=True, check=False)
    if answer.returncode:
        return {}, (answer.stderr.strip().splitlines() or ["no output"])[-1]
    return json.loads(answer.stdout), None


def _setting(options: argparse.Namespace, photos: PhotoSet, job: Job) -> dict[str, str]:
    longer, shorter = SIZES[photos.size]
    return {
        "model": options.model,
        "images": f"{photos.rows:,} JPEGs of {longer} x {shorter}",
        "image bytes": f"{photos.image_bytes / 1e6:,.1f} MB, {photos.image_bytes / photos.rows / 1e3:,.0f} kB each",
        "made from": f"{photos.photographs} photographs",
        "stored as": photos.stored,
        "rounds": str(options.rounds),
        "jobs in a session": str(job.jobs),
        "workers": f"{job.workers}, each with one intra-op thread",
        "batch size": str(job.batch_size),
    }


def _versions(peers: Path, own: Path) -> dict[str, str]:
    ours = versions(own, OWN_PACKAGES)
    both = versions(peers, PEER_PACKAGES)
    return {
        name: version if ours.get(name, version) == version else f"{version} (sparkinfer: {ours[name]})"
        for name, version in both.items()
    }


def _write(measured: Measured, folder: Path, name: str) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    draw_chart(measured, folder / f"{name}.png")
    (folder / f"{name}.md").write_text(markdown(measured, f"{name}.png"), "utf-8")
    raw: dict[str, Any] = {
        "setting": measured.setting,
        "runs": {key: [asdict(run) for run in outcome.runs] for key, outcome in measured.outcomes.items()},
        "failed": {key: outcome.failed for key, outcome in measured.outcomes.items() if outcome.failed},
        "stages_ms": measured.stages,
        "machine": measured.machine,
        "versions": measured.versions,
    }
    (folder / f"{name}.json").write_text(json.dumps(raw, indent=1) + "\n", "utf-8")
    log.info("%s", folder / f"{name}.md")


if __name__ == "__main__":
    sys.exit(main())
