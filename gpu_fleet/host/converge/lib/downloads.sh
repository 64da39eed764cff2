# Downloaded programs: found by their sha256, verified before they can run, unpacked from their archive.
# shellcheck shell=sh

# download_difference PATH MODE SHA256 MEMBER: sets DIFF. The record of what was placed has the source of a file, because the checksum
# of an archive's member is not known beforehand; its inode, size and ctime avoid reading hundreds of megabytes.
download_difference() {
  file_kind_difference "$1" || return 0
  if ! placed_get bin "$1" || [ "$PLACED_B" != "$3:$4" ]; then
    DIFF="another version"
  elif [ "$(fingerprint "$1")" != "$PLACED_C" ] && ! has_sha256 "$PREFIX$1" "$PLACED_A"; then
    DIFF="content differs"
  else
    meta_difference "$1" "$2" root root
  fi
}

# fingerprint PATH: called only as $(fingerprint ...), a subshell, which it replaces.
fingerprint() {
  exec stat -c '%i:%s:%z' "$PREFIX$1"
}

# place_download PATH MODE SHA256 MEMBER URL PART
place_download() {
  make_parent "$1" || return 1
  unlock "$1"
  new_name "$1"
  with_heartbeat "$6: still downloading" find_source "$3" "$5" || return 1
  if [ "$4" = - ]; then
    attempt "cannot write $PREFIX$1" copy_private "$SOURCE" "$NEW" && verify "$NEW" "$3" "$SOURCE_NAME"
  else
    verify "$SOURCE" "$3" "$SOURCE_NAME" && unpack "$SOURCE" "$4" "$5"
  fi || { rm -f "$NEW"; return 1; }
  if [ "$4" = - ]; then SHA256=$3; else sha256 "$NEW"; fi
  place_sum=$SHA256
  swap_in "$1" "$2" root root || { rm -f "$NEW"; return 1; }
  placed_add bin "$1" "$6" "$place_sum" "$3:$4" "$(fingerprint "$1")"
}

# find_source SHA256 URL: sets SOURCE to a local file that should have this checksum, and SOURCE_NAME to its name in messages.
find_source() {
  for SOURCE in "${ARTIFACTS:-/nonexistent}/$1" "${ENVELOPE:-/nonexistent}/artifacts/$1"; do
    SOURCE_NAME=$SOURCE
    [ -f "$SOURCE" ] && return 0
  done
  if [ "$2" = - ]; then
    fail download "the file with sha256 $1 is not on this host and was not sent with the bundle; it has to be in the controller's artifact directory"
    return 1
  fi
  SOURCE=$SCRATCH/$1
  SOURCE_NAME=$(printf '%s\n' "$2" | sed 's|//[^/@]*@|//|') # a mirror's URL may hold a password
  [ -f "$SOURCE" ] && return 0
  find_most=$(most_download_kib)
  if [ "$find_most" -lt 1024 ]; then
    fail disk-full "not enough space to download $SOURCE_NAME: $KEEP_FREE_MIB MiB below $STATE must stay free; free some space and apply again"
    return 1
  fi
  say "downloading $SOURCE_NAME"
  # A server that sends more than it should must not fill the disk before the checksum is compared. ulimit counts blocks of 512 bytes
  # (bash outside POSIX mode: 1024); reaching the limit ends curl and wget.
  if command -v curl >/dev/null; then
    find_said=$(ulimit -f "$((find_most * 2))" && curl -fsSL --retry 2 --connect-timeout 20 --speed-limit 1024 --speed-time 60 -o "$SOURCE" "$2" 2>&1 </dev/null)
  elif command -v wget >/dev/null; then
    find_said=$(ulimit -f "$((find_most * 2))" && within 1800 wget -O "$SOURCE" "$2" 2>&1 </dev/null)
  else
    fail unsupported "curl or wget is needed to download $SOURCE_NAME; install one, or let the controller send the files (artifacts: controller)"
    return 1
  fi
  find_code=$?
  [ "$find_code" -eq 0 ] && return 0
  find_kib=$(($(wc -c <"$SOURCE" 2>/dev/null || echo 0) / 1024))
  rm -f "$SOURCE"
  if [ "$find_kib" -ge "$find_most" ]; then
    if [ "$find_most" -eq "$((MOST_DOWNLOAD_MIB * 1024))" ]; then
      fail download "$SOURCE_NAME is larger than $MOST_DOWNLOAD_MIB MiB, more than any program of this bundle; it was discarded; check what the server sends"
    else
      fail disk-full "$SOURCE_NAME is larger than the $((find_most / 1024)) MiB that can be used below $STATE; free some space and apply again, or check what the server sends"
    fi
    return 1
  fi
  if [ "$find_code" -eq 23 ]; then # curl does not say why it could not write
    fail disk-full "cannot store $SOURCE_NAME below $STATE; free some space and apply again"
    return 1
  fi
  fail_as download "cannot download $SOURCE_NAME" "$(printf '%s\n' "$find_said" | sed 's|//[^/@]*@|//|g')"
}

MOST_DOWNLOAD_MIB=4096 # the largest, an archive of dcgm-exporter's image, has about 1.5 GiB
KEEP_FREE_MIB=128      # for everything else on this file system

# most_download_kib: the largest download that fits.
most_download_kib() {
  most_free=$(df -Pk "$SCRATCH" 2>/dev/null | awk 'NR == 2 { print $4 }')
  most_kib=$((MOST_DOWNLOAD_MIB * 1024))
  [ "$((${most_free:-$most_kib} - KEEP_FREE_MIB * 1024))" -ge "$most_kib" ] || most_kib=$((most_free - KEEP_FREE_MIB * 1024))
  echo "$most_kib"
}

# verify FILE SHA256 NAME
verify() {
  has_sha256 "$1" "$2" && return 0
  fail checksum "$3 has sha256 $SHA256 ($(wc -c <"$1" | tr -d ' ') bytes), but $2 is expected; it was truncated or replaced in transit and was not used"
}

# unpack ARCHIVE MEMBER URL: the member becomes $NEW.
unpack() {
  case $3 in
    *.zip) unpack_zip "$1" "$2" ;;
    *) attempt "cannot unpack $2" unpack_tar "$1" "$2" ;;
  esac
}

unpack_tar() {
  rm -f "$NEW"
  gzip -dc <"$1" >"$SCRATCH/tar" && (umask 077 && tar -xOf "$SCRATCH/tar" "$2" >"$NEW")
  unpack_code=$?
  rm -f "$SCRATCH/tar"
  return "$unpack_code"
}

# unpack_zip ARCHIVE MEMBER: many hosts have no unzip, but all have gzip, and a deflated member differs from a gzip file only in its
# header and trailer. Its checksum and size from the archive's directory become gzip's trailer, so gzip verifies them.
unpack_zip() {
  unpack_entry=$(zip_entry "$1" "$2")
  if [ -z "$unpack_entry" ]; then
    fail download "the archive has no member $2 that this program can unpack"
    return 1
  fi
  read -r zip_method zip_start zip_size zip_trailer <<EOF
$unpack_entry
EOF
  attempt "cannot unpack $2" inflate "$1"
}

inflate() {
  rm -f "$NEW"
  if [ "$zip_method" = 0 ]; then
    (umask 077 && tail -c "+$zip_start" "$1" | head -c "$zip_size" >"$NEW")
  else
    {
      printf '\037\213\010\000\000\000\000\000\000\003' # a gzip header without name and time
      tail -c "+$zip_start" "$1" | head -c "$zip_size"
      # shellcheck disable=SC2059 # a format built by zip_entry, without text from the archive
      printf "$zip_trailer"
    } | (umask 077 && gzip -dc >"$NEW")
  fi
}

# zip_entry ARCHIVE MEMBER: "METHOD START SIZE TRAILER", START counted from 1, TRAILER as octal escapes.
zip_entry() {
  entry_size=$(wc -c <"$1")
  entry_tail=$((entry_size < 65557 ? entry_size : 65557)) # the end record and the longest comment it can have
  # The archive's directory is near the end record; both are small, so they are read as numbers, one byte each.
  read -r entry_at entry_length <<EOF
$(tail -c "$entry_tail" "$1" | od -An -v -tu1 | awk -v size="$entry_size" -v tail="$entry_tail" '
    { for (i = 1; i <= NF; i++) b[n++] = $i }
    function le4(at) { return b[at] + 256 * (b[at + 1] + 256 * (b[at + 2] + 256 * b[at + 3])) }
    END { for (i = n - 22; i >= 0; i--) if (b[i] == 80 && b[i + 1] == 75 && b[i + 2] == 5 && b[i + 3] == 6) { print le4(i + 16), le4(i + 12); exit } }')
EOF
  [ -n "$entry_at" ] || return 1
  entry_found=$(tail -c "+$((entry_at + 1))" "$1" | head -c "$entry_length" | od -An -v -tu1 | MEMBER=$2 awk '
    { for (i = 1; i <= NF; i++) b[n++] = $i }
    function le2(at) { return b[at] + 256 * b[at + 1] }
    function le4(at) { return le2(at) + 65536 * le2(at + 2) }
    function name(at, length_, s, i) { for (i = 0; i < length_; i++) s = s sprintf("%c", b[at + i]); return s }
    END {
      for (at = 0; at + 46 <= n && b[at] == 80 && b[at + 1] == 75; at += 46 + le2(at + 28) + le2(at + 30) + le2(at + 32)) {
        if (name(at + 46, le2(at + 28)) != ENVIRON["MEMBER"]) continue
        if (le2(at + 10) != 0 && le2(at + 10) != 8) exit
        trailer = ""
        for (i = 16; i < 28; i++) if (i < 20 || i >= 24) trailer = trailer (b[at + i] == 37 ? "%%" : sprintf("\\%03o", b[at + i]))
        printf "%d %.0f %.0f %s\n", le2(at + 10), le4(at + 42), le4(at + 20), trailer
        exit
      }
    }')
  [ -n "$entry_found" ] || return 1
  read -r entry_method entry_header entry_bytes entry_trailer <<EOF
$entry_found
EOF
  # The name and the extra field are repeated before the data, the latter possibly with another length.
  entry_skip=$(tail -c "+$((entry_header + 27))" "$1" | head -c 4 | od -An -v -tu1 | awk '{ print 30 + $1 + 256 * $2 + $3 + 256 * $4 }')
  printf '%s\n' "$entry_method $((entry_header + 1 + entry_skip)) $entry_bytes $entry_trailer"
}
