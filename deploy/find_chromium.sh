#!/usr/bin/env bash
# Prints the path of a Chromium, which the tests of report.html drive.
#
# Looks at $CHROMIUM, then on PATH. Where there is none, Debian gets the package chromium, as root or with `sudo -n`;
# elsewhere, and with --no-install, it ends with one line. (Ubuntu's package of that name is an empty one: it needs snap.)
set -euo pipefail

find_chromium() {
    local name
    for name in ${CHROMIUM:+"$CHROMIUM"} chromium chromium-browser google-chrome google-chrome-stable; do
        if name=$(command -v "$name") && "$name" --version >/dev/null 2>&1; then
            printf '%s\n' "$name" && return 0
        fi
    done
    return 1
}

install_chromium() {
    local as_root=()
    [[ -r /etc/debian_version ]] && command -v apt-get >/dev/null || return 1
    if [[ $EUID -ne 0 ]]; then
        sudo -n true 2>/dev/null || return 1
        as_root=(sudo -n)
    fi
    echo "no Chromium found: installing it" >&2
    "${as_root[@]}" apt-get update -qq >&2 || true # an old list may do
    "${as_root[@]}" env DEBIAN_FRONTEND=noninteractive \
        apt-get install -y -qq --no-install-recommends chromium fonts-dejavu-core >&2
}

find_chromium && exit 0
if [[ ${1:-} != --no-install ]] && install_chromium; then
    find_chromium && exit 0
fi
echo "the tests of report.html need Chromium: install one (Debian: apt-get install chromium) or set CHROMIUM" >&2
exit 1
