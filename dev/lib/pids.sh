# SPDX-License-Identifier: Apache-2.0
# Sourced by dev/up, dev/down, dev/cluster and dev/node/down.

# Prints the recorded pids under a dev directory that are still ours, the last started first.
#
# A pid may belong to someone else by now: ours have the directory in their command line. (A process that has
# ended and is not reaped yet has an empty one, and counts as gone.)
live_pids() {
    local pid _
    { cat "$1"/*/pids 2>/dev/null || true; } | tac | while read -r pid _; do
        if tr '\0' ' ' 2>/dev/null <"/proc/$pid/cmdline" | grep -qF -- "=$1/"; then echo "$pid"; fi
    done
}
