#!/usr/bin/env bash
# Makes or updates the Python environment, then writes a stamp that says it is done.
#
#   deploy/make_env.sh VENV STAMP
set -euo pipefail

venv=$1 stamp=$2 python=${PYTHON:-python3.11}

if ! "$venv/bin/python" -m pip --version >/dev/null 2>&1; then
    if ! "$python" -c 'import ensurepip, sys, venv; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then
        echo "sparkinfer needs Python 3.11 with venv: install it (Debian, Ubuntu: apt-get install python3.11-venv) or make PYTHON=/path/to/python3.11" >&2
        exit 1
    fi
    "$python" -m venv --clear "$venv"
fi
echo "installing pinned packages into $venv" >&2
"$venv/bin/python" -m pip install --quiet --constraint constraints.txt --editable '.[torch,onnx,metrics,demo,dev]'
rm -f "$(dirname "$stamp")"/installed-*
touch "$stamp"
