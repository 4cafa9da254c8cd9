{{/* SPDX-License-Identifier: Apache-2.0 */}}

{{- define "controller.name" -}}
{{- .Release.Name | trunc 52 | trimSuffix "-" -}}
{{- end -}}

{{- define "controller.serviceAccount" -}}
{{- .Values.serviceAccount.name | default (include "controller.name" .) -}}
{{- end -}}

{{- define "controller.selector" -}}
app.kubernetes.io/name: flotilla-controller
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end -}}

{{- define "controller.labels" -}}
{{ include "controller.selector" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ .Chart.Name }}-{{ .Chart.Version }}
{{- end -}}

{{- define "controller.image" -}}
{{- with .Values.global.cattle.systemDefaultRegistry }}{{ . }}/{{ end -}}
{{- .Values.image.repository }}:{{ .Values.image.tag | default .Chart.AppVersion -}}
{{- end -}}

{{/* Names of cluster-wide objects: two controllers in one cluster must not share them. */}}
{{- define "controller.clusterName" -}}
{{- printf "%s-%s" .Release.Namespace (include "controller.name" .) -}}
{{- end -}}
