#!/usr/bin/env bash
# Tells Spark which GPUs this machine has: prints {"name": "gpu", "addresses": ["0", "1"]}.
#   standalone        spark.worker.resource.gpu.discoveryScript    spark.worker.resource.gpu.amount
#   YARN, Kubernetes  spark.executor.resource.gpu.discoveryScript  spark.executor.resource.gpu.amount
# Needs bash and nvidia-smi. With none, or no GPU, it ends with status 1 and says so on stderr, which Spark logs.
#
# A whole GPU's address is its number in nvidia-smi. A GPU that is cut into MIG slices has no address of its own, its
# slices have: their UUIDs. A process can use one slice, so give an executor one: spark.executor.resource.gpu.amount 1.
# Where CUDA_VISIBLE_DEVICES is set, only what it names is told: the other GPUs are somebody else's.
set -euo pipefail

say() { echo "gpu_discovery: $1" >&2; }
fail() { say "$1"; exit 1; }

command -v nvidia-smi >/dev/null ||
    fail "there is no nvidia-smi on PATH: install NVIDIA's driver, or ask for no GPU on this machine"
listed=$(nvidia-smi -L 2>&1) || fail "nvidia-smi -L failed: $listed"
# Drivers that know no MIG do not know the question either.
modes=$(nvidia-smi --query-gpu=index,mig.mode.current --format=csv,noheader 2>/dev/null) || modes=""

addresses=() # what Spark gets
uuids=()     # of the same, for CUDA_VISIBLE_DEVICES
gpu="" uuid="" slices=0

# Settles the GPU whose lines have been read.
settle() {
    if [[ -z $gpu ]] || ((slices)); then return; fi
    if [[ $'\n'$modes$'\n' == *$'\n'"$gpu, Enabled"$'\n'* ]]; then
        say "GPU $gpu is in MIG mode and has no slice: left out"
    else
        addresses+=("$gpu")
        uuids+=("$uuid")
    fi
}

whole='^GPU ([0-9]+):.*\(UUID: (GPU-[^)]+)\)'
slice='^ +MIG .*\(UUID: (MIG-[^)]+)\)'
while IFS= read -r line; do
    if [[ $line =~ $whole ]]; then
        settle
        gpu=${BASH_REMATCH[1]} uuid=${BASH_REMATCH[2]} slices=0
    elif [[ $line =~ $slice ]]; then
        slices=$((slices + 1))
        addresses+=("${BASH_REMATCH[1]}")
        uuids+=("${BASH_REMATCH[1]}")
    fi
done <<<"$listed"
settle
((${#addresses[@]})) || fail "nvidia-smi lists no GPU that can be used; it says: ${listed:-nothing}"

if [[ -n ${CUDA_VISIBLE_DEVICES+set} ]]; then
    visible=()
    IFS=',' read -r -a entries <<<"$CUDA_VISIBLE_DEVICES"
    for entry in ${entries[@]+"${entries[@]}"}; do
        entry=${entry//[[:space:]]/}
        found=""
        for i in "${!addresses[@]}"; do
            if [[ $entry == "${addresses[i]}" || ($entry == @(GPU|MIG)-?* && ${uuids[i]} == "$entry"*) ]]; then
                found=${addresses[i]}
                break
            fi
        done
        # As CUDA does at a name that it does not know; and no GPU is told twice.
        [[ -n $found && " ${visible[*]-} " != *" $found "* ]] || break
        visible+=("$found")
    done
    ((${#visible[@]})) || fail "CUDA_VISIBLE_DEVICES is '$CUDA_VISIBLE_DEVICES', which names no GPU of: ${addresses[*]}"
    addresses=("${visible[@]}")
fi

printf -v quoted '"%s", ' "${addresses[@]}"
echo "{\"name\": \"gpu\", \"addresses\": [${quoted%, }]}"
