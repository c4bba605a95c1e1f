// Manifests that contain the selector, for copying.

const indented = (text, spaces) => text.split("\n").map((line) => `${" ".repeat(spaces)}${line}`.trimEnd()).join("\n");

// A block scalar of YAML keeps every character of an expression except blanks and empty lines at its ends.
const block = (expression, spaces) => `|-\n${indented(expression.replace(/^\s*\n/, "").trimEnd() || "true", spaces)}`;

export const deviceClass = (expression) => `apiVersion: resource.k8s.io/v1
kind: DeviceClass
metadata:
  name: my-class
spec:
  selectors:
  - cel:
      expression: ${block(expression, 8)}
`;

export const claimTemplate = (expression) => `apiVersion: resource.k8s.io/v1
kind: ResourceClaimTemplate
metadata:
  name: my-claim
spec:
  spec:
    devices:
      requests:
      - name: gpu
        exactly:
          deviceClassName: gpu.nvidia.com
          selectors:
          - cel:
              expression: ${block(expression, 16)}
`;
