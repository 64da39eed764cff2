"""The parts of Grafana's HTTP API, one module each; none of them knows HTTP beyond a status."""
