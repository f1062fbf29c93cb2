#!/usr/bin/env bash
# Spark's hook before an executor's pod stops (spark.decommission.enabled): tells the executor to give its work away, and
# waits until it has ended. Kubernetes ends the wait after terminationGracePeriodSeconds.
set -euo pipefail

backend=org.apache.spark.scheduler.cluster.k8s.KubernetesExecutorBackend

executor_pid() {
    local folder words
    for folder in /proc/[0-9]*; do
        # Processes come and go meanwhile.
        { mapfile -d '' -t words <"$folder/cmdline"; } 2>/dev/null || continue
        if [[ ${words[0]:-} == */java && " ${words[*]} " == *" $backend "* ]]; then
            printf '%s\n' "${folder##*/}"
            return
        fi
    done
}

pid=$(executor_pid)
[[ -n $pid ]] || exit 0
kill -s PWR "$pid"
tail --pid="$pid" -f /dev/null
