#!/usr/bin/env bash
# Makes sure that Prometheus, promtool and the Pushgateway are there, and prints their versions, a line each.
#
# Where one is missing, Debian and Ubuntu get their packages, as root or with `sudo -n`; elsewhere, and with
# --no-install, it ends with one line. The packages' services are not started now (at the next boot they are, unless you
# say systemctl disable prometheus prometheus-pushgateway): a test or a person starts what is wanted.
set -euo pipefail

packages=(prometheus prometheus-pushgateway)
commands=(prometheus promtool prometheus-pushgateway)

missing() {
    local command
    for command in "${commands[@]}"; do
        command -v "$command" >/dev/null || printf '%s ' "$command"
    done
}

# Runs a command with a policy that keeps apt-get from starting services (invoke-rc.d asks it: 101 means no).
without_services() {
    local policy=${POLICY_RC_D:-/usr/sbin/policy-rc.d} made='' status=0
    if [[ ! -e $policy ]]; then
        printf '#!/bin/sh\nexit 101\n' | "${as_root[@]}" tee "$policy" >/dev/null
        "${as_root[@]}" chmod 755 "$policy"
        made=yes
    fi
    "$@" || status=$?
    [[ -z $made ]] || "${as_root[@]}" rm -f "$policy"
    return "$status"
}

install_packages() {
    as_root=()
    command -v apt-get >/dev/null || return 1
    if ((EUID)); then
        sudo -n true 2>/dev/null || return 1
        as_root=(sudo -n)
    fi
    echo "installing ${packages[*]}" >&2
    "${as_root[@]}" apt-get update -qq >&2 || true # an old list may do
    without_services "${as_root[@]}" env DEBIAN_FRONTEND=noninteractive \
        apt-get -o DPkg::Lock::Timeout=300 install -y -qq --no-install-recommends "${packages[@]}" >&2
}

if [[ -n $(missing) && ${1:-} != --no-install ]]; then
    install_packages || true
fi
if [[ -n $(missing) ]]; then
    echo "missing: $(missing)- install Prometheus and its Pushgateway (Debian, Ubuntu: apt-get install ${packages[*]})" >&2
    exit 1
fi
for command in "${commands[@]}"; do
    "$command" --version 2>&1 | sed -n 1p
done
