#!/bin/sh
ln -sf bash /bin/sh
rm -rf /etc/apt /etc/debian_version /usr/bin/apt* /usr/bin/dpkg*
printf '%s\n' 'NAME="Rocky Linux"' 'VERSION="9.6 (Blue Onyx)"' 'ID="rocky"' 'ID_LIKE="rhel centos fedora"' 'VERSION_ID="9.6"' \
  'PLATFORM_ID="platform:el9"' 'PRETTY_NAME="Rocky Linux 9.6 (Blue Onyx), of gpu-fleet lab"' >/usr/lib/os-release
cat >/tmp/rocky-release.spec <<'END'
Name: rocky-release
Version: 9.6
Release: 1
Summary: What makes dnf know the release
License: none
BuildArch: noarch
Provides: system-release = %{version}, /bin/sh
%description
Stand-in of gpu-fleet's lab.
%files
END
rpmbuild --quiet -bb --define '_topdir /tmp/rpmbuild' /tmp/rocky-release.spec
rpm --install /tmp/rpmbuild/RPMS/noarch/*.rpm
rm -rf /tmp/rpmbuild /tmp/rocky-release.spec
mkdir -p /etc/containers/containers.conf.d
printf '[containers]\npids_limit = 0\n[engine]\nruntime = "runc"\n' >/etc/containers/containers.conf.d/lab.conf
