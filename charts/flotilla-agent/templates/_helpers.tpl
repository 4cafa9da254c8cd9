{{/* SPDX-License-Identifier: Apache-2.0 */}}

{{- define "agent.name" -}}
{{- .Release.Name | trunc 52 | trimSuffix "-" -}}
{{- end -}}

{{- define "agent.serviceAccount" -}}
{{- .Values.serviceAccount.name | default (include "agent.name" .) -}}
{{- end -}}

{{- define "agent.selector" -}}
app.kubernetes.io/name: flotilla-agent
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end -}}

{{- define "agent.labels" -}}
{{ include "agent.selector" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ .Chart.Name }}-{{ .Chart.Version }}
{{- end -}}

{{- define "agent.image" -}}
{{- with .Values.global.cattle.systemDefaultRegistry }}{{ . }}/{{ end -}}
{{- .Values.image.repository }}:{{ .Values.image.tag | default .Chart.AppVersion -}}
{{- end -}}

{{/* 0 is a number of replicas, too. */}}
{{- define "agent.replicas" -}}
{{- if not (kindIs "invalid" .Values.replicas) }}{{ .Values.replicas }}
{{- else if not (kindIs "invalid" .Values.agent.replicas) }}{{ .Values.agent.replicas }}
{{- else }}2{{ end -}}
{{- end -}}

{{/* Names of cluster-wide objects: two agents in one cluster must not share them. */}}
{{- define "agent.clusterName" -}}
{{- printf "%s-%s" .Release.Namespace (include "agent.name" .) -}}
{{- end -}}

{{- define "agent.settings" -}}
{{- $settings := dict "clientID" .Values.clientID "agentTLSMode" .Values.agentTLSMode "garbageCollectionInterval" (.Values.garbageCollectionInterval | default "" | toString) -}}
{{- with .Values.labels }}{{ $_ := set $settings "labels" . }}{{ end -}}
{{- toPrettyJson $settings -}}
{{- end -}}
