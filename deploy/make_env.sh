#!/usr/bin/env bash
# Makes or updates a Python environment, then writes a stamp that says it is done.
#
#   deploy/make_env.sh VENV STAMP [CONSTRAINTS PIP-ARGUMENT...]
#
# CONSTRAINTS is a file of exact versions, PIP-ARGUMENT what to install: this project with all it needs by default.
set -euo pipefail

venv=$1 stamp=$2 constraints=${3:-constraints.txt} python=${PYTHON:-python3.11}
shift $(($# < 3 ? $# : 3))
(($#)) || set -- --editable '.[torch,onnx,metrics,progress,demo,dev]'

if ! "$venv/bin/python" -m pip --version >/dev/null 2>&1; then
    if ! "$python" -c 'import ensurepip, sys, venv; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then
        echo "sparkinfer needs Python 3.11 with venv: install it (Debian, Ubuntu: apt-get install python3.11-venv) or make PYTHON=/path/to/python3.11" >&2
        exit 1
    fi
    "$python" -m venv --clear "$venv"
fi
echo "installing pinned packages into $venv" >&2
"$venv/bin/python" -m pip install --quiet --constraint "$constraints" "$@"
rm -f "$(dirname "$stamp")"/installed-*
touch "$stamp"
