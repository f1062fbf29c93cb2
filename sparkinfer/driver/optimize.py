"""`sparkinfer model optimize`: smaller and faster forms of an ONNX model, each compared with it on the user's images.

Driver side; needs no Spark. All work is done by `executor.optimization` in a process of its own.
"""

from __future__ import annotations

import glob
import tempfile
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import yaml
from rich.console import Console
from rich.table import Table

from sparkinfer.core.errors import ModelError, SinkError, SourceError, SpecError
from sparkinfer.core.preprocess_spec import PreprocessSpec
from sparkinfer.driver.config import validated
from sparkinfer.driver.helper_process import run_helper
from sparkinfer.driver.labels import parse_labels, read_label_text
from sparkinfer.driver.paths import has_glob, local_path
from sparkinfer.driver.sources.local_files import PREFIX, walk
from sparkinfer.executor.optimization_report import REPORT, REQUEST, OptimizeReport, OptimizeRequest, Variant

__all__ = ["optimize", "optimize_command", "report_table"]

_MODULE = "sparkinfer.executor.optimization"


def optimize(
    model: str,
    images: str,
    *,
    output: str | None = None,
    preprocess: str | dict[str, Any] | PreprocessSpec | None = None,
    labels: str | None = None,
    input_name: str | None = None,
    output_name: str | None = None,
    fold: bool = True,
    fp16: bool = False,
    int8: bool = False,
    min_agreement: float = 0.98,
    threads: int = 1,
    say: Callable[[str], None] = lambda _: None,
) -> OptimizeReport:
    """Optimises the graph, and on request converts to FP16 or INT8; writes what keeps the model's answers.

    Args:
        model: local `.onnx` file.
        images: local folder, file or glob of images like those to be classified: what INT8 is calibrated on and every
            form is compared with.
        output: file to write; by default beside the model: `model.optimized.onnx`, `model.fp16.onnx`,
            `model.int8.onnx`. With both fp16 and int8, this form's name goes before the suffix.
        preprocess: preset's name or block that the model's input is made by; by default what the file says of itself,
            else `imagenet`.
        labels: label file, to store in the new files.
        input_name: of the image input; the only one by default.
        output_name: of the class scores, by which forms are compared: `model.output` of the job. By default the first
            two-dimensional output, as in a job. The new files keep all outputs.
        fold: move normalisation into the graph: the new files take uint8 images [batch, height, width, channels].
        fp16: make an FP16 form.
        int8: make an INT8 form.
        min_agreement: share of images in [0, 1] that must keep their best class.
        threads: intra-op threads of the speed measurement.
        say: told about progress.

    Raises:
        UserError: arguments, model or images do not fit, or a form does not keep enough answers. Nothing is written
            then.
    """
    if not 0 <= min_agreement <= 1:
        raise SpecError(f"{min_agreement} is no share", key="min_agreement", allowed=["0 to 1"])
    if threads < 1:
        raise SpecError(f"{threads} threads cannot run a model", key="threads", allowed=["1 and more"])
    path = _local_file(model, "model.path")
    block = preprocess.model_dump(exclude_unset=True) if isinstance(preprocess, PreprocessSpec) else preprocess
    request = OptimizeRequest(
        model=str(path),
        images=tuple(_image_files(images)),
        preprocess=None if block is None else validated(PreprocessSpec, block, "preprocess"),
        outputs=_outputs(path, output, [*(["fp16"] if fp16 else []), *(["int8"] if int8 else [])] or ["optimized"]),
        fold=fold,
        labels=None if labels is None else _labels(labels),
        input=input_name,
        output=output_name,
        min_agreement=min_agreement,
        threads=threads,
    )
    answer = run_helper(_MODULE, REQUEST.dump_json(request, exclude_unset=True), say)
    return REPORT.validate_python(answer["report"])


def optimize_command(model: str, images: str, *, console: Console | None = None, **options: Any) -> None:
    """`optimize` for the command line: prints progress, then the report.

    Args:
        model: see `optimize`.
        images: see `optimize`.
        console: to print to.
        options: the other arguments of `optimize`.
    """
    console = console or Console()
    with console.status("optimising") as status:
        report = optimize(model, images, say=status.update, **options)
    console.print(report_table(report))
    for line in _notes(report):
        console.print(line, soft_wrap=True, markup=False, highlight=False)


def report_table(report: OptimizeReport) -> Table:
    """The forms of the model, side by side."""
    table = Table(box=None)
    table.add_column("form", style="bold")
    for column in ("bytes", "images/s", "speed", "agreement", "confidence change"):
        table.add_column(column, justify="right", no_wrap=True)
    table.add_column("how", overflow="fold")
    original = report.variants[0]
    for variant in report.variants:
        table.add_row(
            variant.name,
            f"{variant.bytes:,}",
            f"{variant.images_per_second:.1f}",
            f"x{variant.images_per_second / original.images_per_second:.2f}",
            f"{variant.agreement:.1%}",
            f"{variant.max_confidence_change:.2g}",
            variant.settings,
        )
    return table


def _notes(report: OptimizeReport) -> list[str]:
    before, after, running = report.nodes
    apart = "apart from" if report.held_out else "the same as"
    compared = f"compared on {report.compared} images"
    if report.calibrated:
        compared += f", {apart} the {report.calibrated} calibrated on; {len(report.attempts)} INT8 settings tried"
    if report.unreadable:
        compared += f"; {report.unreadable} files did not decode"
    return [
        f"{compared}; speed with {report.threads} threads, {report.batch_size} images a call, normalisation included",
        f"answers are those of the output {report.scores}",
        f"graph: {before} nodes, {after} in the new files, {running} once ONNX Runtime fuses them for a CPU",
        *(f"tried INT8 {tried.settings}: agreement {tried.agreement:.1%}" for tried in report.attempts[:-1]),
        *(_slower(variant, report.variants[0]) for variant in report.variants[1:] if _is_slower(variant, report)),
        *(_needs(variant) for variant in report.variants if variant.options),
        *(f"wrote {variant.path}" for variant in report.variants[1:]),
        f"made from sha256 {report.source_digest}",
        f"use with  preprocess: {_as_block(report.preprocess)}",
    ]


def _as_block(spec: PreprocessSpec) -> str:
    """The block as a person would write it: what differs from its preset."""
    given, usual = (block.model_dump(mode="json") for block in (spec, PreprocessSpec(preset=spec.preset)))
    own = {key: value for key, value in given.items() if key == "preset" or value != usual[key]}
    return yaml.safe_dump(own, default_flow_style=True, sort_keys=False, width=1000).strip()


def _is_slower(variant: Variant, report: OptimizeReport) -> bool:
    return variant.images_per_second < report.variants[0].images_per_second


def _slower(variant: Variant, original: Variant) -> str:
    reason = "processors compute FP16 in FP32 and convert" if variant.name == "fp16" else "on this CPU"
    ratio = original.images_per_second / variant.images_per_second
    return f"note: {variant.name} is {ratio:.2f} times slower than the original here ({reason})"


def _labels(name: str) -> tuple[str, ...]:
    return parse_labels(read_label_text(_local_file(name, "model.labels"), name), name)


def _needs(variant: Variant) -> str:
    block = yaml.safe_dump(dict(variant.options), default_flow_style=True, width=1000).strip()
    return f"note: on a CPU, {variant.name} needs model.options: {block}"


def _local_file(name: str, key: str) -> Path:
    path = local_path(name)
    if path is None:
        raise ModelError(f"{name!r} is not a local file", key=key, hint="copy it to this machine first")
    if not path.is_file():
        raise ModelError(f"{str(path)!r} {'is a folder' if path.is_dir() else 'does not exist'}", key=key)
    return path


def _image_files(location: str) -> list[str]:
    """Files of a folder (as a job would list it), of a glob, or the file itself."""
    path = local_path(location)
    if path is None:
        raise SourceError(f"{location!r} is not local", key="images", hint="copy some hundred images to this machine")
    if path.is_dir():
        files = [row.path.removeprefix(PREFIX) for row in walk(str(path.absolute()), Counter())]
    elif path.is_file():
        files = [str(path)]
    else:
        found = glob.glob(str(path)) if has_glob(location) else []  # noqa: PTH207 (Path.glob takes no absolute one)
        files = sorted(name for name in found if Path(name).is_file())
    if not files:
        raise SourceError(
            f"{location!r} holds no files", key="images", hint="give a folder, a file or a glob of images"
        )
    return files


def _outputs(model: Path, output: str | None, forms: list[str]) -> dict[str, str]:
    """Where each form goes: never over the model itself."""
    base = model if output is None else Path(output)
    if base.is_dir() and output is not None:
        base /= model.name
    named = {form: base.with_name(f"{base.stem}.{form}.onnx") for form in forms}
    if output is not None and len(forms) == 1 and not Path(output).is_dir():
        named = {forms[0]: base}
    for path in named.values():
        _check_writable(path)
        if path.absolute() == model.absolute() or (path.exists() and path.samefile(model)):
            raise SpecError(f"{str(path)!r} is the model itself", key="output", hint="choose another file")
    return {form: str(path) for form, path in named.items()}


def _check_writable(path: Path) -> None:
    """Refuses a place that cannot be written to now rather than when all is done; leaves nothing there.

    Raises:
        SinkError: it cannot be written.
    """
    folder = next(parent for parent in path.absolute().parents if parent.exists())
    try:
        with tempfile.TemporaryFile(dir=folder):
            pass
    except OSError as error:
        raise SinkError(
            f"{str(path)!r} cannot be written: {error.strerror}", key="output", hint="choose another folder"
        ) from error
    if path.is_dir():
        raise SinkError(f"{str(path)!r} is a folder", key="output", hint="choose another file")
