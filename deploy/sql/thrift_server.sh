#!/usr/bin/env bash
# Starts Spark's Thrift server, which answers SQL clients over JDBC and ODBC, and stays until it is stopped.
#
#   deploy/sql/thrift_server.sh [SPARK-SUBMIT-OPTION...]       e.g. --master yarn --conf spark.executor.instances=4
#
# It serves the tables of the Hive metastore: that of hive-site.xml in SPARK_CONF_DIR, else ./metastore_db, where a job
# with spark.sql.catalogImplementation=hive that runs in the same folder has put its tables. Only one process at a time
# can open ./metastore_db: first the job, then the server.
#
# Spark's own pages are off (--conf spark.ui.enabled=true puts them on, for everybody who can reach this machine).
# PORT (10000) and BIND (127.0.0.1) say where it listens. It asks nobody for a password: before you bind it to an
# address that others can reach, set hive.server2.authentication (LDAP or KERBEROS) in hive-site.xml.
set -euo pipefail

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
venv=${VENV:-$here/../../.venv}
port=${PORT:-10000} bind=${BIND:-127.0.0.1}
conf=()
[[ -z ${SPARK_CONF_DIR:-} ]] || conf=(env "SPARK_CONF_DIR=$SPARK_CONF_DIR")

exec "$here/../with_spark.sh" "$venv" "${conf[@]}" "$venv/bin/spark-submit" \
    --class org.apache.spark.sql.hive.thriftserver.HiveThriftServer2 --name sparkinfer-sql \
    --conf spark.sql.catalogImplementation=hive --conf spark.ui.enabled=false "$@" spark-internal \
    --hiveconf "hive.server2.thrift.bind.host=$bind" --hiveconf "hive.server2.thrift.port=$port"
