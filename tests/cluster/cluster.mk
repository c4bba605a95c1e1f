# The lane on a real Kubernetes; docs/development.md tells how to use it. Included by the Makefile, which sets BIN and
# READY. K8S chooses the Kubernetes version: 1.35 or 1.36.
K8S ?= 1.35
# Two clusters at a time: the scenarios wait most of their time.
LANE = $(BIN)/python -m pytest -c tests/cluster/pytest.ini -n 2 --dist worksteal tests/cluster/scenarios

.PHONY: cluster-binaries test-cluster soak

cluster-binaries: $(READY)   ## Build the real components that are missing (Go; once).
	@$(BIN)/python -m tests.cluster binaries --k8s $(K8S)

test-cluster: cluster-binaries   ## The core lane on a real Kubernetes: all gates on, then a smoke set on its defaults.
	K8S=$(K8S) $(LANE) -m "not soak"
	K8S=$(K8S) GATES=default $(LANE) -m "smoke and not soak"

soak: $(READY)   ## Full counts, long runs, both Kubernetes versions.
	$(BIN)/python -m tests.cluster binaries --k8s 1.35
	$(BIN)/python -m tests.cluster binaries --k8s 1.36
	K8S=1.35 SOAK=1 $(LANE)
	K8S=1.35 SOAK=1 GATES=default $(LANE) -m smoke
	K8S=1.36 SOAK=1 $(LANE)
	K8S=1.36 SOAK=1 GATES=default $(LANE) -m smoke
