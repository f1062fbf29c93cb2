#!/usr/bin/env bash
# `make cluster`: HDFS and YARN, with the demo's photographs and model, a job file and the executors' Python in HDFS.
#
#   deploy/cluster/up.sh VENV DEMO
set -euo pipefail

venv=$1 demo=$2 folder=build/cluster
hadoop=("$venv/bin/python" deploy/cluster/hadoop.py --folder "$folder")
archive=build/sparkinfer.tar.gz

"${hadoop[@]}" start
ENV_FOLDER=${XDG_CACHE_HOME:-$HOME/.cache}/sparkinfer/executor-env PYTHON=$venv/bin/python deploy/pack_env.sh "$archive"
"${hadoop[@]}" dfs -mkdir -p /env /jobs /demo /spark-events
"${hadoop[@]}" dfs -put "$demo"/{images,efficientnet_lite0.onnx,labels.txt} /demo
"${hadoop[@]}" dfs -put "$archive" /env
"${hadoop[@]}" dfs -put deploy/cluster/demo.yaml /jobs

cat <<HOW

Client mode, the driver here:
  export HADOOP_CONF_DIR=$folder/conf SPARK_LOCAL_IP=127.0.0.1
  deploy/with_spark.sh $venv spark-submit --properties-file $folder/conf/spark-defaults.conf \\
    --conf spark.pyspark.driver.python=$venv/bin/python jobs/batch_infer.py hdfs:///jobs/demo.yaml
Cluster mode, the driver on a node:
  deploy/with_spark.sh $venv spark-submit --properties-file $folder/conf/spark-defaults.conf \\
    --deploy-mode cluster jobs/batch_infer.py hdfs:///jobs/demo.yaml
Look around:
  ${hadoop[*]} dfs -ls /demo/predictions
  ${hadoop[*]} yarn application -list -appStates ALL
End it: make cluster-stop
HOW
