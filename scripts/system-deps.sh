#!/usr/bin/env bash
# Installs the Debian packages that agentflow uses when they are present: bubblewrap is the sandbox of
# local environments. Without root, or off Debian, it says what is missing and goes on; with CI=true
# a missing package is a failure.
set -euo pipefail

missing=()
command -v bwrap >/dev/null || missing+=(bubblewrap)
command -v git >/dev/null || missing+=(git)
[ ${#missing[@]} -eq 0 ] && exit 0

if command -v apt-get >/dev/null && [ "$(id -u)" -eq 0 ]; then
    export DEBIAN_FRONTEND=noninteractive
    apt-get update -qq && apt-get install -y -qq --no-install-recommends "${missing[@]}" >/dev/null && exit 0
fi
echo "agentflow: missing system packages: ${missing[*]} (sudo apt-get install ${missing[*]})" >&2
[ "${CI:-}" != true ]
