"""The `sparkinfer` command. Driver side; imports no pyspark until a job is known to be right.

Exit status: 0 done; 2 the spec or the arguments are wrong; 3 more rows failed than `errors.max_fraction` allows;
1 anything else. A person sees what is wrong, never a stack trace that was not asked for.
"""

from __future__ import annotations

import contextlib
import signal
import tempfile
import traceback
from collections.abc import Iterator, Sequence
from threading import Event
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

import sparkinfer
from sparkinfer.core.errors import SparkInferError, SpecError
from sparkinfer.core.secrets import redact_logs, redacted
from sparkinfer.driver.last_cause import last_cause
from sparkinfer.driver.specs.flags import flags_named, preprocess_flag

if TYPE_CHECKING:
    from sparkinfer.core.spec import JobSpec
    from sparkinfer.driver.model import Inspected

__all__ = ["app", "last_cause", "main"]

MAX_LABELS_SHOWN = 5
DEFAULT_TRIGGER = "30s"

app = typer.Typer(
    help="Turns a table or a folder of images into a prediction table, with Spark.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
model_app = typer.Typer(help="Looks at model files.", no_args_is_help=True)
app.add_typer(model_app, name="model")

Debug = Annotated[bool, typer.Option("--debug", help="Show the stack trace of a failure.")]
Sets = Annotated[
    list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="Any key of the job file: model.version=3")
]
Arch = Annotated[str | None, typer.Option("--arch", metavar="NAME", help="torchvision architecture of a state_dict.")]
Labels = Annotated[str | None, typer.Option("--labels", metavar="FILE", help="Labels, text or JSON.")]
Preprocess = Annotated[str | None, typer.Option("--preprocess", metavar="NAME", help="Preset, by name.")]
Block = Annotated[
    str | None,
    typer.Option(
        "--preprocess",
        metavar="NAME|BLOCK",
        help="What makes the model's input: a preset's name, or keys of the preprocess block: '{layout: nhwc}'. "
        "By default what the file says of itself, else imagenet.",
    ),
]
Input = Annotated[str | None, typer.Option("--input", metavar="NAME", help="Image input; the only one by default.")]
Scores = Annotated[
    str | None,
    typer.Option(
        "--output-name",
        metavar="NAME",
        help="Output with the class scores, as model.output in a job; the first two-dimensional one by default.",
    ),
]


def main(args: Sequence[str] | None = None) -> int:
    """Runs the command line and returns its exit status.

    Args:
        args: without the program's name; those of the process by default.
    """
    redact_logs()
    try:
        app(args=args, prog_name="sparkinfer")
    except SystemExit as exit_request:
        return exit_request.code if isinstance(exit_request.code, int) else 0
    return 0


def _show_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"sparkinfer {sparkinfer.__version__}")
        raise typer.Exit


@app.callback()
def _common(
    _version: Annotated[
        bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Show the version.")
    ] = False,
) -> None:
    """Turns a table or a folder of images into a prediction table, with Spark."""


@app.command()
def run(
    arguments: Annotated[
        list[str] | None, typer.Argument(metavar="JOB.yaml", help="Job file; flags and --set win over it.")
    ] = None,
    sets: Sets = None,
    images: Annotated[
        list[str] | None, typer.Option("--images", metavar="PATH...", help="Folders, files or globs of images.")
    ] = None,
    parquet: Annotated[
        list[str] | None, typer.Option("--parquet", metavar="PATH...", help="Parquet with a column of image bytes.")
    ] = None,
    model: Annotated[
        str | None, typer.Option("--model", metavar="FILE", help="ONNX, TorchScript or state_dict.")
    ] = None,
    output: Annotated[
        str | None, typer.Option("--output", metavar="PATH", help="Folder of the prediction table.")
    ] = None,
    labels: Labels = None,
    arch: Arch = None,
    batch_size: Annotated[
        str | None, typer.Option("--batch-size", metavar="N|auto", help="Images per model call.")
    ] = None,
    preprocess: Preprocess = None,
    engine: Annotated[
        str | None, typer.Option("--engine", metavar="NAME", help="arrow, pandas or predict_batch_udf.")
    ] = None,
    master: Annotated[str | None, typer.Option("--master", metavar="URL", help="Spark master: local[*], yarn.")] = None,
    mode: Annotated[
        str | None,
        typer.Option("--mode", metavar="MODE", help="If the output exists: error, overwrite, append, merge."),
    ] = None,
    limit: Annotated[int | None, typer.Option("--limit", metavar="N", help="At most so many rows.")] = None,
    keep: Annotated[
        list[str] | None, typer.Option("--keep", metavar="COL", help="Input column to keep; may be repeated.")
    ] = None,
    checkpoint: Annotated[
        str | None,
        typer.Option("--checkpoint", metavar="DIR", help="Go on after a crash; what is done stands there."),
    ] = None,
    continuous: Annotated[
        bool, typer.Option("--continuous", help="Never end: look for new input every resume.trigger, or 30 s.")
    ] = False,
    retry_errors: Annotated[
        bool, typer.Option("--retry-errors", help="Run only the failed rows of the output again, in their places.")
    ] = False,
    retry_code: Annotated[
        list[str] | None,
        typer.Option("--retry-code", metavar="CODE", help="Of the failed rows, those with this code; may be repeated."),
    ] = None,
    report: Annotated[
        str | None, typer.Option("--report", metavar="DIR", help="Folder for report.html and report.json.")
    ] = None,
    progress_every: Annotated[
        str | None,
        typer.Option("--progress-every", metavar="TIME", help="Between two progress lines without a terminal: 10s."),
    ] = None,
    quiet: Annotated[bool, typer.Option("--quiet", help="Print nothing but errors.")] = False,
    debug: Debug = False,
) -> None:
    """Runs a job: a job file, or --images, --model and --output, or both."""
    with _exit_status(debug=debug):
        from sparkinfer.driver.config import load_job

        job_file, images, parquet = _sort_arguments(arguments or [], images or [], parquet or [])
        flags: dict[str, Any] = {
            "source.images": images or None,
            "source.parquet": parquet or None,
            "source.limit": limit,
            "source.keep": keep or None,
            "model.path": model,
            "model.labels": labels,
            "model.arch": arch,
            "batch.size": int(batch_size) if batch_size and batch_size.isdecimal() else batch_size,
            "preprocess": preprocess,
            "engine": engine,
            "spark.master": master,
            "sink.path": output,
            "sink.mode": mode,
            "resume.checkpoint": checkpoint,
            "report": report,
            "progress.every": progress_every,
        }
        spec = load_job(job_file, sets or (), flags)
        if continuous:
            spec = _continuous(spec)

        from sparkinfer.driver.job import run_job

        with _stopped_by_signals(continuous=spec.resume is not None and spec.resume.trigger is not None) as stop:
            codes = retry_code or () if retry_errors or retry_code else None
            run_job(spec, Console(quiet=quiet), stop, retry_codes=codes)


@app.command()
def validate(
    job: Annotated[str | None, typer.Argument(metavar="JOB.yaml", help="Job file; --set wins over it.")] = None,
    sets: Sets = None,
    debug: Debug = False,
) -> None:
    """Runs 10 real images through everything and writes nothing. Exit status 2 where the job is not ready."""
    with _exit_status(debug=debug):
        from sparkinfer.driver.config import load_job

        spec = load_job(job, sets or ())

        from sparkinfer.driver.validate import validate_command

        validate_command(spec, Console())


@app.command()
def plan(
    job: Annotated[str | None, typer.Argument(metavar="JOB.yaml", help="Job file; --set wins over it.")] = None,
    sets: Sets = None,
    profile: Annotated[
        str | None, typer.Option("--profile", metavar="FILE", help="Settings, as for spark-submit --properties-file.")
    ] = None,
    cluster: Annotated[
        str | None, typer.Option(metavar="NODES", help="Its nodes: nodes=5,cores=16,memory=64g,gpus=2")
    ] = None,
    files: Annotated[
        int | None, typer.Option(min=1, max=100_000_000, metavar="N", help="Plan for so many files, not the input.")
    ] = None,
    mean_size: Annotated[str, typer.Option(metavar="SIZE", help="Of a file, with --files.")] = "110 kB",
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
    debug: Debug = False,
) -> None:
    """Says what a job would do, and what does not fit; runs nothing. Exit status 2 where it cannot work."""
    with _exit_status(debug=debug):
        from sparkinfer.driver.config import load_job

        spec = load_job(job, sets or ())

        from sparkinfer.driver.planning.show import plan_command

        plan_command(spec, profile=profile, cluster=cluster, files=files, mean_size=mean_size, as_json=as_json)


@model_app.command("inspect")
def inspect_model(
    file: Annotated[str, typer.Argument(metavar="FILE", help="Model file.")],
    arch: Arch = None,
    preprocess: Block = None,
    input_name: Input = None,
    output_name: Scores = None,
    debug: Debug = False,
) -> None:
    """Shows what a model file says of itself."""
    with _exit_status(debug=debug), flags_named():
        from sparkinfer.driver.model import model

        block = preprocess_flag(preprocess)
        found = model(file, arch=arch, preprocess=block, input=input_name, output=output_name).inspected
        Console().print(_model_table(found))


@model_app.command("optimize")
def optimize_model(
    file: Annotated[str, typer.Argument(metavar="FILE", help="ONNX model.")],
    images: Annotated[str, typer.Option(help="Folder or glob of your own images, local: some hundred.")],
    output: Annotated[str | None, typer.Option(help="File to write; beside the model by default.")] = None,
    preprocess: Block = None,
    labels: Labels = None,
    input_name: Input = None,
    output_name: Scores = None,
    fold: Annotated[bool, typer.Option(help="Put normalisation into the graph.")] = True,
    fp16: Annotated[bool, typer.Option("--fp16", help="Convert to FP16 too.")] = False,
    int8: Annotated[bool, typer.Option("--int8", help="Quantise to INT8 too, calibrated on the images.")] = False,
    min_agreement: Annotated[float, typer.Option(help="Share of equal top classes that INT8 must reach.")] = 0.98,
    threads: Annotated[int, typer.Option(help="Threads to measure with.")] = 1,
    debug: Debug = False,
) -> None:
    """Makes a model smaller and faster, and says what that changes on your images."""
    with _exit_status(debug=debug), flags_named():
        from sparkinfer.driver.optimize import optimize_command

        optimize_command(
            file,
            images,
            output=output,
            preprocess=preprocess_flag(preprocess),
            labels=labels,
            input_name=input_name,
            output_name=output_name,
            fold=fold,
            fp16=fp16,
            int8=int8,
            min_agreement=min_agreement,
            threads=threads,
        )


def _continuous(spec: JobSpec) -> JobSpec:
    if spec.resume is None:
        raise SpecError(
            "a continuous job needs a checkpoint",
            key="resume.checkpoint",
            hint="add --checkpoint DIR or a resume: block",
        )
    trigger = spec.resume.trigger or DEFAULT_TRIGGER
    return spec.model_copy(update={"resume": spec.resume.model_copy(update={"trigger": trigger})})


@contextlib.contextmanager
def _stopped_by_signals(*, continuous: bool) -> Iterator[Event]:
    """An event that SIGTERM and Ctrl-C set, where a job would never end by itself; elsewhere they end it in order."""
    stop = Event()
    end = (lambda *_: stop.set()) if continuous else _interrupt
    before = {number: signal.signal(number, end) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        yield stop
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _interrupt(number: int, _frame: object) -> None:
    raise KeyboardInterrupt(signal.Signals(number).name)


def _sort_arguments(
    arguments: list[str], images: list[str], parquet: list[str]
) -> tuple[str | None, list[str], list[str]]:
    """Tells the job file from further paths: a shell turns `--images *.jpg` into `--images a.jpg b.jpg c.jpg`."""
    jobs = [argument for argument in arguments if argument.endswith((".yaml", ".yml", ".json"))]
    rest = [argument for argument in arguments if argument not in jobs]
    if not jobs and not images and not parquet:
        jobs, rest = rest[:1], rest[1:]
    if len(jobs) > 1:
        raise SpecError(f"one job at a time; found {' and '.join(jobs)}")
    if rest and bool(images) == bool(parquet):
        raise SpecError(f"unexpected argument {rest[0]}", hint="paths of images follow --images or --parquet")
    return (jobs[0] if jobs else None), images + (rest if images else []), parquet + (rest if parquet else [])


def _model_table(found: Inspected) -> Table:
    labels = found.labels or ()
    shown = ", ".join([*labels[:MAX_LABELS_SHOWN], *(["..."] if len(labels) > MAX_LABELS_SHOWN else [])])
    table = Table(show_header=False, box=None)
    table.add_column(style="bold")
    table.add_column(overflow="fold")
    for name, value in (
        ("format", found.spec.format),
        ("digest", found.digest),
        ("size", f"{found.artifact.size:,} bytes"),
        ("input", str(found.signature.input)),
        ("output", str(found.signature.scores)),
        ("classes", str(found.signature.num_classes)),
        ("labels", f"{len(labels)}: {shown}" if labels else "none in the file"),
    ):
        table.add_row(name, Text(value))
    return table


@contextlib.contextmanager
def _exit_status(*, debug: bool) -> Iterator[None]:
    """Turns what a command raises into a message on stderr and an exit status."""
    try:
        yield
    except SparkInferError as error:
        _tell(error.render())
        if debug or error.exit_status == 1:
            _tell_trace(error, debug=debug)
        raise typer.Exit(error.exit_status) from None
    except KeyboardInterrupt as interrupt:
        name = str(interrupt) or signal.SIGINT.name
        _tell(f"stopped by {name}; what was committed stays")
        raise typer.Exit(128 + signal.Signals[name]) from None
    except (typer.Abort, typer.Exit):
        raise
    except Exception as error:  # noqa: BLE001 (whatever it is, a person gets one line and a status)
        _tell(f"the job failed: {last_cause(error)}")
        _tell_trace(error, debug=debug)
        raise typer.Exit(1) from None


def _tell(text: str) -> None:
    from sparkinfer.driver.spark.yarn_diagnostics import quote_in_diagnostics

    typer.echo(text, err=True)
    quote_in_diagnostics(text)


def _tell_trace(error: BaseException, *, debug: bool) -> None:
    text = redacted("".join(traceback.format_exception(error)))
    if debug:
        typer.echo(text, err=True)
        return
    with tempfile.NamedTemporaryFile("w", prefix="sparkinfer-", suffix=".log", delete=False, encoding="utf-8") as file:
        file.write(text)
    typer.echo(f"  full stack trace: {file.name} (or run again with --debug)", err=True)
