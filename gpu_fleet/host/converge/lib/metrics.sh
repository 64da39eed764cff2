# The result of a check in Prometheus text format, for node_exporter's textfile collector.
# shellcheck shell=sh

# count_drift PART ITEMS: remembers it for write_metrics.
count_drift() {
  printf 'gpu_fleet_drift_items{part="%s"} %d\n' "$1" "$2" >>"$SCRATCH/metrics"
}

# write_metrics: replaces the file of --metrics atomically.
write_metrics() {
  [ -n "$METRICS" ] || return 0
  metrics_new=$STATE/metrics.new
  {
    echo '# HELP gpu_fleet_drift_items Differences between this host and its state after the last apply, by part.'
    echo '# TYPE gpu_fleet_drift_items gauge'
    cat "$SCRATCH/metrics"
    echo '# HELP gpu_fleet_check_success 1 when the last check could compare every part.'
    echo '# TYPE gpu_fleet_check_success gauge'
    echo "gpu_fleet_check_success $((COUNT_FAILED == 0))"
    echo '# HELP gpu_fleet_check_timestamp_seconds When the last check ended.'
    echo '# TYPE gpu_fleet_check_timestamp_seconds gauge'
    echo "gpu_fleet_check_timestamp_seconds $(date +%s)"
  } >"$metrics_new" || return 0
  # Renamed with -T instead of written in place: other users may write in that directory, and we must not follow their links.
  chmod 0644 "$metrics_new" && mv -fT "$metrics_new" "$PREFIX$METRICS" && return 0
  rm -f "$metrics_new"
}
