#!/bin/sh
# Debian's Chromium and its driver, if they are not there and can be had; the browser test skips if not.
command -v chromium > /dev/null && command -v chromedriver > /dev/null && exit 0
if [ "$(id -u)" != 0 ] || ! command -v apt-get > /dev/null; then
    echo "Chromium and its driver are not installed, and installing them takes root and apt-get." >&2
    exit 0
fi
wait="-o DPkg::Lock::Timeout=300"
export DEBIAN_FRONTEND=noninteractive
apt-get $wait -qq update &&
    apt-get $wait -qq install --yes --no-install-recommends chromium chromium-driver ||
    echo "Chromium could not be installed." >&2
