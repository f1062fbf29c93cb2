#!/usr/bin/env bash
# Prints the JAVA_HOME of a Java that Spark runs on (17 or 21).
#
# Looks at JAVA_HOME, at `java` on PATH, then into /usr/lib/jvm (or $JVM_FOLDER). Where there is none, Debian and Ubuntu
# get openjdk-17-jre-headless, as root or with `sudo -n`; elsewhere, and with --no-install, it ends with one line.
set -euo pipefail

# Major version of the Java in a folder: from its `release` file, or by asking it.
java_major() {
    local text
    [[ -x $1/bin/java ]] || return 0
    text=$(grep -s '^JAVA_VERSION=' "$1/release" || "$1/bin/java" -version 2>&1 | head -n 1) || return 0
    sed -n 's/^[^"]*"\([0-9][0-9]*\).*/\1/p' <<<"$text"
}

java_homes() {
    local on_path
    [[ -z ${JAVA_HOME:-} ]] || printf '%s\n' "$JAVA_HOME"
    if on_path=$(command -v java); then
        dirname "$(dirname "$(readlink -f "$on_path" || echo "$on_path")")"
    fi
    printf '%s\n' "${JVM_FOLDER:-/usr/lib/jvm}"/*
    # macOS keeps its own list; the tool prints one folder.
    [[ ! -x /usr/libexec/java_home ]] || /usr/libexec/java_home -v 17 2>/dev/null || true
}

find_java() {
    local home
    while IFS= read -r home; do
        case $(java_major "$home") in
            17 | 21) printf '%s\n' "$home" && return 0 ;;
        esac
    done < <(java_homes)
    return 1
}

install_java() {
    local as_root=()
    command -v apt-get >/dev/null || return 1
    if [[ $(id -u) -ne 0 ]]; then
        sudo -n true 2>/dev/null || return 1
        as_root=(sudo -n)
    fi
    echo "no Java 17 or 21 found: installing openjdk-17-jre-headless" >&2
    "${as_root[@]}" apt-get update -qq >&2 || true # an old list may do
    "${as_root[@]}" env DEBIAN_FRONTEND=noninteractive apt-get install -y -qq openjdk-17-jre-headless >&2
}

find_java && exit 0
if [[ ${1:-} != --no-install ]] && install_java; then
    find_java && exit 0
fi
echo "sparkinfer needs Java 17 or 21: install one (Debian, Ubuntu: apt-get install openjdk-17-jre-headless) or set JAVA_HOME" >&2
exit 1
