#!/bin/sh
mkdir -p /etc/rpm /etc/yum.repos.d /etc/pki/rpm-gpg
echo '%_dbpath /var/lib/rpm' >/etc/rpm/macros
printf '%s\n' '[main]' gpgcheck=1 installonly_limit=3 clean_requirements_on_remove=True best=True skip_if_unavailable=False \
  >/etc/dnf/dnf.conf
