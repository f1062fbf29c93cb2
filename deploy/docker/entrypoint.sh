#!/usr/bin/env bash
# What Spark on Kubernetes calls in its containers: with `driver` and the arguments of spark-submit, or with `executor`
# and everything in SPARK_* variables. Anything else is run as it is.
set -euo pipefail

spark_classpath() {
    local part parts=("${SPARK_CONF_DIR:-$SPARK_HOME/conf}" "${HADOOP_CONF_DIR:-}" "$SPARK_HOME/jars/*")
    parts+=("${SPARK_CLASSPATH:-}" "${SPARK_EXTRA_CLASSPATH:-}" "${SPARK_DIST_CLASSPATH:-}")
    for part in "${parts[@]}"; do
        [[ -z $part ]] || printf '%s:' "$part"
    done
}

case ${1:-} in
    driver)
        shift
        # In cluster mode Spark sets the address, and the properties file has all the rest.
        command=("$SPARK_HOME/bin/spark-submit")
        command+=(--conf "spark.driver.bindAddress=$SPARK_DRIVER_BIND_ADDRESS" --deploy-mode client "$@")
        ;;
    executor)
        options=()
        for ((i = 0; ; i++)); do
            name=SPARK_JAVA_OPT_$i
            [[ -v $name ]] || break
            options+=("${!name}")
        done
        classpath=$(spark_classpath)
        command=("$JAVA_HOME/bin/java" "${options[@]}" "-Xms$SPARK_EXECUTOR_MEMORY" "-Xmx$SPARK_EXECUTOR_MEMORY")
        command+=(-cp "${classpath%:}" org.apache.spark.scheduler.cluster.k8s.KubernetesExecutorBackend)
        command+=(--driver-url "$SPARK_DRIVER_URL" --executor-id "$SPARK_EXECUTOR_ID" --cores "$SPARK_EXECUTOR_CORES")
        command+=(--app-id "$SPARK_APPLICATION_ID" --hostname "$SPARK_EXECUTOR_POD_IP")
        command+=(--resourceProfileId "$SPARK_RESOURCE_PROFILE_ID" --podName "$SPARK_EXECUTOR_POD_NAME")
        ;;
    *)
        command=("$@")
        ;;
esac
# tini passes signals on and collects Python workers whose parent is gone.
exec tini -s -- "${command[@]}"
