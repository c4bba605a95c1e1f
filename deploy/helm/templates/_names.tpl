{{- define "dra-driver.fullname" -}}
{{- if .Values.fullnameOverride -}}
{{- .Values.fullnameOverride -}}
{{- else if contains .Chart.Name .Release.Name -}}
{{- .Release.Name | trunc 46 | trimSuffix "-" -}}
{{- else -}}
{{- printf "%s-%s" .Release.Name .Chart.Name | trunc 46 | trimSuffix "-" -}}
{{- end -}}
{{- end -}}

{{- define "dra-driver.agent" -}}
{{ include "dra-driver.fullname" . }}-agent
{{- end -}}

{{- define "dra-driver.selector" -}}
app.kubernetes.io/name: {{ .Chart.Name }}
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end -}}

{{- define "dra-driver.labels" -}}
{{ include "dra-driver.selector" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
{{- end -}}

{{- define "dra-driver.image" -}}
{{- if .Values.image.digest -}}
{{ .Values.image.repository }}@{{ .Values.image.digest }}
{{- else -}}
{{ .Values.image.repository }}:{{ .Values.image.tag | default .Chart.AppVersion }}
{{- end -}}
{{- end -}}

{{/* The kubelet's folder, with or without a slash at its end in the value. */}}
{{- define "dra-driver.kubeletDir" -}}
{{ trimSuffix "/" .Values.agent.kubeletDir }}
{{- end -}}

{{/* Nodes on which the image runs: the operating system as a label, the architectures as an affinity. */}}
{{- define "dra-driver.platform" -}}
kubernetes.io/os: linux
{{- end -}}

{{/* An affinity that is given, and beside it that for the image's architectures; given terms for nodes replace it. */}}
{{- define "dra-driver.affinity" -}}
{{- $ours := `{"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [
  {"matchExpressions": [{"key": "kubernetes.io/arch", "operator": "In", "values": ["amd64", "arm64"]}]}]}}}` | fromJson -}}
{{- toYaml (merge (dict) (. | default dict) $ours) -}}
{{- end -}}

{{/* Which nodes have an agent: the labels they must have. */}}
{{- define "dra-driver.agentNodes" -}}
{{- $nodes := include "dra-driver.platform" . | fromYaml -}}
{{- if .Values.driverManager.enabled -}}
{{- $_ := set $nodes .Values.driverManager.label "true" -}}
{{- end -}}
{{- toYaml (merge (dict) (.Values.agent.nodeSelector | default dict) $nodes) -}}
{{- end -}}

{{/* How GPUs are cut: without privilege they can't be. */}}
{{- define "dra-driver.migMode" -}}
{{- if ne .Values.agent.mig.mode "auto" -}}
{{- .Values.agent.mig.mode -}}
{{- else -}}
{{- .Values.agent.runtimeClassName | empty | ternary "dynamic" "static" -}}
{{- end -}}
{{- end -}}

{{/* Where the sharing configuration comes from: the name of a ConfigMap, or nothing. */}}
{{- define "dra-driver.sharing" -}}
{{- if .Values.sharing.configMap -}}
{{- .Values.sharing.configMap -}}
{{- else if .Values.sharing.config -}}
{{- include "dra-driver.fullname" . }}-sharing
{{- end -}}
{{- end -}}

{{/* Whether MPS is configured: said so, or named by the sharing configuration (ours, or the device plugin's). */}}
{{- define "dra-driver.mps" -}}
{{- if eq (toString .Values.mps.enabled) "auto" -}}
{{- $text := toJson .Values.sharing.config -}}
{{- or (contains "\"strategy\":\"MPS\"" $text) (contains "\"mps\":" $text) -}}
{{- else -}}
{{- .Values.mps.enabled -}}
{{- end -}}
{{- end -}}

{{/* The namespaces that shares are offered to, as a list in JSON: those of the rules, then those named beside them. */}}
{{- define "dra-driver.tenants" -}}
{{- $named := list -}}
{{- range .Values.sharing.config.rules -}}
{{- $named = concat $named (.namespaces | default list) -}}
{{- end -}}
{{- concat $named .Values.mps.namespaces | uniq | toJson -}}
{{- end -}}

{{/* Conditions under which an object is looked at: those of the webhook and of the policy. In CEL. */}}
{{- define "dra-driver.reviewed" -}}
# What goes away, or gets a label or a finalizer, is never held up.
- name: is-not-going-away
  expression: '!has(object.metadata.deletionTimestamp)'
- name: spec-is-new
  expression: oldObject == null || object.spec != oldObject.spec
{{- end -}}

{{/* The configs of object or oldObject. dyn: the three kinds differ, and a policy is checked against each. */}}
{{- define "dra-driver.configs" -}}
(request.kind.kind == "DeviceClass" ? dyn({{ . }}).?spec.?config
: request.kind.kind == "ResourceClaimTemplate" ? dyn({{ . }}).?spec.?spec.?devices.?config
: dyn({{ . }}).?spec.?devices.?config).orValue([])
{{- end -}}

{{/* Whether the health policy deletes pods: then agents need the Leases of the budget. */}}
{{- define "dra-driver.evicts" -}}
{{- if .Values.health.enabled -}}
{{- range $rule := (.Values.health.policy | default dict).faults -}}
{{- if and (kindIs "map" $rule) (eq (toString $rule.effect) "NoExecute") -}}true{{- end -}}
{{- end -}}
{{- end -}}
{{- end -}}

{{/* What is done about GPUs that need a reset: off, dry-run or on. YAML reads a bare on or off as a boolean. */}}
{{- define "dra-driver.remediation" -}}
{{- $mode := (.Values.remediation | default dict).mode -}}
{{- if kindIs "bool" $mode -}}{{- ternary "on" "off" $mode -}}{{- else -}}{{- $mode | default "off" -}}{{- end -}}
{{- end -}}

{{/* On how many nodes GPUs may be acted on at the same time; as in the agent, 1 if the policy does not say. */}}
{{- define "dra-driver.remediationNodes" -}}
{{- ((.Values.remediation | default dict).policy | default dict).nodes | default 1 -}}
{{- end -}}

{{/* How many devices may lose their pods within the period; as in the agent, 5 if the policy does not say. */}}
{{- define "dra-driver.evictions" -}}
{{- ((.Values.health.policy | default dict).evictions | default dict).devices | default 5 -}}
{{- end -}}

{{/* The Secret with the certificate of the metrics; nothing where they are served by HTTP. */}}
{{- define "dra-driver.metricsSecret" -}}
{{- $tls := .Values.metrics.tls | default dict -}}
{{- if $tls.secret -}}
{{- $tls.secret -}}
{{- else if $tls.issuerRef -}}
{{ include "dra-driver.fullname" . }}-metrics-tls
{{- end -}}
{{- end -}}

{{/* Whether readers of metrics have to be known to the API server. */}}
{{- define "dra-driver.reviewsReaders" -}}
{{- if eq (.Values.metrics.readers | default "any") "authorized" -}}true{{- end -}}
{{- end -}}

{{/* The name of the port that the kubelet asks for health; nothing where there is none. */}}
{{- define "dra-driver.healthPort" -}}
{{- if .Values.agent.healthPort -}}health{{- else if .Values.agent.metricsPort -}}metrics{{- end -}}
{{- end -}}

{{- /* Not empty where processes test GPUs (health.validate). */ -}}
{{- define "dra-driver.tests" -}}
{{- if and .Values.health.enabled (not (has (toString .Values.health.validate) (list "none" "0"))) }}true{{ end -}}
{{- end -}}

{{- /* The agent's resources; the default limit leaves no room for a process that tests a GPU. */ -}}
{{- define "dra-driver.agentResources" -}}
{{- $resources := deepCopy (.Values.agent.resources | default dict) -}}
{{- if and (include "dra-driver.tests" .) (eq (toString (dig "limits" "memory" "" $resources)) "256Mi") -}}
{{- $_ := set $resources.limits "memory" "768Mi" -}}
{{- end -}}
{{- toYaml $resources -}}
{{- end -}}

{{/* What is known of each vendor by its name. NVIDIA's classes are written by hand, so the table has less of them. */}}
{{- define "dra-driver.vendorTable" -}}
{{- $table := .Files.Get "vendors.yaml" | fromYaml -}}
{{- $_ := merge $table.nvidia (dict "extendedResource" "nvidia.com/gpu" "passthroughClass" "vfio.gpu.nvidia.com") -}}
{{- toJson $table -}}
{{- end -}}

{{/* The vendors that the agent serves, as a JSON list: those of agent.hardware, else the one of driverName. */}}
{{- define "dra-driver.vendors" -}}
{{- $hardware := .Values.agent.hardware -}}
{{- if and (ne $hardware "auto") (not (hasPrefix "simulated:" $hardware)) -}}
{{- $table := include "dra-driver.vendorTable" . | fromJson -}}
{{- range splitList "," $hardware -}}
{{- if not (hasKey $table .) -}}
{{- fail (printf "\n\nagent.hardware=%s: %q is no vendor. Take auto, vendors out of %s, or simulated:PROFILE.\n" $hardware . (keys $table | sortAlpha | join ", ")) -}}
{{- end -}}
{{- end -}}
{{- splitList "," $hardware | toJson -}}
{{- else -}}
{{- list "nvidia" | toJson -}}
{{- end -}}
{{- end -}}

{{/* The drivers that the agent serves, as a JSON list. Several have the names of their vendors. */}}
{{- define "dra-driver.drivers" -}}
{{- if contains "," .Values.agent.hardware -}}
{{- $table := include "dra-driver.vendorTable" . | fromJson -}}
{{- $drivers := list -}}
{{- range include "dra-driver.vendors" . | fromJsonArray -}}
{{- $drivers = append $drivers (get $table .).driver -}}
{{- end -}}
{{- $drivers | toJson -}}
{{- else -}}
{{- list .Values.driverName | toJson -}}
{{- end -}}
{{- end -}}

{{/* What follows an expression in CEL, so that it tells whether that is one of the agent's drivers. */}}
{{- define "dra-driver.isOwn" -}}
{{- $drivers := include "dra-driver.drivers" . | fromJsonArray -}}
{{- if eq (len $drivers) 1 -}}
== {{ first $drivers | quote }}
{{- else -}}
in {{ $drivers | toJson }}
{{- end -}}
{{- end -}}

{{/* The driver of AMD's GPUs; nothing where the agents serve none. */}}
{{- define "dra-driver.amdDriver" -}}
{{- if has "amd" (include "dra-driver.vendors" . | fromJsonArray) -}}
{{- contains "," .Values.agent.hardware | ternary "gpu.amd.com" .Values.driverName -}}
{{- end -}}
{{- end -}}

{{/* Those of the drivers whose devices can't have MPS, as a JSON list: all but NVIDIA's. */}}
{{- define "dra-driver.driversWithoutMps" -}}
{{- $values := .Values -}}
{{- $table := include "dra-driver.vendorTable" . | fromJson -}}
{{- $drivers := list -}}
{{- range include "dra-driver.vendors" . | fromJsonArray -}}
{{- if ne . "nvidia" -}}
{{- $drivers = append $drivers (contains "," $values.agent.hardware | ternary (get $table .).driver $values.driverName) -}}
{{- end -}}
{{- end -}}
{{- $drivers | toJson -}}
{{- end -}}

{{/* The drivers in words. */}}
{{- define "dra-driver.driverNames" -}}
{{- include "dra-driver.drivers" . | fromJsonArray | join ", " -}}
{{- end -}}
