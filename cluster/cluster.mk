# The lane on a real Kubernetes; docs/development.md describes how to use it. Included by the Makefile, which sets BIN and
# READY. K8S chooses the Kubernetes version: 1.34 to 1.37. RETRY=1 shows what failed once more, on fresh clusters.
K8S ?= 1.35
SECOND_K8S ?= 1.37
# Several clusters at a time: the scenarios wait most of their time.
CLUSTERS ?= 4
LANE = $(BIN)/python -m pytest -c cluster/pytest.ini -n $(CLUSTERS) --dist worksteal cluster/scenarios
AGAIN = --last-failed --last-failed-no-failures=none

# $(call lane,version,gates,options): one set of scenarios; with RETRY=1, the second run of what failed counts.
define lane
{ echo "Kubernetes $(1), feature gates: $(2)"; \
  K8S=$(1) GATES=$(2) $(LANE) -o cache_dir=$(CURDIR)/build/cluster-lane/$(1)-$(2) $(3) || { \
    test -n "$(RETRY)" && echo "once more, on fresh clusters: what failed" && \
    K8S=$(1) GATES=$(2) $(LANE) -o cache_dir=$(CURDIR)/build/cluster-lane/$(1)-$(2) $(3) $(AGAIN); }; }
endef

# $(call lanes,version,options with all gates on,options on the default gates): both sets run, even if the first one fails.
define lanes
@failed=; \
$(call lane,$(1),on,$(2)) || failed="$$failed on"; \
$(call lane,$(1),default,$(3)) || failed="$$failed default"; \
test -z "$$failed" || { echo "Kubernetes $(1): scenarios failed with feature gates:$$failed"; exit 1; }
endef

.PHONY: test-prometheus bench-cluster cluster-binaries verdicts test-cluster soak soak-first soak-second

cluster-binaries: $(READY)   ## Build the real components that are missing (Go; once).
	@$(BIN)/python -m cluster binaries --k8s $(K8S)

verdicts: $(READY)   ## Record what Kubernetes' own packages answer about selectors and allocation (Go; for make test).
	@$(BIN)/python -m cluster.oracle record

test-cluster: cluster-binaries   ## The core lane on a real Kubernetes: all gates on, then a smoke set on its defaults.
	$(call lanes,$(K8S),-m "not soak",-m "smoke and not soak")

test-prometheus: $(READY)   ## Alerts, rules and dashboards, judged by promtool and a real Prometheus (Go; once).
	@$(BIN)/python -m cluster prometheus
	$(BIN)/python -m pytest -c cluster/pytest.ini cluster/prometheus

soak: soak-first soak-second   ## Full counts, long runs, both machines, both Kubernetes versions.

soak-first: export SOAK = 1
soak-first: cluster-binaries
	$(call lanes,$(K8S),,-m smoke)

soak-second: export SOAK = 1
soak-second: $(READY)
	@$(BIN)/python -m cluster binaries --k8s $(SECOND_K8S)
	$(call lanes,$(SECOND_K8S),,-m smoke)

bench-cluster: cluster-binaries  ## Measure the driver beside a Go plugin on Kubernetes' helper, on a real API server.
	@$(BIN)/python -m cluster floor
	@$(BIN)/python -m benchmarks.side_by_side --k8s $(K8S)
