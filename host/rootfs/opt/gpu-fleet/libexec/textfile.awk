# Turns rows of the collectors, "NAME TAB ID TAB VALUE...", into Prometheus text. The one place for names, labels and help texts.
# The first six names and their label gpu are those of the Debian textfile guide (seed 001).

BEGIN {
  FS = "\t"
  metric("memory_total_bytes", "gauge", "gpu", "Memory of the GPU.")
  metric("memory_used_bytes", "gauge", "gpu", "Memory in use.")
  metric("utilization_percent", "gauge", "gpu", "GPU utilization: share of the last sample period in which at least one kernel was running.")
  metric("temperature_celsius", "gauge", "gpu", "Temperature of the GPU core; on AMD the junction temperature where it is known.")
  metric("power_draw_watts", "gauge", "gpu", "Current power draw.")
  metric("power_limit_watts", "gauge", "gpu", "Power limit of the GPU.")
  metric("temperature_limit_celsius", "gauge", "gpu", "Temperature at which the GPU reduces its clocks.")
  metric("memory_temperature_celsius", "gauge", "gpu", "Temperature of the memory.")
  metric("memory_temperature_limit_celsius", "gauge", "gpu", "Maximum operating temperature of the memory.")
  metric("ecc_corrected_total", "counter", "gpu", "Corrected memory errors since the driver was loaded.")
  metric("ecc_uncorrected_total", "counter", "gpu", "Uncorrectable memory errors since the driver was loaded.")
  metric("info", "gauge", "gpu", "Always 1; identity of the GPU. pci has the form used in the kernel log.")
  metric("partitions", "gauge", "gpu", "Partitions that the GPU is divided into.")
  metric("unreadable", "gauge", "", "GPUs that the driver lists but cannot read, for example because they fell off the bus.")
  metric("nvlink_transmit_bytes_total", "counter", "gpu link", "Data sent over one NVLink.")
  metric("nvlink_receive_bytes_total", "counter", "gpu link", "Data received over one NVLink.")
  metric("nvlinks_active", "gauge", "gpu", "NVLinks of the GPU that are up.")
  metric("nvlink_speed_bytes_per_second", "gauge", "gpu", "Speed of the slowest NVLink that is up, in one direction.")
  metric("fabric_info", "gauge", "gpu cluster_uuid clique", "Always 1; NVLink domain across hosts that the GPU belongs to, and its clique there.")
  metric("pcie_transmit_bytes_per_second", "gauge", "gpu", "PCIe traffic from the GPU, as sampled by the driver.")
  metric("pcie_receive_bytes_per_second", "gauge", "gpu", "PCIe traffic to the GPU, as sampled by the driver.")
  metric("collector_success", "gauge", "collector", "1 when the last collection succeeded.")
  metric("collector_part_success", "gauge", "collector part", "0 when a part of the last collection failed, though not all of it: readings, of GPUs that are listed.")
  metric("collector_duration_seconds", "gauge", "collector", "How long the last collection took.")
  metric("collector_timestamp_seconds", "gauge", "collector", "When the last collection ended.")
}

function metric(name, type, labels, help) {
  order[++metrics] = name
  kind[name] = type
  names[name] = labels
  text[name] = help
}

# Character by character instead of by gsub: awk implementations disagree about backslashes in a replacement.
function label(name, value,    i, letter, out) {
  for (i = 1; i <= length(value); i++) {
    letter = substr(value, i, 1)
    out = out (letter == "\\" || letter == "\"" ? "\\" : "") letter
  }
  return name "=\"" out "\""
}

$1 == "info" {
  line = "{" label("gpu", $2) "," label("uuid", $3) "," label("model", $4) "," label("pci", $5) "," label("driver_version", $6) "} 1"
  samples["info"] = samples["info"] "node_gpu_info" line "\n"
  next
}

# The last field is the value; the fields before it are the labels' values in the order of their names.
$1 in kind {
  count = split(names[$1], name, " ")
  labels = ""
  for (i = 1; i <= count; i++) labels = labels (i > 1 ? "," : "") label(name[i], $(i + 1))
  samples[$1] = samples[$1] "node_gpu_" $1 (count ? "{" labels "}" : "") " " $NF "\n"
}

END {
  for (i = 1; i <= metrics; i++) {
    if (!(order[i] in samples)) continue
    printf "# HELP node_gpu_%s %s\n# TYPE node_gpu_%s %s\n%s", order[i], text[order[i]], order[i], kind[order[i]], samples[order[i]]
  }
}
