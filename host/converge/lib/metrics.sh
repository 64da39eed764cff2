# What a check found, in Prometheus' text format, for the textfile collector of node_exporter.
# shellcheck shell=sh

# count_drift PART ITEMS: remembers it for write_metrics.
count_drift() {
  printf 'gpu_fleet_drift_items{part="%s"} %d\n' "$1" "$2" >>"$SCRATCH/metrics"
}

# write_metrics: replaces the file of --metrics, whole or not at all.
write_metrics() {
  [ -n "$METRICS" ] || return 0
  metrics_new=$STATE/metrics.new
  {
    echo '# HELP gpu_fleet_drift_items Differences between this host and what the last apply left, by part.'
    echo '# TYPE gpu_fleet_drift_items gauge'
    cat "$SCRATCH/metrics"
    echo '# HELP gpu_fleet_check_success 1 when the last check could compare every part.'
    echo '# TYPE gpu_fleet_check_success gauge'
    echo "gpu_fleet_check_success $((COUNT_FAILED == 0))"
    echo '# HELP gpu_fleet_check_timestamp_seconds When the last check ended.'
    echo '# TYPE gpu_fleet_check_timestamp_seconds gauge'
    echo "gpu_fleet_check_timestamp_seconds $(date +%s)"
  } >"$metrics_new" || return 0
  # Renamed and not written in place, with -T: others may write in that directory, and a link of theirs must lead us nowhere.
  chmod 0644 "$metrics_new" && mv -fT "$metrics_new" "$PREFIX$METRICS" && return 0
  rm -f "$metrics_new"
}
