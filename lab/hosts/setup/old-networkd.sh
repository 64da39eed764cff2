#!/bin/sh
# shellcheck disable=SC2016  # systemd's specifiers, and what its shell expands
mkdir -p /etc/systemd/system/systemd-networkd.service.d
printf '[Service]\nExecStartPost=+/bin/sh -c "ip link set host0 up; %s"\n' \
  'ip address add $$(sed -n s/^Address=//p /etc/systemd/network/10-host0.network) dev host0' \
  >/etc/systemd/system/systemd-networkd.service.d/lab.conf
