# SPDX-License-Identifier: Apache-2.0
# Sourced by dev/cluster, dev/demo, dev/test and dev/up: looks for what they need before anything is built.
#
# needs NAME: cargo and go must be there. A C compiler (for TLS, and to link) comes from Debian's packages: it is
# installed where that is possible without asking, that is as root, and named where it is not.
needs() {
    local tool
    for tool in cargo go; do
        command -v "$tool" >/dev/null || { echo "$1: '$tool' is needed and not on PATH" >&2; return 1; }
    done
    room "$1"
    command -v cc >/dev/null && return
    if [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null; then
        echo "$1: installing Debian's packages gcc and libc6-dev" >&2
        apt-get update -qq >/dev/null || true
        DEBIAN_FRONTEND=noninteractive apt-get install -qq --no-install-recommends gcc libc6-dev >/dev/null && return
    fi
    echo "$1: a C compiler is needed: install Debian's packages gcc and libc6-dev" >&2
    return 1
}

# What a first run writes, in GiB: this repository's target and the programs in the cache.
most=9

# room NAME: says beforehand what a full disk would make fail in strange ways later.
room() {
    local free=$(($(df --output=avail -k . | tail -n 1) / 1024 / 1024))
    [ "$free" -ge "$most" ] || echo "$1: only $free GiB are free on this disk; a first run needs about $most" >&2
}

# Debian's packages of a real node, for dev/cluster and dev/test: installed where that is possible without asking.
# What a node needs beside them is said by the harness when it starts one.
node_needs() {
    local packages=(runc containernetworking-plugins iptables conntrack iproute2 socat)
    local programs=(runc /usr/lib/cni/bridge iptables conntrack ip socat) program missing=false
    for program in "${programs[@]}"; do command -v "$program" >/dev/null || missing=true; done
    $missing || return 0
    if [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null; then
        echo "$1: installing Debian's packages ${packages[*]}" >&2
        apt-get update -qq >/dev/null || true
        DEBIAN_FRONTEND=noninteractive apt-get install -qq --no-install-recommends "${packages[@]}" >/dev/null && return
    fi
    echo "$1: a real node needs Debian's packages ${packages[*]}" >&2
    return 1
}
