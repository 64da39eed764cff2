# Services under systemd. See services.sh for what each function does.
# shellcheck shell=sh

systemd_missing() {
  DIFF=
}

systemd_prepare() {
  :
}

systemd_definitions() {
  attempt "systemd did not read the unit files" systemctl daemon-reload
}

systemd_properties() {
  systemctl show -p LoadState -p UnitFileState -p ActiveState -p SubState -p NeedDaemonReload -p InvocationID -p NRestarts \
    -p DropInPaths -- "$1.$2" \
    </dev/null >"$SCRATCH/show" 2>/dev/null
  UNIT_LOAD='' UNIT_FILE='' UNIT_ACTIVE='' UNIT_SUB='' UNIT_RELOAD='' UNIT_RUN='' UNIT_RESTARTS=0 UNIT_DROPINS=''
  while IFS='=' read -r property value; do
    case $property in
      LoadState) UNIT_LOAD=$value ;;
      UnitFileState) UNIT_FILE=$value ;;
      ActiveState) UNIT_ACTIVE=$value ;;
      SubState) UNIT_SUB=$value ;;
      NeedDaemonReload) UNIT_RELOAD=$value ;;
      InvocationID) UNIT_RUN=$value ;;
      DropInPaths) UNIT_DROPINS=$value ;;
      NRestarts) UNIT_RESTARTS=$value ;; # by systemd itself, since the last reset-failed
    esac
  done <"$SCRATCH/show"
}

systemd_difference() {
  systemd_properties "$1" "$2"
  DIFF=
  case $UNIT_LOAD:$UNIT_FILE in
    masked:* | *:masked*) DIFF="is masked" ;;
    not-found:*) DIFF="is not set up" ;;
    *:disabled) DIFF="is disabled" ;;
    *) [ "$UNIT_RELOAD" = yes ] && DIFF="has a unit file that systemd has not read" ;;
  esac
  case $UNIT_LOAD:$UNIT_ACTIVE in
    not-found:* | *:active | *:reloading) ;;
    *) DIFF="${DIFF:+$DIFF and }is not running${UNIT_SUB:+ ($UNIT_SUB)}" ;;
  esac
}

systemd_is_running() {
  systemd_properties "$1" "$2"
  case $UNIT_ACTIVE in
    inactive | failed | '') return 1 ;;
  esac
}

# Reloading all unit files, which enable, disable and unmask do by themselves, takes a second on a host with hundreds of units: it is left
# to systemd_definitions, once per part. Without it systemd 255 and newer would keep reporting that an enabled unit changed on disk.
systemd_enable() {
  will_flush_links
  case $(systemctl is-enabled "$1.$2" 2>/dev/null </dev/null) in
    enabled) ;;
    masked*)
      UNITS_CHANGE=yes
      systemctl --no-reload unmask "$1.$2" >/dev/null 2>&1 </dev/null
      systemctl --no-reload unmask --runtime "$1.$2" >/dev/null 2>&1 </dev/null
      ;;
    *) UNITS_CHANGE=yes ;;
  esac
  systemctl reset-failed "$1.$2" >/dev/null 2>&1 </dev/null # a unit that failed too often is not started again before this
  attempt "$1.$2 cannot be enabled" systemctl --quiet --no-reload enable "$1.$2"
}

systemd_start() {
  attempt "$1.$2 did not start" systemctl start "$1.$2"
}

systemd_restart() {
  attempt "$1.$2 did not restart" systemctl restart "$1.$2"
}

systemd_reload() {
  systemctl reload-or-restart "$1.$2" >/dev/null 2>&1 </dev/null && return
  systemd_log "$1" >"$SCRATCH/log"
  fail service-failed "service $1 did not accept its new configuration"
}

# will_flush_links: the links of enabled units.
will_flush_links() {
  for links_directory in /etc/systemd/system /etc/systemd/system/*.wants; do
    will_flush "$links_directory"
  done
}

systemd_stop() {
  will_flush_links
  systemctl --quiet --no-reload disable --now "$1.$2" >/dev/null 2>&1 </dev/null
  # A timer's service may be running.
  [ "$2" = service ] || systemctl stop "$1.service" >/dev/null 2>&1 </dev/null
  systemctl reset-failed "$1.service" >/dev/null 2>&1 </dev/null
  return 0
}

systemd_leave() {
  systemd_definitions
}

systemd_is_steady() {
  systemd_properties "$1" "$2"
  if [ "$UNIT_ACTIVE" = failed ] || [ "$UNIT_RESTARTS" -ge "$MOST_RESTARTS" ]; then GAVE_UP=yes; fi
  [ "$UNIT_ACTIVE" = active ] || return 1
  [ "$2" = service ] || return 0
  # systemd reports a program as active as soon as it runs, so one that exits immediately is detected only by a second look.
  steady_run=$UNIT_RUN
  pause && pause # one that exits later is detected by the part's own checks, or by its next restart
  systemd_properties "$1" "$2"
  [ "$UNIT_ACTIVE" = active ] && [ "$UNIT_RUN" = "$steady_run" ]
}

systemd_log() {
  journalctl --quiet --no-pager --output=cat --lines=20 --unit="$1.service" 2>/dev/null </dev/null
}

systemd_end() {
  END_STATUS=$(systemctl show --value -p ExecMainStatus -- "$1.service" </dev/null 2>/dev/null)
  END_WORDS=$(journalctl --quiet --no-pager --output=cat --lines=200 --unit="$1.service" _TRANSPORT=stdout 2>/dev/null </dev/null | last_words)
  case $END_STATUS in # of systemd itself, which could not start the program: systemd.exec(5)
    2[0-9][0-9]) [ -n "$END_WORDS" ] || systemd_end_before_start "$1" ;;
  esac
}

# systemd_end_before_start UNIT: sets END_WORDS to what systemd says of a program that never ran.
systemd_end_before_start() {
  END_WORDS=$(systemd_log "$1" | awk -v unit="$1.service: " '
    index($0, unit) == 1 { said = substr($0, length(unit) + 1) }
    said ~ /^(Failed|Unable) to / { why = said " " }
    said ~ /^Main process exited/ { how = said; sub(/.*status=/, "status ", how) }
    END { print why "(" how ")" }')
  case $END_STATUS:$(findmnt -n -o OPTIONS -T /opt/gpu-fleet 2>/dev/null) in
    203:*noexec*) END_WORDS="$END_WORDS; /opt/gpu-fleet is on a file system that is mounted noexec" ;;
  esac
}

# Also those for all units whose names begin as ours do, such as gpu-fleet-.service.d, and of a timer those of the service that it starts.
systemd_override_directories() {
  override_name=$1
  while :; do
    for override_root in /etc/systemd/system /etc/systemd/system.control /run/systemd/system /run/systemd/system.control \
      /usr/local/lib/systemd/system; do
      echo "$override_root/$override_name.$2.d"
      [ "$2" = service ] || echo "$override_root/$override_name.service.d"
    done
    override_name=${override_name%-}
    override_name=${override_name%-*}-
    case $override_name in
      gpu-fleet-*) ;;
      *) return 0 ;;
    esac
  done
}

# Drop-ins of packages (/usr/lib) and generators, which would place them again, and those for all services or timers. Of the latter only
# what makes another program of ours, stops it, or hides what it says: distributions change time limits in service.d (Fedora's
# 10-timeout-abort.conf), LXC what a container cannot confine (zzz-lxc-service.conf), sites the environment, of which `environment`
# keeps what we use.
systemd_overrides() {
  overrides_paths=$UNIT_DROPINS # systemd_difference has just asked
  [ "$2" = service ] || overrides_paths="$overrides_paths $(systemctl show --value -p DropInPaths -- "$1.service" </dev/null 2>/dev/null)"
  for overrides_path in $overrides_paths; do
    case $overrides_path in
      /etc/*/gpu-fleet-*.d/* | /run/systemd/system*/gpu-fleet-*.d/* | /usr/local/lib/*/gpu-fleet-*.d/*) continue ;; # to be removed
    esac
    awk -v path="$overrides_path" '
      /^[ \t]*[A-Za-z]+[ \t]*=/ {
        key = $0
        gsub(/^[ \t]+|[ \t]*=.*/, "", key)
        if (path !~ /\/gpu-fleet-[^\/]*\/[^\/]*$/ && key !~ /^(Exec|Condition|Assert)|^(User|Group|SupplementaryGroups|DynamicUser|AmbientCapabilities|RootDirectory|RootImage|Type|Restart|RuntimeMaxSec|MemoryMax|MemoryHigh|MemoryLimit|CPUQuota|TasksMax|IPAddressDeny|StandardOutput|StandardError|OnCalendar|On[A-Za-z]*Sec)$/) next
        if (!seen[key]++) keys = keys (keys == "" ? "" : ", ") key
      }
      END { if (keys != "") printf "%s (%s)\n", path, keys }' "$PREFIX$overrides_path" 2>/dev/null
  done
}
