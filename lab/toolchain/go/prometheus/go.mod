module gpu-fleet.invalid/toolchain/prometheus

go 1.26.0

tool github.com/prometheus/prometheus/cmd/promtool

require github.com/prometheus/prometheus v0.315.0

replace cloud.google.com/go => cloud.google.com/go v0.123.0
