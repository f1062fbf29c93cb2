#!/usr/bin/env bash
# Makes the peers' environment where it is missing, then runs the benchmark. Arguments: run.sh --help
#
# Needs sparkinfer's own environment and the demo's model and photographs (`make model`), and Java (`make java`).
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
here=tests/benchmarks
venv=build/bench-venv
[[ -x .venv/bin/python && -d build/demo ]] || { echo "run 'make model' first" >&2; exit 1; }

# Done when this very file is there: its name says what was installed, and where.
stamp=$venv/installed-$({ pwd; cat "$here"/*-peers.txt "$here"/requirements-*.txt; } | cksum | tr ' ' '-')
if [[ ! -e $stamp ]]; then
    "${PYTHON:-python3.11}" -m venv "$venv"
    install() { "$venv/bin/pip" install -q --disable-pip-version-check -c "$here/constraints-peers.txt" -r "$1"; }
    install "$here/requirements-peers.txt"
    whole=1
    for peer in daft ray; do
        # A peer that cannot be installed is reported as failed by the benchmark; the others go on.
        install "$here/requirements-$peer.txt" || { echo "$peer could not be installed" >&2; whole=0; }
    done
    ((whole)) && touch "$stamp"
fi

JAVA_HOME=$(deploy/find_java.sh)
export JAVA_HOME
exec "$venv/bin/python" -m tests.benchmarks.bench "$@"
