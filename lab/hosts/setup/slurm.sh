#!/bin/sh
systemctl disable munge slurmctld slurmd >/dev/null 2>&1
echo 'the key of all hosts of the lab, of no other host' >/etc/munge/munge.key
chown munge:munge /etc/munge/munge.key
chmod 0400 /etc/munge/munge.key
case $(slurmd -V) in # neither looks for groups, which nspawn has of both versions
  *22.05*) plugin=cgroup/v1 ;;
  *) plugin=disabled ;;
esac
echo "CgroupPlugin=$plugin" >/etc/slurm/cgroup.conf
mkdir -p /var/lib/slurm/slurmctld /var/lib/slurm/slurmd /var/log/slurm
chown slurm:slurm /var/lib/slurm /var/lib/slurm/slurmctld /var/log/slurm
