#!/bin/sh
# Debian's Slurm packages, if they are not there and can be had; the tests say why they skip if not.
for program in slurmctld slurmd slurmdbd munged mariadbd mariadb-install-db; do
    PATH="$PATH:/usr/sbin:/sbin" command -v "$program" > /dev/null || absent="$absent $program"
done
[ -n "$absent" ] || exit 0
if [ "$(id -u)" != 0 ] || ! command -v apt-get > /dev/null; then
    echo "Slurm is not installed, and installing it takes root and apt-get (missing:$absent)." >&2
    exit 0
fi
# Debian starts what it installs; these daemons are wanted by the tests alone, with their own files.
if [ ! -e /usr/sbin/policy-rc.d ]; then
    printf '#!/bin/sh\nexit 101\n' > /usr/sbin/policy-rc.d
    chmod +x /usr/sbin/policy-rc.d
    trap 'rm -f /usr/sbin/policy-rc.d' EXIT
fi
wait="-o DPkg::Lock::Timeout=300"
export DEBIAN_FRONTEND=noninteractive
apt-get $wait -qq update &&
    apt-get $wait -qq install --yes --no-install-recommends slurm-wlm slurmdbd munge mariadb-server ||
    echo "Slurm's packages could not be installed." >&2
