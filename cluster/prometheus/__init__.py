"""Rules and dashboards, judged by promtool and by a real Prometheus. No cluster is needed: only Go, once."""
