#!/usr/bin/env bash
# Runs the tests that the oldest supported Spark has to pass. `make test-older` makes the environment first.
#
#   tests/older_spark/run.sh VENV [PYTEST-ARGUMENT...]
#
# Two sessions: Spark as it is, with the part of tests/spark where Spark's versions differ; and one with Delta and
# Iceberg, which are packages for just this version.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."

venv=$1
shift
tests=()
while IFS= read -r line; do
    [[ -z $line || $line == \#* ]] || tests+=("$line")
done <tests/older_spark/selection.txt

# That an old Spark uses what Python and pandas have deprecated since, and leaves sockets to be found, is its own matter.
quiet=(-W ignore::DeprecationWarning -W ignore::ResourceWarning)
pytest() { deploy/with_spark.sh "$venv" "$venv/bin/python" -m pytest "${quiet[@]}" "$@"; }

failed=0
pytest "${tests[@]}" "$@" || failed=1
pytest tests/older_spark "$@" || failed=1
exit "$failed"
