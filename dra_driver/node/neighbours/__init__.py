"""What others do on the node: pods and claims of the kubelet, other drivers, and claims that are gone."""
