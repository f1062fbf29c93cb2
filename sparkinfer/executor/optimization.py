"""Makes faster forms of a model and compares them: `python -m sparkinfer.executor.optimization`.

The driver runs this in a process of its own (`driver.optimize`), so that no framework, and no native crash, enters the
driver. An `OptimizeRequest` as JSON on stdin; on stdout one JSON object a line: `{"progress": text}` any number of
times, then `{"report": OptimizeReport}` or `{"error": fields of a UserError}`.

Only outputs that keep the original's answers are put in place, all of them or none.
"""

from __future__ import annotations

import hashlib
import json
import os
import secrets
import shutil
import sys
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

from sparkinfer.core.errors import ModelError, SinkError, UserError
from sparkinfer.core.model_spec import ModelSpec
from sparkinfer.core.preprocess_spec import PreprocessSpec
from sparkinfer.core.registry import load_attribute
from sparkinfer.executor.inspection import error_to_dict, resolve_preset
from sparkinfer.executor.int8_search import Search, search_int8
from sparkinfer.executor.optimization_report import (
    REPORT,
    REQUEST,
    OptimizeReport,
    OptimizeRequest,
    Variant,
)
from sparkinfer.executor.trial import BATCH_SIZE, Difference, Form, compare, read_pictures, speeds, split

__all__ = ["main", "optimize"]

_TOOLS = "sparkinfer.runtimes.onnx_optimize:"
"""By name, as runtimes are: it imports ONNX Runtime."""

_RANKING_IMAGES = 16

_WITHOUT_NCHWC = {"session": {"optimization.disable_specified_optimizers": "NchwcTransformer"}}
"""`model.options` under which ONNX Runtime opens FP16 transformers on a CPU. Without them, 1.24 and later crash:
github.com/microsoft/onnxruntime/issues/28392."""

_NO_OPTIONS: Mapping[str, Any] = {}

Say = Callable[[str], None]


class Made(NamedTuple):
    """A form before it is finished: file, how it was made, `model.options` that it needs on a CPU."""

    path: Path
    settings: str
    options: Mapping[str, Any] = _NO_OPTIONS


def optimize(request: OptimizeRequest, say: Say) -> OptimizeReport:
    """Makes what `request.outputs` asks for.

    Args:
        request: what to do.
        say: told about progress.

    Raises:
        UserError: the model, the block or the images do not fit; or a form does not keep enough answers. Nothing is
            written then.
    """
    spec = request.preprocess
    if spec is not None and spec.is_weights_enum:
        spec = spec.resolved(resolve_preset(spec.preset))
    spec = load_attribute(f"{_TOOLS}fitting_spec")(Path(request.model), spec, request.input)
    with tempfile.TemporaryDirectory(prefix="sparkinfer-optimize-") as folder:
        return _Run(request, spec, Path(folder), say).report()


class _Run:
    """One request's pictures, original and intermediate files."""

    def __init__(self, request: OptimizeRequest, spec: PreprocessSpec, folder: Path, say: Say) -> None:
        self._request = request
        self._spec = spec
        self._folder = folder
        self._say = say
        self._source = Path(request.model)
        self._model = ModelSpec(path=request.model, format="onnx", input=request.input, output=request.output)
        self._original_form = self._open(self._source, self._spec)
        self._pictures = read_pictures(request.images, self._spec)
        needed = "int8" in request.outputs
        self._calibration, self._compared, self._held_out = split(self._pictures.pictures, calibrate=needed)
        self._original = self._original_form.scores(self._compared)
        self._check_labels()
        say(f"{len(self._calibration)} images to calibrate on, {len(self._compared)} to compare with")

    def report(self) -> OptimizeReport:
        """Makes, compares, measures; puts the outputs in place at the very end."""
        plain = self._folder / "plain.onnx"
        nodes = load_attribute(f"{_TOOLS}optimize_graph")(self._source, plain)
        makers: Mapping[str, Callable[[Path], Made]] = {
            "optimized": lambda plain: Made(plain, "graph optimised"),
            "fp16": self._float16,
            "int8": self._int8,
        }
        self._search = Search()
        forms = {"original": self._original_form}
        size = load_attribute(f"{_TOOLS}whole_size")(self._source)
        variants = [Variant("original", str(self._source), size, 0, 1, 0, "as it is", {})]
        preprocess = self._spec
        made_files = {}
        for name, target in self._request.outputs.items():
            made, settings, options = makers[name](plain)
            made_files[name] = self._folder / f"{name}.onnx"
            preprocess = self._finish(made, made_files[name], name, settings)
            if self._request.fold and preprocess != self._spec:
                settings += ", normalisation folded"
            forms[name] = self._open(made_files[name], preprocess, options)
            found = self._accepted(name, compare(forms[name].scores(self._compared), self._original))
            size = made_files[name].stat().st_size
            variants.append(
                Variant(name, target, size, 0, found.agreement, found.max_confidence_change, settings, options)
            )
        self._say("measuring speed")
        rates = speeds(forms, self._compared)
        for name, target in self._request.outputs.items():
            _put_in_place(made_files[name], Path(target))
        return OptimizeReport(
            source_digest=_digest(self._source),
            variants=tuple(replace(variant, images_per_second=rates[variant.name]) for variant in variants),
            preprocess=preprocess,
            scores=str(self._original_form.runtime.signature().scores),
            nodes=tuple(nodes),
            compared=len(self._compared),
            calibrated=len(self._calibration),
            held_out=self._held_out,
            unreadable=self._pictures.unreadable,
            attempts=tuple(self._search.attempts),
            batch_size=BATCH_SIZE,
            threads=self._request.threads,
        )

    def _open(self, path: Path, spec: PreprocessSpec, options: Mapping[str, object] = _NO_OPTIONS) -> Form:
        model = self._model.model_copy(update={"options": dict(options)})
        return Form.open(path, spec, model, self._request.threads)

    def _check_labels(self) -> None:
        labels, classes = self._request.labels, self._original.shape[1]
        if labels is not None and len(labels) != classes:
            raise ModelError(f"{len(labels)} labels for {classes} classes", key="model.labels")

    def _float16(self, plain: Path) -> Made:
        self._say("converting to FP16")
        target = self._folder / "half.onnx"
        crashes = load_attribute(f"{_TOOLS}to_float16")(plain, target)
        return Made(target, "FP16 weights and arithmetic", _WITHOUT_NCHWC if crashes else _NO_OPTIONS)

    def _int8(self, plain: Path) -> Made:
        self._say("quantising to INT8")
        inputs = self._original_form.fill(self._calibration)
        quantizer = load_attribute(f"{_TOOLS}Quantizer")(plain, inputs, self._folder, self._request.input)
        target = self._folder / "quantized.onnx"
        ranked_on = self._calibration[:_RANKING_IMAGES]
        expected = self._original_form.scores(ranked_on)

        def judge(path: Path) -> Difference:
            """Of the very file that would be kept: folding rounds a little differently."""
            candidate = self._folder / "candidate.onnx"
            preprocess = self._finish(path, candidate, "int8", "")
            return compare(self._open(candidate, preprocess).scores(self._compared), self._original)

        def error(path: Path) -> float:
            return compare(self._open(path, self._spec).scores(ranked_on), expected).error

        self._search = search_int8(
            quantizer,
            target,
            judge=judge,
            error=error,
            min_agreement=self._request.min_agreement,
            say=self._say,
        )
        if self._search.found is None:
            best = max(attempt.agreement for attempt in self._search.attempts)
            raise ModelError(
                f"INT8 does not keep this model's answers: of {len(self._search.attempts)} settings the best keeps "
                f"the best class of {best:.1%} of {len(self._compared)} images, {self._request.min_agreement:.1%} are "
                "asked for; nothing was written",
                key="min_agreement",
                hint="use --fp16 on a GPU, give more images of the kind you classify, or lower --min-agreement",
            )
        return Made(target, f"INT8, {self._search.found}")

    def _finish(self, made: Path, target: Path, name: str, settings: str) -> PreprocessSpec:
        preprocess: PreprocessSpec = load_attribute(f"{_TOOLS}finish")(
            made,
            target,
            source=self._source,
            spec=self._spec,
            input_name=self._request.input,
            fold=self._request.fold,
            labels=self._request.labels,
            how={"form": name, "settings": settings},
        )
        return preprocess

    def _accepted(self, name: str, found: Difference) -> Difference:
        if found.agreement < self._request.min_agreement:
            raise ModelError(
                f"{name} keeps the best class of {found.agreement:.1%} of {len(self._compared)} images, "
                f"{self._request.min_agreement:.1%} are asked for; nothing was written",
                key="min_agreement",
            )
        return found


def _digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _put_in_place(made: Path, target: Path) -> None:
    try:
        _put(made, target)
    except OSError as error:
        raise SinkError(
            f"{str(target)!r} cannot be written: {error.strerror}", key="output", hint="choose another folder"
        ) from error


def _put(made: Path, target: Path) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    unfinished = target.with_name(f".{target.name}.{secrets.token_hex(4)}.partial")
    try:
        with made.open("rb") as source, unfinished.open("xb") as copy:  # never through a link that somebody put there
            shutil.copyfileobj(source, copy)
        unfinished.replace(target)
    finally:
        unfinished.unlink(missing_ok=True)


def main() -> None:
    """Answers one request. What frameworks print meanwhile goes to stderr."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)

    def answer(**fields: object) -> None:
        print(json.dumps(fields), file=answers, flush=True)

    try:
        report = optimize(REQUEST.validate_json(sys.stdin.read()), lambda text: answer(progress=text))
        answer(report=REPORT.dump_python(report, mode="json"))
    except UserError as error:
        answer(error=error_to_dict(error))


if __name__ == "__main__":
    main()
