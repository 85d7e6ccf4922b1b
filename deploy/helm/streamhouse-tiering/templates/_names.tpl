{{- define "tiering.name" -}}
{{- if contains .Chart.Name .Release.Name }}{{ .Release.Name | trunc 63 | trimSuffix "-" }}
{{- else }}{{ printf "%s-%s" .Release.Name .Chart.Name | trunc 63 | trimSuffix "-" }}{{ end -}}
{{- end }}

{{- define "tiering.selector" -}}
app.kubernetes.io/name: {{ .Chart.Name }}
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}

{{- define "tiering.labels" -}}
{{ include "tiering.selector" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/component: tiering
{{- end }}

{{- define "tiering.account" -}}
{{- .Values.serviceAccount.name | default (ternary (include "tiering.name" .) "default" .Values.serviceAccount.create) }}
{{- end }}

{{- define "tiering.image" -}}
{{ .Values.image.repository }}
{{- if .Values.image.digest }}@{{ .Values.image.digest }}{{ else }}:{{ .Values.image.tag | default .Chart.AppVersion }}{{ end }}
{{- end }}

{{- define "tiering.master" -}}
{{- if not (regexMatch "^local\\[([1-9][0-9]*|\\*)\\]$" .Values.views.master) }}
{{- fail (printf "views.master is %s, and must be local[N]: executors of a cluster could not call this pod back, and it has no token for Kubernetes. For a cluster, run `streamhouse tier --views` where its driver runs" .Values.views.master) }}
{{- end }}
{{- .Values.views.master }}
{{- end }}
