#!/bin/bash
# A Docker engine of our own: `docker-engine.sh install|start|stop|env|status`.
#
# install  Debian's docker.io, if no dockerd is on PATH (needs root and apt).
# start    a daemon with its own data root and socket, no bridge, no iptables, live-restore. Where
#          DOCKER_HOST answers already, or the machine runs an engine of its own, that one is used
#          and nothing is started; `start --own` starts ours beside them. $DOCKERD_ARGUMENTS are
#          further arguments of dockerd, as `--host tcp://127.0.0.1:2376 --tlsverify …`.
# stop     removes this engine's containers and stops it; never touches an engine it did not start.
#          `stop --purge` removes its images and data as well.
# env      prints `export DOCKER_HOST=...` for `eval`.
# status   says which engine answers; exit code 1 when none does.
#
# $SYSTEM_DOCKER_SOCKET is where the machine's own engine listens, by default /var/run/docker.sock.
# State lives in $AGENTFLOW_CACHE/docker, by default ~/.cache/agentflow/docker.
set -euo pipefail

dir=${AGENTFLOW_CACHE:-$HOME/.cache/agentflow}/docker
socket=$dir/docker.sock
pidfile=$dir/dockerd.pid
system_socket=${SYSTEM_DOCKER_SOCKET:-/var/run/docker.sock}

max_path=70 # of the 107 that a socket's may have, and the longest below is of 34

say() { echo "docker-engine: $*" >&2; }
die() { say "$*"; exit 1; }

answers() { # answers HOST: does an engine answer there?
    case $1 in
    unix://*) [ -S "${1#unix://}" ] &&
        curl -sf -m 5 --unix-socket "${1#unix://}" http://engine/_ping >/dev/null ;;
    tcp://*)
        if [ -n "${DOCKER_TLS_VERIFY:-}" ]; then
            local certs=${DOCKER_CERT_PATH:-$HOME/.docker}
            curl -sf -m 5 --cacert "$certs/ca.pem" --cert "$certs/cert.pem" --key "$certs/key.pem" \
                "https://${1#tcp://}/_ping" >/dev/null
        else
            curl -sf -m 5 "http://${1#tcp://}/_ping" >/dev/null
        fi ;;
    *) docker --host "$1" version >/dev/null 2>&1 ;;
    esac
}

ours_runs() { # the pid file names a live dockerd
    [ -f "$pidfile" ] && { tr '\0' ' ' <"/proc/$(cat "$pidfile")/cmdline"; } 2>/dev/null |
        grep -qF -- "$pidfile"
}

host() { # the engine in use: ours, the caller's, the machine's
    if ours_runs; then echo "unix://$socket"; return; fi
    if [ -n "${DOCKER_HOST:-}" ] && answers "$DOCKER_HOST"; then echo "$DOCKER_HOST"; return; fi
    if answers "unix://$system_socket"; then echo "unix://$system_socket"; return; fi
    return 1
}

install() {
    if command -v dockerd >/dev/null && command -v curl >/dev/null; then return; fi
    [ "$(id -u)" = 0 ] || die "no dockerd on PATH: run '$0 install' as root, or install Docker"
    command -v apt-get >/dev/null || die "no dockerd and no apt-get: install Docker first"
    export DEBIAN_FRONTEND=noninteractive
    apt-get update -qq || say "apt-get update failed; going on with the lists at hand"
    # A policy that starts nothing: the package would start the machine's own engine.
    local policy=/usr/sbin/policy-rc.d made=
    if [ ! -e $policy ]; then printf '#!/bin/sh\nexit 101\n' >$policy; chmod +x $policy; made=1; fi
    apt-get install -y -qq --no-install-recommends docker.io curl >/dev/null || {
        [ -z "$made" ] || rm -f $policy
        die "apt-get install docker.io failed"
    }
    [ -z "$made" ] || rm -f $policy
}

start() { # start [--own]
    local found
    for _ in $(seq 300); do # one that is coming up, or going down after a kill
        if ! ours_runs || answers "unix://$socket"; then break; fi
        sleep 0.1
    done
    if ours_runs; then say "using the engine at unix://$socket"; return; fi
    if [ "${1:-}" != --own ] && found=$(host); then say "using the engine at $found"; return; fi
    install
    [ "$(id -u)" = 0 ] || die "starting an engine needs root; point DOCKER_HOST at a running one"
    [ ${#dir} -le $max_path ] || die "$dir is too long for sockets below it: at most $max_path" \
        "characters; set AGENTFLOW_CACHE to a shorter path"
    mkdir -p "$dir"
    for _ in $(seq 100); do # a killed engine's containerd; a new engine would take it for alive
        [ -f "$dir/exec/containerd/containerd.pid" ] || break
        [ -d "/proc/$(cat "$dir/exec/containerd/containerd.pid")" ] || break
        sleep 0.1
    done
    rm -f "$pidfile" "$socket" "$dir/exec/containerd/containerd.pid"
    DOCKER_HOST='' setsid dockerd --data-root "$dir/data" --exec-root "$dir/exec" \
        --pidfile "$pidfile" --host "unix://$socket" --bridge=none --iptables=false \
        --ip6tables=false --ip-forward=false --ip-masq=false --live-restore \
        ${DOCKERD_ARGUMENTS:-} \
        >>"$dir/dockerd.log" 2>&1 </dev/null &
    for _ in $(seq 300); do
        if answers "unix://$socket"; then say "engine up at unix://$socket"; return; fi
        sleep 0.1
    done
    tail -5 "$dir/dockerd.log" >&2
    die "the engine did not come up in 30 s; its log is $dir/dockerd.log"
}

stop() {
    local pid
    if ours_runs; then
        pid=$(cat "$pidfile")
        docker --host "unix://$socket" ps -aq | xargs -r docker --host "unix://$socket" rm -f >/dev/null
        kill "$pid"
        while kill -0 "$pid" 2>/dev/null; do sleep 0.1; done
        say "stopped"
    fi
    # What an engine that was killed lost sight of: its containerd, shims, and what runs under them.
    for pid in $(pgrep -f -- "$dir/exec/containerd/containerd" || true); do
        pkill -KILL -P "$pid" || true
        kill -KILL "$pid" 2>/dev/null || true
    done
    rm -f "$pidfile" "$socket"
    [ "${1:-}" = --purge ] || return 0
    # A mount that a killed engine left would hold its folder.
    awk -v dir="$dir/" 'index($2, dir) == 1 {print $2}' /proc/mounts | sort -r | xargs -r umount -l
    rm -rf "$dir"
}

case ${1:-} in
install) install ;;
start) start "${2:-}" ;;
stop) stop "${2:-}" ;;
env) if found=$(host); then echo "export DOCKER_HOST=$found"; else die "no engine answers; '$0 start'"; fi ;;
status) if found=$(host); then say "engine at $found"; else die "no engine answers"; fi ;;
*) die "usage: $0 install|start [--own]|stop [--purge]|env|status" ;;
esac
