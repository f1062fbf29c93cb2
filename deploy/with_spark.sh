#!/usr/bin/env bash
# Runs a command with a Java that Spark supports and with the Python of this project's environment on both sides.
#
#   deploy/with_spark.sh VENV COMMAND [ARGUMENT...]
set -euo pipefail

venv=$(cd "$1" && pwd)
shift
JAVA_HOME=$("$(dirname "$0")/find_java.sh")
export JAVA_HOME
export PYSPARK_PYTHON=$venv/bin/python PYSPARK_DRIVER_PYTHON=$venv/bin/python
export PATH=$venv/bin:$PATH
# In the locale C, Java cannot open files whose names are not ASCII.
export LC_ALL=${LC_ALL:-C.UTF-8}
# Another Spark of this machine must not take the place of the one that is pinned.
unset SPARK_HOME SPARK_CONF_DIR
exec "$@"
