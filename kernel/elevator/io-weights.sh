#!/usr/bin/env bash
# Gives io.mqfq.weight the weights that systemd has for its units; systemd itself writes those of io.cost (io.weight).
#
#   io-weights.sh [SECONDS]    looks each SECONDS; without: once
#
# A unit's IOWeight becomes its cgroup's default, an IODeviceWeight that of the device, or of the whole drive of a
# partition. A weight that a unit had and has no longer becomes the default again. Cgroups whose units have none keep
# their io.mqfq.weight. A device that has another scheduler takes no weight, and is asked again at the next look.
set -euo pipefail
cgroups=${MQFQ_CGROUPS:-/sys/fs/cgroup} state=${MQFQ_STATE:-/run/mqfq-io-weights}
systemctl=${MQFQ_SYSTEMCTL:-systemctl}
tab=$(printf '\t')

# Number of a device, MAJ:MIN, by its path.
number_of() {
    [ -b "$1" ] || return 1
    number=$(printf '%d:%d' $(stat -L -c '0x%t 0x%T' "$1"))
    if [ -e "/sys/dev/block/$number/partition" ]; then
        number=$(cat "/sys/dev/block/$number/../dev") || return 1
    fi
    echo "$number"
}

# A line for each weight of the units in a file: the cgroup, `default` or the device's path, the weight.
asked() {
    awk -v OFS='\t' '
        function tell(  i) {
            if (cgroup != "") for (i = 1; i <= n; i++) print cgroup, device[i], weight[i]
            cgroup = ""; n = 0
        }
        function add(to, is) {
            if (is ~ /^[0-9]+$/ && is + 0 >= 1 && is + 0 <= 10000) { n++; device[n] = to; weight[n] = is }
        }
        /^$/ { tell(); next }
        { at = index($0, "="); name = substr($0, 1, at - 1); is = substr($0, at + 1) }
        name == "ControlGroup" { cgroup = is }
        name == "IOWeight" { add("default", is) }
        name == "IODeviceWeight" && match(is, / [0-9]+$/) { add(substr(is, 1, RSTART - 1), substr(is, RSTART + 1)) }
        END { tell() }' "$1"
}

# Its lines with numbers of devices.
wanted() {
    asked "$1" | while IFS=$tab read -r cgroup device weight; do
        [ "$device" = default ] || device=$(number_of "$device") || continue
        printf '%s\t%s\t%s\n' "$cgroup" "$device" "$weight"
    done
}

# write CGROUP default|MAJ:MIN WEIGHT, unless the cgroup has it: one of a unit that was started again is new. It may be
# gone.
write() {
    file=$cgroups$1/io.mqfq.weight
    grep -qsxF "$2 $3" "$file" || (echo "$2 $3" >>"$file") 2>/dev/null || true
}

look() {
    $systemctl show --property=ControlGroup,IOWeight,IODeviceWeight '*' >"$state.units"
    touch "$state"
    wanted "$state.units" >"$state.new"
    awk -F'\t' 'FILENAME == ARGV[1] { is[$1, $2] = 1; next } !(($1, $2) in is)' "$state.new" "$state" |
        while IFS=$tab read -r cgroup device weight; do
            [ "$device" = default ] && weight=100 || weight=default
            write "$cgroup" "$device" $weight
        done
    while IFS=$tab read -r cgroup device weight; do
        write "$cgroup" "$device" "$weight"
    done <"$state.new"
    mv "$state.new" "$state" && rm "$state.units"
}

look
while [ $# -gt 0 ]; do
    sleep "$1"
    look
done
