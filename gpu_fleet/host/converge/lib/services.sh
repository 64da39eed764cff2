# The service manager of this host, and its interface. Each of systemd.sh and supervisor.sh has these functions,
# with the manager's name before them; UNIT is a name without suffix, TYPE `service` or `timer`:
#   _missing                    sets DIFF: why the manager itself cannot be used now
#   _prepare                    starts it
#   _definitions                makes it read changed unit files
#   _difference UNIT TYPE       sets DIFF: how the unit differs from enabled and running
#   _is_running UNIT TYPE
#   _enable UNIT TYPE           before the three below; sets UNITS_CHANGE where _definitions has to come between
#   _start _restart _reload UNIT TYPE
#   _stop UNIT TYPE
#   _is_steady UNIT TYPE        runs, and has not just been restarted; sets GAVE_UP when it will not be restarted anymore
#   _leave                      called when the last of our units was removed
#   _log UNIT                   prints its last lines
#   _end UNIT                   sets END_STATUS and END_WORDS: exit status and last words of its program; empty: unknown
#   _override_directories UNIT TYPE    drop-in directories, where other files could change the unit; they are removed
#   _overrides UNIT TYPE        prints what else changes the unit and stays, after _difference: PATH (SETTING, SETTING)
# shellcheck shell=sh

MOST_RESTARTS=5 # of a service that is waited for; more restarts will not help

choose_manager() {
  MANAGER_STARTED=no # does this run start the manager, and with it all units?
  setting GPU_FLEET_SERVICE_MANAGER
  case ${VALUE:-auto} in
    systemd | supervisor) MANAGER=$VALUE ;;
    auto)
      MANAGER=supervisor
      if [ -z "$PREFIX" ] && [ -d /run/systemd/system ]; then MANAGER=systemd; fi
      ;;
    *)
      fail unsupported "GPU_FLEET_SERVICE_MANAGER is $VALUE, expected systemd, supervisor or auto"
      return 1
      ;;
  esac
  case $MANAGER:$VERB in
    systemd:plan | systemd:apply) is_systemd_new_enough ;;
  esac
}

SYSTEMD_SINCE=239 # RHEL 8, Debian 10. systemd-run has --collect since 236; older ones ignore most of what confines our services

is_systemd_new_enough() {
  systemd_version=$(systemctl --version 2>/dev/null | sed -n '1s/^systemd \([0-9][0-9]*\).*/\1/p')
  [ "${systemd_version:-$SYSTEMD_SINCE}" -lt "$SYSTEMD_SINCE" ] || return 0
  fail unsupported "this host has systemd $systemd_version; $SYSTEMD_SINCE or newer is needed: upgrade the distribution"
  return 1
}

# last_words: of the lines of a log the last, but none about what went well: a program that was started again meanwhile has written fifty
# of them since it said why it ended.
last_words() {
  awk 'NF { last = $0 } NF && !/level=(info|INFO|debug|DEBUG)/ { said = $0 } END { print said == "" ? last : said }'
}

# sweep_override PATH: removes the drop-in directory of our unit once it is empty.
sweep_override() {
  case ${1%/*} in
    *.service.d | *.timer.d) rmdir "$PREFIX${1%/*}" 2>/dev/null || return 0 ;;
  esac
}

# leave_other_manager: a host that was switched to systemd no longer needs supervisord.
leave_other_manager() {
  [ "$MANAGER" = supervisor ] || ! placed_get file "$SUPERVISOR_CONFIG" || supervisor_leave
}

service() {
  service_verb=$1
  shift
  "${MANAGER}_$service_verb" "$@"
}
