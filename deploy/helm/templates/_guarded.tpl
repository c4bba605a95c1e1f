{{/*
A class for labelled namespaces alone: claims are judged when they are written and, whatever class led there, when the
scheduler writes the allocation. Arguments: root, name, class, devices (a pattern of device names), label.
apiVersions: the API server shows objects of every other version as v1.
*/}}
{{- define "dra-driver.guarded" -}}
{{- $name := printf "%s-%s" (include "dra-driver.fullname" .root) .name -}}
{{- $labels := include "dra-driver.labels" .root -}}
apiVersion: admissionregistration.k8s.io/v1
kind: ValidatingAdmissionPolicy
metadata:
  name: {{ $name }}-requests
  labels:
    {{- $labels | nindent 4 }}
spec:
  failurePolicy: Fail
  matchConstraints:
    matchPolicy: Equivalent
    resourceRules:
      - apiGroups: [resource.k8s.io]
        apiVersions: [v1]
        operations: [CREATE, UPDATE]
        resources: [resourceclaims, resourceclaimtemplates]
  matchConditions:
    {{- include "dra-driver.reviewed" .root | nindent 4 }}
  variables:
    - name: requests
      expression: >-
        (request.kind.kind == "ResourceClaimTemplate" ? dyn(object).?spec.?spec.?devices.?requests
        : dyn(object).?spec.?devices.?requests).orValue([])
    - name: asking
      expression: >-
        variables.requests.exists(r, r.?exactly.?deviceClassName.orValue("") == "{{ .class }}"
        || r.?firstAvailable.orValue([]).exists(e, e.?deviceClassName.orValue("") == "{{ .class }}"))
  validations:
    - expression: >-
        !variables.asking || namespaceObject.metadata.?labels[?"{{ .label }}"].orValue("") == "true"
      message: >-
        device class {{ .class }} is for namespaces that an administrator has labelled {{ .label }}=true
      reason: Forbidden
---
apiVersion: admissionregistration.k8s.io/v1
kind: ValidatingAdmissionPolicyBinding
metadata:
  name: {{ $name }}-requests
  labels:
    {{- $labels | nindent 4 }}
spec:
  policyName: {{ $name }}-requests
  validationActions: [Deny]
---
apiVersion: admissionregistration.k8s.io/v1
kind: ValidatingAdmissionPolicy
metadata:
  name: {{ $name }}-allocations
  labels:
    {{- $labels | nindent 4 }}
spec:
  failurePolicy: Fail
  matchConstraints:
    matchPolicy: Equivalent
    resourceRules:
      - apiGroups: [resource.k8s.io]
        apiVersions: [v1]
        operations: [UPDATE]
        resources: [resourceclaims/status]
  matchConditions:
    - name: allocation-is-new
      expression: >-
        has(object.status) && has(object.status.allocation)
        && (!has(oldObject.status) || !has(oldObject.status.allocation))
  variables:
    - name: guarded
      expression: >-
        object.status.allocation.?devices.?results.orValue([]).exists(r, r.driver == "{{ .driver | default .root.Values.driverName }}"
        && r.device.matches("{{ .devices }}"))
  validations:
    - expression: >-
        !variables.guarded || namespaceObject.metadata.?labels[?"{{ .label }}"].orValue("") == "true"
      message: >-
        devices of class {{ .class }} are for namespaces that an administrator has labelled {{ .label }}=true
      reason: Forbidden
---
apiVersion: admissionregistration.k8s.io/v1
kind: ValidatingAdmissionPolicyBinding
metadata:
  name: {{ $name }}-allocations
  labels:
    {{- $labels | nindent 4 }}
spec:
  policyName: {{ $name }}-allocations
  validationActions: [Deny]
{{- end -}}
