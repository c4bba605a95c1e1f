# The lane on a real Kubernetes; docs/development.md tells how to use it.
# K8S chooses the Kubernetes version (1.35 or 1.36); PYTHON is set by the Makefile that includes this.
K8S ?= 1.35
CLUSTER = $(PYTHON) -m pytest -c tests/cluster/pytest.ini

.PHONY: cluster-binaries test-cluster soak
cluster-binaries:
	$(PYTHON) -m tests.cluster binaries --k8s $(K8S)

# Every scenario once with the gates on, then the named smoke set on a Kubernetes as it comes.
test-cluster: cluster-binaries
	K8S=$(K8S) $(CLUSTER) -m "not soak"
	K8S=$(K8S) GATES=default $(CLUSTER) -m "smoke and not soak"

# Full counts, the whole matrix, both Kubernetes versions.
soak:
	$(PYTHON) -m tests.cluster binaries --k8s 1.35
	$(PYTHON) -m tests.cluster binaries --k8s 1.36
	K8S=1.35 SOAK=1 $(CLUSTER)
	K8S=1.35 SOAK=1 GATES=default $(CLUSTER) -m smoke
	K8S=1.36 SOAK=1 $(CLUSTER)
	K8S=1.36 SOAK=1 GATES=default $(CLUSTER) -m smoke
