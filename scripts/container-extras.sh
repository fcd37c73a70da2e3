#!/usr/bin/env bash
# Installs, on Debian as root, what some container tests need and no environment does: Podman, a
# registry of images, and an emulator for the helper of arm64. Elsewhere those tests are skipped; with
# CI set they fail.
set -euo pipefail

missing=()
command -v podman >/dev/null || missing+=(podman)
command -v docker-registry >/dev/null || missing+=(docker-registry)
command -v qemu-aarch64-static >/dev/null || missing+=(qemu-user-static)
[ ${#missing[@]} -eq 0 ] && exit 0

if command -v apt-get >/dev/null && [ "$(id -u)" -eq 0 ]; then
    export DEBIAN_FRONTEND=noninteractive
    # A policy that starts nothing: the packages would start services of the machine's own.
    policy=/usr/sbin/policy-rc.d
    if [ ! -e $policy ]; then
        printf '#!/bin/sh\nexit 101\n' >$policy
        chmod +x $policy
        trap 'rm -f $policy' EXIT
    fi
    apt-get update -qq || true
    apt-get install -y -qq --no-install-recommends "${missing[@]}" >/dev/null && exit 0
fi
echo "agentflow: tests that need ${missing[*]} are skipped" >&2
