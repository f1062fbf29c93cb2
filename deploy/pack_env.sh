#!/usr/bin/env bash
# Packs the Python environment that executors need into an archive that travels with the job.
#
#   deploy/pack_env.sh ENV.tar.gz [REQUIREMENT...]      # requirements: onnx onnxruntime pyzmq when none is named
#   deploy/pack_env.sh gpu.tar.gz onnx onnxruntime-gpu pyzmq nvidia-ml-py    # for NVIDIA GPUs
#   deploy/pack_env.sh torch.tar.gz torch torchvision safetensors
#
#   spark-submit --master yarn --archives ENV.tar.gz#environment --conf spark.pyspark.python=./environment/bin/python ...
#
# Holds sparkinfer and what it needs but pyspark, which spark-submit brings itself. As with venv-pack, its python is a
# link to this machine's: every node needs the same Python at the same place ("base" below). Versions are those of
# constraints.txt. ENV_FOLDER=DIR keeps the environment there, so that the next run only exchanges sparkinfer.
set -euo pipefail

[[ $# -ge 1 && ${1##*/} == ?*.tar.gz ]] || {
    echo "usage: deploy/pack_env.sh ENV.tar.gz [REQUIREMENT...]" >&2
    exit 2
}
source=$(cd "$(dirname "$0")/.." && pwd)
archive=$1 python=${PYTHON:-python3.11}
shift
[[ $# -gt 0 ]] || set -- onnx onnxruntime pyzmq

if ! "$python" -c 'import ensurepip, sys, venv; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then
    echo "sparkinfer needs Python 3.11 with venv: install it (Debian, Ubuntu: apt-get install python3.11-venv) or set PYTHON=/path/to/python3.11" >&2
    exit 1
fi
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
environment=${ENV_FOLDER:-$scratch/env}
# One at a time in an environment that is kept.
mkdir -p "$(dirname "$environment")"
exec 9>"$environment.lock"
flock 9

# Its own Python, not that of a venv which happens to be active: nodes have no such venv.
base=$("$python" -c 'import os, sys; print(os.path.realpath(getattr(sys, "_base_executable", sys.executable)))')
[[ -x $environment/bin/python ]] || "$base" -m venv "$environment"
pip=("$environment/bin/python" -m pip --quiet --disable-pip-version-check)
# From a copy: setuptools builds in the folder, and would pack what an earlier build has left there.
mkdir "$scratch/source"
cp -r "$source"/{pyproject.toml,README.md,LICENSE,sparkinfer} "$scratch/source"
"${pip[@]}" wheel --no-deps --wheel-dir "$scratch" "$scratch/source"
wheel=("$scratch"/sparkinfer-*.whl)
# What it asks for by itself: no extras, and not pyspark.
mapfile -t needed < <("$environment/bin/python" - "${wheel[0]}" <<'PYTHON'
import sys, zipfile
from email.parser import Parser
with zipfile.ZipFile(sys.argv[1]) as wheel:
    (name,) = (name for name in wheel.namelist() if name.endswith(".dist-info/METADATA"))
    asked = Parser().parsestr(wheel.read(name).decode()).get_all("Requires-Dist", [])
print(*(line for line in asked if "extra ==" not in line and not line.startswith("pyspark")), sep="\n")
PYTHON
)
"${pip[@]}" install --constraint "$source/constraints.txt" "${needed[@]}" "$@"
"${pip[@]}" install --no-deps --force-reinstall "${wheel[0]}"

mkdir -p "$(dirname "$archive")"
# Every node unpacks it: without pip and other packages' tests, a third of the files. Fast rather than small, since most
# of it is machine code that hardly gets smaller.
tar --create --directory "$environment" --exclude './lib/python*/site-packages/pip*' --exclude tests . |
    gzip -1 >"$archive.new"
mv "$archive.new" "$archive"
echo "$archive: $(du -h "$archive" | cut -f 1), base $base" >&2
